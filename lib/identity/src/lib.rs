//! SPIFFE identities of workloads: parse, format, compare.
//!
//! An identity is who a peer is after TLS has proved it; every certificate,
//! policy and metric names it through this crate. The rules of the SPIFFE
//! standard (characters, lengths, case) come from the `spiffe` crate; this
//! crate narrows them to the one shape the mesh uses,
//! `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.
//!
//! No IO happens here, and nothing here decides whom to trust.

mod trust_domain;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use spiffe::{SpiffeId, SpiffeIdError};

pub use trust_domain::{ParseTrustDomainError, TrustDomain};

const SCHEME: &str = "spiffe://";

/// Who a workload is: `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.
///
/// Cloning is one reference count. Two identities are equal exactly when their
/// URIs are.
#[derive(Clone)]
pub struct Identity(Arc<Parts>);

struct Parts {
    trust_domain: TrustDomain,
    uri: Box<str>,
    /// Byte ranges of `uri`; the service account runs to its end.
    namespace: std::ops::Range<usize>,
    service_account: usize,
}

/// Why a text or a set of names is not an identity of the mesh.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseIdentityError {
    /// The SPIFFE standard does not allow it.
    #[error("{text:?} is not a SPIFFE ID")]
    NotSpiffe {
        /// What was given.
        text: String,
        /// The rule that it breaks.
        #[source]
        source: SpiffeIdError,
    },
    /// A SPIFFE ID, but not of the shape `ns/<namespace>/sa/<service account>`.
    #[error(
        "{text:?} is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<service account>"
    )]
    NotWorkload {
        /// What was given.
        text: String,
    },
}

impl Identity {
    /// The identity of a service account of a namespace.
    ///
    /// # Errors
    /// When a name is empty or holds characters that a SPIFFE path segment may not.
    pub fn new(
        trust_domain: &TrustDomain,
        namespace: &str,
        service_account: &str,
    ) -> Result<Self, ParseIdentityError> {
        let text = || format!("{SCHEME}{trust_domain}/ns/{namespace}/sa/{service_account}");
        if namespace.is_empty() || service_account.is_empty() {
            return Err(ParseIdentityError::NotWorkload { text: text() });
        }
        let id = SpiffeId::from_segments(
            trust_domain.to_spiffe(),
            &["ns", namespace, "sa", service_account],
        )
        .map_err(|source| ParseIdentityError::NotSpiffe {
            text: text(),
            source,
        })?;
        let uri = id.to_string();
        let start = SCHEME.len() + trust_domain.as_str().len() + "/ns/".len();
        let end = start + namespace.len();
        Ok(Self(Arc::new(Parts {
            trust_domain: trust_domain.clone(),
            uri: uri.into_boxed_str(),
            namespace: start..end,
            service_account: end + "/sa/".len(),
        })))
    }

    /// The trust domain whose authorities vouch for the identity.
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.0.trust_domain
    }

    /// The Kubernetes namespace.
    pub fn namespace(&self) -> &str {
        &self.0.uri[self.0.namespace.clone()]
    }

    /// The Kubernetes service account.
    pub fn service_account(&self) -> &str {
        &self.0.uri[self.0.service_account..]
    }

    /// The identity as policies write it: the URI without `spiffe://`.
    pub fn principal(&self) -> &str {
        &self.0.uri[SCHEME.len()..]
    }

    /// The whole URI.
    pub fn uri(&self) -> &str {
        &self.0.uri
    }
}

impl FromStr for Identity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let id = SpiffeId::new(text).map_err(|source| ParseIdentityError::NotSpiffe {
            text: text.to_owned(),
            source,
        })?;
        let not_workload = || ParseIdentityError::NotWorkload {
            text: text.to_owned(),
        };
        let mut path = id.path().split('/');
        let pieces = [(); 5].map(|()| path.next().unwrap_or_default());
        let ["", "ns", namespace, "sa", service_account] = pieces else {
            return Err(not_workload());
        };
        if path.next().is_some() || namespace.is_empty() || service_account.is_empty() {
            return Err(not_workload());
        }
        // Through `new`, because only building enforces the standard's length limit.
        let trust_domain = TrustDomain::from_spiffe(id.trust_domain());
        Self::new(&trust_domain, namespace, service_account)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri())
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.uri == other.0.uri
    }
}

impl Eq for Identity {}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uri.hash(state);
    }
}

impl PartialOrd for Identity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Identity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.uri.cmp(&other.0.uri)
    }
}

#[cfg(test)]
mod tests;
