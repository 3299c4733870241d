//! The claims of a Kubernetes projected token, as far as they matter here.

use serde::{Deserialize, Serialize};

use crate::{Bound, Caller};

const SUBJECT_PREFIX: &str = "system:serviceaccount:";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) aud: Audience,
    pub(crate) exp: u64,
    #[serde(default)]
    pub(crate) iat: u64,
    #[serde(default)]
    pub(crate) iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io", default)]
    pub(crate) kubernetes: Option<Kubernetes>,
    #[serde(default)]
    pub(crate) nbf: u64,
    #[serde(default)]
    pub(crate) sub: String,
}

/// RFC 7519 allows one audience without a list around it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Audience {
    Many(Vec<String>),
    One(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kubernetes {
    pub(crate) namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Reference>,
    pub(crate) serviceaccount: Reference,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) uid: String,
}

impl From<Reference> for Bound {
    fn from(reference: Reference) -> Self {
        Self {
            name: reference.name,
            uid: reference.uid,
        }
    }
}

impl From<&Bound> for Reference {
    fn from(bound: &Bound) -> Self {
        Self {
            name: bound.name.clone(),
            uid: bound.uid.clone(),
        }
    }
}

impl Claims {
    pub(crate) fn is_for(&self, audience: &str) -> bool {
        match &self.aud {
            Audience::Many(all) => all.iter().any(|one| one == audience),
            Audience::One(one) => one == audience,
        }
    }

    /// `None` when the subject and the Kubernetes part do not agree on one
    /// service account.
    pub(crate) fn into_caller(self) -> Option<Caller> {
        let kubernetes = self.kubernetes?;
        let (namespace, account) = self.sub.strip_prefix(SUBJECT_PREFIX)?.split_once(':')?;
        let consistent = namespace == kubernetes.namespace
            && account == kubernetes.serviceaccount.name
            && !namespace.is_empty()
            && !account.is_empty();
        consistent.then(|| Caller {
            namespace: kubernetes.namespace,
            service_account: kubernetes.serviceaccount.name,
            pod: kubernetes.pod.map(Bound::from),
            node: kubernetes.node.map(Bound::from),
        })
    }
}

pub(crate) fn subject(namespace: &str, account: &str) -> String {
    format!("{SUBJECT_PREFIX}{namespace}:{account}")
}
