//! The current certificate of every identity of a process.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use culvert_identity::Identity;
use tokio::sync::watch;

use crate::certificate::IssuedCertificate;
use crate::trust::{Roots, TrustBundle, TrustError};

/// Certificates by identity, all verified against one bundle of roots.
///
/// Reading takes no lock. A certificate stays until a newer one replaces it or
/// the identity is forgotten, also when it has expired: peers refuse it then,
/// and [`CertificateStore::current`] still shows why.
#[derive(Debug)]
pub struct CertificateStore {
    certificates: ArcSwap<HashMap<Identity, Arc<IssuedCertificate>>>,
    trust: OnceLock<TrustBundle>,
    generation: watch::Sender<u64>,
}

impl CertificateStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self {
            certificates: ArcSwap::default(),
            trust: OnceLock::new(),
            generation: watch::Sender::new(0),
        }
    }

    /// Takes a certificate into use for new handshakes, and its roots for every
    /// identity of the store.
    ///
    /// # Errors
    /// When its roots cannot be added to those in force; nothing changes then.
    pub fn set(&self, certificate: IssuedCertificate) -> Result<(), TrustError> {
        let trust = self
            .trust
            .get_or_init(|| TrustBundle::issued(certificate.roots().clone()))
            .clone();
        trust.set_issued(certificate.roots().clone())?;
        let certificate = Arc::new(certificate.with_trust(trust));
        self.certificates.rcu(|all| {
            let mut next = HashMap::clone(all);
            next.insert(certificate.identity().clone(), Arc::clone(&certificate));
            next
        });
        self.generation.send_modify(|generation| *generation += 1);
        Ok(())
    }

    /// Takes a published root bundle into use. Says whether anything changed.
    ///
    /// # Errors
    /// When it cannot be added to those in force; nothing changes then.
    pub fn set_published_roots(&self, roots: Roots) -> Result<bool, TrustError> {
        let mut fresh = false;
        let trust = self.trust.get_or_init(|| {
            fresh = true;
            TrustBundle::published(roots.clone())
        });
        Ok(trust.set_published(roots)? || fresh)
    }

    /// The certificate in use for `identity`.
    #[must_use]
    pub fn current(&self, identity: &Identity) -> Option<Arc<IssuedCertificate>> {
        self.certificates.load().get(identity).cloned()
    }

    /// The certificate in use for `identity`, if peers accept it at `now`.
    #[must_use]
    pub fn usable(&self, identity: &Identity, now: SystemTime) -> Option<Arc<IssuedCertificate>> {
        self.current(identity)
            .filter(|certificate| certificate.certificate().is_valid_at(now))
    }

    /// When the certificate in use for `identity` expires.
    #[must_use]
    pub fn expires(&self, identity: &Identity) -> Option<SystemTime> {
        let certificate = self.current(identity)?;
        Some(certificate.certificate().not_after())
    }

    /// Drops the certificate and the key of an identity that is gone from here.
    pub fn forget(&self, identity: &Identity) {
        self.certificates.rcu(|all| {
            let mut next = HashMap::clone(all);
            next.remove(identity);
            next
        });
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Every certificate in use, in no particular order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<IssuedCertificate>> {
        self.certificates.load().values().cloned().collect()
    }

    /// Changes with every [`CertificateStore::set`] and [`CertificateStore::forget`].
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

impl Default for CertificateStore {
    fn default() -> Self {
        Self::new()
    }
}
