//! The kubelet of all nodes: takes on every pod that has a node, and lets it go.

pub(crate) mod cni;
pub(crate) mod container;
pub(crate) mod environment;
pub(crate) mod files;
pub(crate) mod heartbeat;
pub(crate) mod images;
pub(crate) mod logs;
pub(crate) mod pod;
pub(crate) mod probe;
pub(crate) mod report;
pub(crate) mod sandbox;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use culvert_netns::Netns;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::network::addresses::{Names, node_ips, node_number};
use super::object::{Object, text, uid};
use super::settings::Settings;
use super::world::Store;
use crate::state::StateDir;

/// First number of a pod on its node; 1 would look like a gateway.
const FIRST_POD: u8 = 2;
/// Last number of a pod on its node.
const LAST_POD: u8 = 254;

/// What the kubelet works with.
#[derive(Debug)]
pub(crate) struct Context {
    /// All objects.
    pub store: Store,
    /// The state directory.
    pub state: StateDir,
    /// Names of namespaces.
    pub names: Names,
    /// What was asked for.
    pub settings: Settings,
    /// What images run, as it is now.
    pub images: watch::Receiver<images::Images>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeNet>,
    /// This program.
    pub program: PathBuf,
    /// The machine's resolv.conf.
    pub machine_resolv: String,
}

/// A node as the kubelet needs it.
#[derive(Debug)]
pub(crate) struct NodeNet {
    /// Its namespace.
    pub netns: Netns,
    /// Numbers of its pods.
    numbers: Mutex<Numbers>,
}

/// Pod numbers in use. A number that was given back is used again as late as
/// possible, so that an address is not mistaken for its former holder.
#[derive(Debug, Default)]
struct Numbers {
    used: BTreeSet<u8>,
    last: u8,
}

impl Numbers {
    fn reserve(&mut self) -> Option<u8> {
        let after = (self.last.max(FIRST_POD - 1)..LAST_POD).map(|number| number + 1);
        let number = after
            .chain(FIRST_POD..=LAST_POD)
            .find(|number| !self.used.contains(number))?;
        self.last = number;
        self.used.insert(number);
        Some(number)
    }
}

impl NodeNet {
    /// A node without pods.
    pub(crate) fn new(netns: Netns) -> Self {
        Self {
            netns,
            numbers: Mutex::default(),
        }
    }
}

impl Context {
    /// Addresses of a node.
    pub(crate) fn node_ips(&self, node: &str) -> Vec<IpAddr> {
        node_number(node)
            .map(|number| node_ips(number).to_vec())
            .unwrap_or_default()
    }

    /// Reserves a pod number on a node.
    fn reserve(&self, node: &str) -> Option<u8> {
        self.nodes
            .get(node)?
            .numbers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .reserve()
    }

    /// Gives a pod number back.
    fn release(&self, node: &str, number: u8) {
        if let Some(node) = self.nodes.get(node) {
            node.numbers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .used
                .remove(&number);
        }
    }
}

/// Runs all pods of all nodes for good.
pub(crate) async fn run(context: Arc<Context>) {
    let mut revisions = context.store.watch();
    let mut pods: JoinSet<String> = JoinSet::new();
    let mut running: BTreeSet<String> = BTreeSet::new();
    loop {
        revisions.mark_unchanged();
        for pod in context.store.snapshot().of_kind("Pod") {
            if text(pod, "/spec/nodeName").is_some() && running.insert(uid(pod).to_owned()) {
                let work = pod::run(Arc::clone(&context), Object::clone(pod));
                let id = uid(pod).to_owned();
                pods.spawn(async move {
                    work.await;
                    id
                });
            }
        }
        tokio::select! {
            changed = revisions.changed() => if changed.is_err() { return },
            Some(ended) = pods.join_next() => match ended {
                Ok(id) => {
                    running.remove(&id);
                }
                Err(error) => tracing::error!(%error, "a pod's task broke"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_late() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.reserve(), Some(2));
        assert_eq!(numbers.reserve(), Some(3));
        numbers.used.remove(&2);
        assert_eq!(numbers.reserve(), Some(4));
        while numbers.reserve().is_some() {}
        assert_eq!(numbers.used.len(), 253);
        numbers.used.remove(&77);
        assert_eq!(numbers.reserve(), Some(77));
    }
}
