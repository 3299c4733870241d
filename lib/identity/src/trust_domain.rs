//! The name of a set of authorities.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use spiffe::SpiffeIdError;

/// A SPIFFE trust domain, such as `cluster.local`; lower case, cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrustDomain(Arc<str>);

/// Why a text is not the name of a trust domain.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{text:?} is not a trust domain")]
pub struct ParseTrustDomainError {
    text: String,
    #[source]
    source: SpiffeIdError,
}

impl TrustDomain {
    /// The name, without `spiffe://`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_spiffe(name: &spiffe::TrustDomain) -> Self {
        Self(Arc::from(name.as_str()))
    }

    pub(crate) fn to_spiffe(&self) -> spiffe::TrustDomain {
        spiffe::TrustDomain::new(self.as_str())
            .expect("invariant: the name was valid when it was parsed")
    }
}

impl FromStr for TrustDomain {
    type Err = ParseTrustDomainError;

    /// Accepts the bare name only: a URI in its place is a mistake.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fault = |source| ParseTrustDomainError {
            text: text.to_owned(),
            source,
        };
        if text.contains(['/', ':']) {
            return Err(fault(SpiffeIdError::BadTrustDomainChar));
        }
        spiffe::TrustDomain::new(text)
            .map(|name| Self::from_spiffe(&name))
            .map_err(fault)
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
