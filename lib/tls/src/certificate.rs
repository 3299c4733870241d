//! What the CA answers, parsed and checked.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use culvert_identity::Identity;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;

use crate::fault::Fault;
use crate::key::WorkloadKey;
use crate::trust::{Roots, TrustBundle, TrustError};
use crate::verify::identity_of;

/// Leaf and intermediates; real chains have two or three.
const CHAIN_MAX: usize = 10;

/// What is public about one certificate.
#[derive(Clone, Debug)]
pub struct Certificate {
    identity: Identity,
    serial: String,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl Certificate {
    /// Whom it identifies.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Serial number, lower-case hexadecimal.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// First moment of validity.
    #[must_use]
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// Last moment of validity.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Whether a peer would accept it at `now`.
    #[must_use]
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// When half of its life is over, which is when to renew it.
    #[must_use]
    pub fn half_life(&self) -> SystemTime {
        let life = self.not_after.duration_since(self.not_before);
        self.not_before + life.unwrap_or(Duration::ZERO) / 2
    }

    fn parse(leaf: &CertificateDer<'_>) -> Result<Self, AnswerError> {
        let identity = identity_of(leaf).map_err(AnswerError::NoIdentity)?;
        let parsed =
            crate::ca::Summary::of(leaf).ok_or(AnswerError::Undecodable { position: 1 })?;
        Ok(Self {
            identity,
            serial: parsed.serial,
            not_before: parsed.not_before,
            not_after: parsed.not_after,
        })
    }
}

/// A certificate together with its key, its chain and the roots to verify
/// peers with: all that a workload needs to accept and to open tunnels.
#[derive(Clone)]
pub struct IssuedCertificate {
    certificate: Certificate,
    certified_key: Arc<CertifiedKey>,
    roots: Roots,
    trust: TrustBundle,
    server: Arc<OnceLock<Arc<ServerConfig>>>,
}

/// Why an answer of the CA was refused.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// Leaf and root bundle are the least there must be.
    #[error("answer has {count} elements, expected the leaf, intermediates and the root bundle")]
    TooShort {
        /// How many there are.
        count: usize,
    },
    /// More certificates than a chain can sensibly have.
    #[error("answer has more than {CHAIN_MAX} certificates in the chain")]
    TooLong,
    /// An element is not PEM.
    #[error("element {position} of the answer is not valid PEM")]
    Pem {
        /// Counted from one.
        position: usize,
        /// What the decoder said.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// An element holds no certificate that can be decoded.
    #[error("element {position} of the answer is not a certificate")]
    Undecodable {
        /// Counted from one.
        position: usize,
    },
    /// The last element is not a usable root bundle.
    #[error("root bundle of the answer is not usable")]
    Roots(#[source] TrustError),
    /// The leaf names nobody.
    #[error("issued certificate holds no SPIFFE identity")]
    NoIdentity(#[source] rustls::Error),
    /// The leaf is somebody else's.
    #[error("issued certificate is for {issued}, expected {expected}")]
    WrongIdentity {
        /// Whom it identifies.
        issued: Identity,
        /// Whom it was asked for.
        expected: Identity,
    },
    /// The leaf is for another key than the one in the request.
    #[error("issued certificate does not belong to the private key")]
    WrongKey(#[source] rustls::Error),
}

impl IssuedCertificate {
    /// Reads an answer of the CA: the leaf, then intermediates, then the root
    /// bundle as the last element, which may hold several roots.
    ///
    /// Whether the certificate is valid now is not asked here: see
    /// [`IssuedCertificate::check`].
    ///
    /// # Errors
    /// When something is missing or cannot be read, when the leaf is not for
    /// `expected`, or when it is for another key.
    pub fn from_answer(
        chain_pem: &[impl AsRef<[u8]>],
        key: &WorkloadKey,
        expected: &Identity,
    ) -> Result<Self, AnswerError> {
        let (roots, chain) = match chain_pem {
            [chain @ .., roots] if !chain.is_empty() => (roots, chain),
            other => return Err(AnswerError::TooShort { count: other.len() }),
        };
        let chain = read_chain(chain)?;
        let leaf = chain
            .first()
            .ok_or(AnswerError::Undecodable { position: 1 })?;
        let certificate = Certificate::parse(leaf)?;
        if certificate.identity != *expected {
            return Err(AnswerError::WrongIdentity {
                issued: certificate.identity,
                expected: expected.clone(),
            });
        }
        let roots = Roots::from_pem(roots.as_ref()).map_err(AnswerError::Roots)?;
        let certified_key = CertifiedKey::new(chain, key.signer());
        certified_key.keys_match().map_err(AnswerError::WrongKey)?;
        Ok(Self {
            certificate,
            certified_key: Arc::new(certified_key),
            trust: TrustBundle::issued(roots.clone()),
            roots,
            server: Arc::default(),
        })
    }

    /// What is public about the leaf.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Whom it identifies.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        self.certificate.identity()
    }

    /// The chain as it is sent, leaf first, DER encoded.
    pub fn chain(&self) -> impl Iterator<Item = &[u8]> {
        self.certified_key.cert.iter().map(AsRef::as_ref)
    }

    /// The roots that came with it.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The roots that peers are verified with.
    #[must_use]
    pub fn trust(&self) -> &TrustBundle {
        &self.trust
    }

    /// The same certificate, with peers verified by `trust` from now on.
    #[must_use]
    pub fn with_trust(self, trust: TrustBundle) -> Self {
        Self {
            trust,
            server: Arc::default(),
            ..self
        }
    }

    /// Whether a peer that trusts the same roots would accept it at `now`, as
    /// client and as server. An answer that fails must not replace a
    /// certificate that works.
    ///
    /// # Errors
    /// What the peer would find.
    pub fn check(&self, now: SystemTime) -> Result<(), Fault> {
        self.check_against(&self.roots, now)
    }

    /// Whether a peer that trusts `roots` would accept it at `now`, as client
    /// and as server.
    ///
    /// # Errors
    /// What the peer would find.
    pub fn check_against(&self, roots: &Roots, now: SystemTime) -> Result<(), Fault> {
        crate::ca::check_chain(&self.certified_key.cert, roots, now)
    }

    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified_key)
    }

    pub(crate) fn server_config(
        &self,
        build: impl FnOnce() -> Arc<ServerConfig>,
    ) -> Arc<ServerConfig> {
        Arc::clone(self.server.get_or_init(build))
    }
}

fn read_chain(elements: &[impl AsRef<[u8]>]) -> Result<Vec<CertificateDer<'static>>, AnswerError> {
    let mut chain = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        let position = index + 1;
        let before = chain.len();
        for certificate in CertificateDer::pem_slice_iter(element.as_ref()) {
            chain.push(certificate.map_err(|source| AnswerError::Pem { position, source })?);
            if chain.len() > CHAIN_MAX {
                return Err(AnswerError::TooLong);
            }
        }
        if chain.len() == before {
            return Err(AnswerError::Undecodable { position });
        }
    }
    Ok(chain)
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedCertificate")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
