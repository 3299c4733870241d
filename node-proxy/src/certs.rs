//! Certificates of the identities of this node's pods: asked for, renewed, kept.
//!
//! A certificate is asked for when a pod appears, at once when a connection waits
//! for it, and again at half of its life. The last good one stays in use until it
//! expires, whatever the CA says meanwhile.

mod authority;
mod metrics;
mod roots;
mod schedule;
mod task;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_identity::Identity;
use culvert_runtime::Clock;
use culvert_tls::{CertificateStore, IssuedCertificate};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

pub use authority::{Authority, CaClient, CaConfig, IssueError};
pub use metrics::CertificateMetrics;
pub use roots::follow_roots;
pub use task::CertificateTask;

/// How long a connection waits for a certificate: as long as for its record.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(5);

/// Each pod sends two in its life, and a burst waits in the sender.
const COMMANDS_MAX: usize = 256;

/// Hands out certificates. Clones share everything.
#[derive(Debug, Clone)]
pub struct Certificates {
    store: Arc<CertificateStore>,
    clock: Arc<dyn Clock>,
    /// None where all certificates are given from the start.
    commands: Option<mpsc::Sender<Command>>,
    failures: Failures,
}

/// Why the last request for an identity failed; empty once one succeeds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures(Arc<Mutex<HashMap<Identity, Arc<str>>>>);

impl Failures {
    pub(crate) fn note(&self, identity: Identity, reason: Arc<str>) {
        self.lock().insert(identity, reason);
    }

    pub(crate) fn clear(&self, identity: &Identity) {
        self.lock().remove(identity);
    }

    // Held for one map operation, never across an await.
    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) enum Command {
    /// A pod of this identity is here.
    Acquire(Identity),
    /// A pod of this identity is gone.
    Release(Identity),
    /// A connection waits.
    Demand(Identity, oneshot::Sender<Result<(), Arc<str>>>),
}

/// A certificate that a connection cannot have.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no certificate for {identity}: {reason}")]
pub struct CertificateUnavailable {
    /// Whose.
    pub identity: Identity,
    /// The last failure, in words.
    pub reason: Arc<str>,
}

impl Certificates {
    /// Certificates that were given from outside and never change: what is not in
    /// the store cannot be had.
    #[must_use]
    pub fn fixed(store: Arc<CertificateStore>, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            commands: None,
            failures: Failures::default(),
        }
    }

    /// Certificates of a CA, and the task that gets them.
    pub fn issued<A: Authority>(
        authority: A,
        clock: Arc<dyn Clock>,
        metrics: CertificateMetrics,
    ) -> (Self, CertificateTask<A>) {
        let store = Arc::new(CertificateStore::new());
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let task =
            CertificateTask::new(authority, commands, Arc::clone(&store), Arc::clone(&clock));
        let failures = task.failures();
        (
            Self {
                store,
                clock,
                commands: Some(sender),
                failures,
            },
            task.with_metrics(metrics),
        )
    }

    /// What is in use now.
    #[must_use]
    pub fn store(&self) -> &Arc<CertificateStore> {
        &self.store
    }

    /// Why the last request for an identity failed, if it did.
    #[must_use]
    pub fn failure(&self, identity: &Identity) -> Option<Arc<str>> {
        self.failures.lock().get(identity).cloned()
    }

    /// Identities without a certificate whose last request failed, with the reason.
    #[must_use]
    pub fn failures(&self) -> Vec<(Identity, Arc<str>)> {
        let failures = self.failures.lock();
        failures
            .iter()
            .map(|(identity, reason)| (identity.clone(), reason.clone()))
            .collect()
    }

    /// The certificate to show in a handshake. There is one at hand, except right
    /// after the start of a pod or when the CA was away for long.
    ///
    /// # Errors
    /// When there is none within 5 s.
    ///
    /// # Cancel safety
    /// The request to the CA goes on for the next caller.
    pub async fn certificate(
        &self,
        identity: &Identity,
    ) -> Result<Arc<IssuedCertificate>, CertificateUnavailable> {
        if let Some(certificate) = self.store.usable(identity, self.clock.now()) {
            return Ok(certificate);
        }
        let unavailable = |reason: Arc<str>| CertificateUnavailable {
            identity: identity.clone(),
            reason,
        };
        let Some(commands) = &self.commands else {
            return Err(unavailable("none was given".into()));
        };
        let (answer, answered) = oneshot::channel();
        let demand = async {
            if commands
                .send(Command::Demand(identity.clone(), answer))
                .await
                .is_err()
            {
                return Err(Arc::from("the proxy is stopping"));
            }
            answered
                .await
                .unwrap_or_else(|_| Err("the proxy is stopping".into()))
        };
        match timeout(CERTIFICATE_WAIT, demand).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return Err(unavailable(reason)),
            Err(_) => {
                let last = self.failure(identity);
                return Err(unavailable(
                    last.unwrap_or("the CA has not answered yet".into()),
                ));
            }
        }
        self.store
            .usable(identity, self.clock.now())
            .ok_or_else(|| unavailable("it has expired".into()))
    }

    /// A pod of this identity is here: gets its certificate ready.
    pub async fn acquire(&self, identity: &Identity) {
        self.tell(Command::Acquire(identity.clone())).await;
    }

    /// A pod of this identity is gone: with the last one go key and certificate.
    pub async fn release(&self, identity: &Identity) {
        self.tell(Command::Release(identity.clone())).await;
    }

    async fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // Fails only while the process stops, when nobody needs it any more.
            let _ = commands.send(command).await;
        }
    }
}

#[cfg(test)]
mod tests;
