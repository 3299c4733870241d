//! The root certificates that peers are verified against.
//!
//! Roots reach a process in two ways: the last element of every answer of the
//! CA, and the bundle file that the CA publishes. They live apart from leaf
//! certificates, so that a new root is trusted by every identity of a node as
//! soon as it is published, long before the leaves are renewed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use crate::config::provider;

/// A bundle has a handful of roots even in the middle of a rotation; the bound
/// keeps a wrong file from costing path building on every handshake.
const ROOTS_MAX: usize = 64;

/// A set of root certificates, parsed and ready to verify with.
#[derive(Clone, Debug)]
pub struct Roots {
    certificates: Vec<CertificateDer<'static>>,
    pub(crate) store: Arc<RootCertStore>,
    pub(crate) client_verifier: Arc<dyn ClientCertVerifier>,
}

/// Why a root bundle was refused.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The text is not PEM.
    #[error("root bundle is not valid PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// There is no certificate in it.
    #[error("root bundle holds no certificate")]
    Empty,
    /// More certificates than a bundle can sensibly have.
    #[error("root bundle holds more than {ROOTS_MAX} certificates")]
    TooMany,
    /// One certificate cannot be a trust anchor.
    #[error("certificate {position} of the root bundle is not usable as a root")]
    Unusable {
        /// Counted from one.
        position: usize,
        /// What the verifier said.
        #[source]
        source: rustls::Error,
    },
    /// The verifier could not be built.
    #[error("cannot build a verifier for the root bundle")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
    /// The bundle file could not be read.
    #[error("cannot read root bundle {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl Roots {
    /// Reads one or more concatenated PEM certificates.
    ///
    /// # Errors
    /// When there is none, or one of them cannot be used: a bundle is taken
    /// whole or not at all.
    pub fn from_pem(pem: &[u8]) -> Result<Self, TrustError> {
        let certificates = CertificateDer::pem_slice_iter(pem)
            .take(ROOTS_MAX + 1)
            .collect::<Result<Vec<_>, _>>()
            .map_err(TrustError::Pem)?;
        Self::new(certificates)
    }

    fn new(mut certificates: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        let mut seen = std::collections::HashSet::new();
        certificates.retain(|certificate| seen.insert(certificate.clone()));
        if certificates.is_empty() {
            return Err(TrustError::Empty);
        }
        if certificates.len() > ROOTS_MAX {
            return Err(TrustError::TooMany);
        }
        let mut store = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            store
                .add(certificate.clone())
                .map_err(|source| TrustError::Unusable {
                    position: index + 1,
                    source,
                })?;
        }
        let store = Arc::new(store);
        let client_verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&store), provider())
                .build()
                .map_err(TrustError::Verifier)?;
        Ok(Self {
            certificates,
            store,
            client_verifier,
        })
    }

    /// How many roots there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.certificates.len()
    }

    /// Never true: a set without a root cannot be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }

    /// The roots, DER encoded.
    pub fn der(&self) -> impl Iterator<Item = &[u8]> {
        self.certificates.iter().map(AsRef::as_ref)
    }

    fn union(&self, other: &Self) -> Result<Self, TrustError> {
        let all = self.certificates.iter().chain(&other.certificates);
        Self::new(all.cloned().collect())
    }
}

/// The roots in force, shared by every TLS configuration that was built with
/// it: a change counts from the next handshake on.
///
/// In force is the union of the newest answer of the CA and the newest bundle
/// that was published, so neither can take away what the other still needs.
#[derive(Clone, Debug)]
pub struct TrustBundle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    effective: ArcSwap<Roots>,
    sources: Mutex<Sources>,
}

#[derive(Clone, Debug, Default)]
struct Sources {
    issued: Option<Roots>,
    published: Option<Roots>,
}

impl TrustBundle {
    /// Trusts what came with an answer of the CA.
    #[must_use]
    pub fn issued(roots: Roots) -> Self {
        Self::with_sources(
            roots.clone(),
            Sources {
                issued: Some(roots),
                published: None,
            },
        )
    }

    /// Trusts a bundle that was published.
    #[must_use]
    pub fn published(roots: Roots) -> Self {
        Self::with_sources(
            roots.clone(),
            Sources {
                issued: None,
                published: Some(roots),
            },
        )
    }

    fn with_sources(roots: Roots, sources: Sources) -> Self {
        Self {
            shared: Arc::new(Shared {
                effective: ArcSwap::from_pointee(roots),
                sources: Mutex::new(sources),
            }),
        }
    }

    /// Replaces what the CA's answers contribute. Says whether anything changed.
    ///
    /// # Errors
    /// When both sources together exceed what a bundle may hold; what was in
    /// force stays.
    pub fn set_issued(&self, roots: Roots) -> Result<bool, TrustError> {
        self.update(|sources| sources.issued = Some(roots))
    }

    /// Replaces what the published bundle contributes. Says whether anything changed.
    ///
    /// # Errors
    /// When both sources together exceed what a bundle may hold; what was in
    /// force stays.
    pub fn set_published(&self, roots: Roots) -> Result<bool, TrustError> {
        self.update(|sources| sources.published = Some(roots))
    }

    fn update(&self, change: impl FnOnce(&mut Sources)) -> Result<bool, TrustError> {
        let mut sources = self.sources();
        let mut next = sources.clone();
        change(&mut next);
        let effective = match (&next.issued, &next.published) {
            (Some(issued), Some(published)) => published.union(issued)?,
            (Some(only), None) | (None, Some(only)) => only.clone(),
            (None, None) => return Err(TrustError::Empty),
        };
        *sources = next;
        let changed = self.current().certificates != effective.certificates;
        if changed {
            self.shared.effective.store(Arc::new(effective));
        }
        Ok(changed)
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.shared
            .sources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The roots in force now.
    #[must_use]
    pub fn current(&self) -> Arc<Roots> {
        self.shared.effective.load_full()
    }
}

/// A bundle file that is read again whenever it changes. What was read last
/// stays in use while the file is missing or broken.
#[derive(Debug)]
pub struct RootFile {
    path: PathBuf,
    read: Mutex<Option<(Stamp, Roots)>>,
}

/// Tells one version of a file from the next.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            modified: metadata.modified().ok(),
            length: metadata.len(),
            inode: metadata.ino(),
        })
    }
}

impl RootFile {
    /// Names the file; it is read with the first [`RootFile::roots`].
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            read: Mutex::new(None),
        }
    }

    /// The roots in the file now; those read before when it cannot be read.
    ///
    /// # Errors
    /// When the file cannot be used and never could.
    pub fn roots(&self) -> Result<Roots, TrustError> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        match self.load(read.as_ref().map(|(stamp, _)| stamp)) {
            Ok(Some(fresh)) => Ok(read.insert(fresh).1.clone()),
            Ok(None) => match &*read {
                Some((_, roots)) => Ok(roots.clone()),
                None => Err(TrustError::Empty),
            },
            Err(error) => match &*read {
                Some((_, roots)) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "keeping the roots read before"
                    );
                    Ok(roots.clone())
                }
                None => Err(error),
            },
        }
    }

    fn load(&self, known: Option<&Stamp>) -> Result<Option<(Stamp, Roots)>, TrustError> {
        let failed = |source| TrustError::Read {
            path: self.path.clone(),
            source,
        };
        let stamp = Stamp::of(&self.path).map_err(failed)?;
        if known == Some(&stamp) {
            return Ok(None);
        }
        let pem = std::fs::read(&self.path).map_err(failed)?;
        Ok(Some((stamp, Roots::from_pem(&pem)?)))
    }
}

#[cfg(test)]
mod tests;
