//! Keeps the serving certificate fresh. The last good one stays in use until
//! another is there, even past its end: that is for clients to judge.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use culvert_runtime::{Backoff, Clock, ConditionHandle, DrainWatch, chain};
use culvert_tls::{ControlPlaneServer, IssuedCertificate};
use tokio::sync::watch;

use super::ca_client::CaClient;
use crate::metrics::DiscoveryMetrics;

/// Looked at this often by the wall clock: a machine that slept is late by no
/// more than this.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// The CA may just be restarting; it must not be kept from it by our asking.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(15);
/// Replicas that started together do not renew together.
const JITTER: f64 = 0.2;

/// Gets and renews the certificate.
#[derive(Debug)]
pub struct CertificateKeeper {
    /// Where it comes from.
    pub ca: CaClient,
    /// Where it goes.
    pub server: watch::Sender<Option<ControlPlaneServer>>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Whether there is one.
    pub ready: ConditionHandle,
    /// Counts failures.
    pub metrics: DiscoveryMetrics,
}

impl CertificateKeeper {
    /// Runs until the drain starts.
    ///
    /// # Cancel safety
    /// The certificate that is in use stays in use.
    pub async fn run(self, drain: DrainWatch) {
        tokio::select! {
            () = self.keep() => {}
            _ = drain.started() => {}
        }
    }

    async fn keep(&self) {
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX, JITTER);
        loop {
            match self.ca.request().await {
                Ok(certificate) => {
                    backoff.reset();
                    self.take(&certificate);
                    self.wait_for_renewal(&certificate).await;
                }
                Err(error) => {
                    self.metrics.certificate_failed();
                    tracing::warn!(error = chain(&error), "no serving certificate");
                    if self.server.borrow().is_none() {
                        self.ready.set_not_ready(chain(&error));
                    }
                    backoff.wait().await;
                }
            }
        }
    }

    fn take(&self, certificate: &IssuedCertificate) {
        let expires = certificate.certificate().not_after();
        let seconds = expires
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        self.metrics
            .certificate(i64::try_from(seconds).unwrap_or(i64::MAX));
        let serial = certificate.certificate().serial();
        tracing::info!(serial, expires = seconds, "serving certificate");
        self.server.send_if_modified(|server| match server {
            Some(server) => {
                server.replace(certificate);
                false
            }
            None => {
                *server = Some(ControlPlaneServer::new(certificate));
                true
            }
        });
        self.ready.set_ready();
    }

    async fn wait_for_renewal(&self, certificate: &IssuedCertificate) {
        let half = certificate.certificate().half_life();
        let left = half.duration_since(self.clock.now()).unwrap_or_default();
        let earlier = Backoff::new(left.mul_f64(JITTER), left, 0.9).next_delay();
        let renew = half.checked_sub(earlier).unwrap_or(half);
        while let Ok(left) = renew.duration_since(self.clock.now()) {
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_INTERVAL)).await;
        }
    }
}
