//! Which pods run on which node: what a node may ask certificates for.
//!
//! [`Placement`] is an immutable index; where it comes from is behind
//! [`PodsByNode`]: a directory of objects here, the Kubernetes API later.

mod directory;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

pub use directory::DirectoryPods;

/// Gives the current placement of pods.
pub trait PodsByNode: fmt::Debug + Send + Sync {
    /// The placement as it was at most `age_max` ago.
    ///
    /// # Cancel safety
    /// A dropped look-up has no effect.
    fn placement(&self, age_max: Duration) -> LookUp<'_>;
}

/// A placement, later.
pub type LookUp<'a> = Pin<Box<dyn Future<Output = Result<Arc<Placement>, PodsError>> + Send + 'a>>;

/// Why the placement of pods is not known.
#[derive(Debug, thiserror::Error)]
pub enum PodsError {
    /// The directory cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The task that reads was lost.
    #[error("reading of objects was interrupted")]
    Interrupted,
}

/// A pod, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Where it is scheduled.
    pub node: String,
    /// Whose identity it has.
    pub service_account: String,
}

/// A node, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Scheduled pods that have not ended, and nodes.
#[derive(Debug, Default)]
pub struct Placement {
    pods: HashMap<(String, String), Pod>,
    nodes: HashMap<String, String>,
    accounts: HashSet<(String, String, String)>,
}

impl Placement {
    /// Indexes pods and nodes.
    #[must_use]
    pub fn new(pods: impl IntoIterator<Item = Pod>, nodes: impl IntoIterator<Item = Node>) -> Self {
        let mut placement = Self::default();
        for pod in pods {
            placement.accounts.insert((
                pod.node.clone(),
                pod.namespace.clone(),
                pod.service_account.clone(),
            ));
            let key = (pod.namespace.clone(), pod.name.clone());
            placement.pods.insert(key, pod);
        }
        let nodes = nodes.into_iter().map(|node| (node.name, node.uid));
        placement.nodes.extend(nodes);
        placement
    }

    /// Whether a pod with this service account is scheduled on the node.
    #[must_use]
    pub fn runs(&self, node: &str, namespace: &str, service_account: &str) -> bool {
        let key = (
            node.to_owned(),
            namespace.to_owned(),
            service_account.to_owned(),
        );
        self.accounts.contains(&key)
    }

    /// A pod that has not ended.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.pods.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The uid of a node.
    #[must_use]
    pub fn node_uid(&self, name: &str) -> Option<&str> {
        self.nodes.get(name).map(String::as_str)
    }
}

/// The fields of a Pod or Node object that matter here.
#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    namespace: Option<String>,
    #[serde(default)]
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    service_account_name: Option<String>,
    service_account: Option<String>,
}

#[derive(Default, Deserialize)]
struct Status {
    phase: Option<String>,
}

impl Pod {
    /// Reads a Pod object; `Ok(None)` when it is not scheduled or has ended.
    fn parse(json: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        let Object {
            metadata,
            spec,
            status,
        } = serde_json::from_slice(json)?;
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let node = spec.node_name.filter(|node| !node.is_empty());
        Ok(match node {
            Some(node) if !ended => Some(Self {
                namespace: metadata.namespace.unwrap_or_else(|| "default".to_owned()),
                name: metadata.name,
                uid: metadata.uid,
                node,
                service_account: spec
                    .service_account_name
                    .or(spec.service_account)
                    .filter(|account| !account.is_empty())
                    .unwrap_or_else(|| "default".to_owned()),
            }),
            _ => None,
        })
    }
}

impl Node {
    fn parse(json: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        let Object { metadata, .. } = serde_json::from_slice(json)?;
        Ok(Some(Self {
            name: metadata.name,
            uid: metadata.uid,
        }))
    }
}

#[cfg(test)]
mod tests;
