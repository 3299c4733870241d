//! Metrics of the CA.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use culvert_runtime::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::rotate::State;
use crate::store::seconds;

/// Counters and gauges of the CA; clones share them.
#[derive(Clone, Debug)]
pub struct CaMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    issued: Counter,
    refused: Family<Reason, Counter>,
    handshakes_failed: Family<Reason, Counter>,
    sign_seconds: Histogram,
    root_expiry: Gauge,
    intermediate_expiry: Gauge,
    server_certificate_expiry: Gauge,
    bundle_roots: Gauge,
    rotation_waiting: Gauge,
    reconcile_failures: Counter,
    requests_waiting: Gauge,
}

/// A label from a closed set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

impl CaMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let inner = Inner {
            issued: Counter::default(),
            refused: Family::default(),
            handshakes_failed: Family::default(),
            sign_seconds: Histogram::new([
                0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0,
            ]),
            root_expiry: Gauge::default(),
            intermediate_expiry: Gauge::default(),
            server_certificate_expiry: Gauge::default(),
            bundle_roots: Gauge::default(),
            rotation_waiting: Gauge::default(),
            reconcile_failures: Counter::default(),
            requests_waiting: Gauge::default(),
        };
        metrics.register(|registry| inner.register(registry));
        Self(Arc::new(inner))
    }

    pub(crate) fn issued(&self, took: Duration) {
        self.0.issued.inc();
        self.0.sign_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.0.refused.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn handshake_failed(&self, reason: &'static str) {
        let reason = Reason { reason };
        self.0.handshakes_failed.get_or_create(&reason).inc();
    }

    pub(crate) fn reconcile_failed(&self) {
        self.0.reconcile_failures.inc();
    }

    /// Counts a request as waiting until the answer is dropped.
    pub(crate) fn waiting(&self) -> Waiting {
        self.0.requests_waiting.inc();
        Waiting(self.clone())
    }

    pub(crate) fn authority(&self, state: &State) {
        let roots = 1 + state.retired.len() + usize::from(state.next.is_some());
        let inner = &self.0;
        inner
            .root_expiry
            .set(timestamp(state.active.root.validity().not_after));
        let intermediate = state.active.intermediate.validity();
        inner
            .intermediate_expiry
            .set(timestamp(intermediate.not_after));
        inner
            .bundle_roots
            .set(i64::try_from(roots).unwrap_or(i64::MAX));
        inner.rotation_waiting.set(i64::from(state.next.is_some()));
    }

    pub(crate) fn server_certificate(&self, not_after: SystemTime) {
        self.0.server_certificate_expiry.set(timestamp(not_after));
    }
}

/// A request that waits for a pod's object.
#[derive(Debug)]
pub(crate) struct Waiting(CaMetrics);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.requests_waiting.dec();
    }
}

impl Inner {
    fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        let registry = registry.sub_registry_with_prefix("culvert_ca");
        registry.register(
            "certificates_issued",
            "Certificates signed",
            self.issued.clone(),
        );
        registry.register(
            "refusals",
            "Requests refused, by reason",
            self.refused.clone(),
        );
        registry.register(
            "handshake_failures",
            "TLS handshakes that failed, by reason",
            self.handshakes_failed.clone(),
        );
        registry.register(
            "sign_duration_seconds",
            "Time to check a certificate request and sign the certificate",
            self.sign_seconds.clone(),
        );
        registry.register(
            "root_expiry_timestamp_seconds",
            "When the signing root expires",
            self.root_expiry.clone(),
        );
        registry.register(
            "intermediate_expiry_timestamp_seconds",
            "When the signing intermediate expires",
            self.intermediate_expiry.clone(),
        );
        registry.register(
            "server_certificate_expiry_timestamp_seconds",
            "When the CA's own server certificate expires",
            self.server_certificate_expiry.clone(),
        );
        registry.register(
            "bundle_roots",
            "Roots in the bundle",
            self.bundle_roots.clone(),
        );
        registry.register(
            "root_rotation_waiting",
            "1 while a new root is published and does not sign yet",
            self.rotation_waiting.clone(),
        );
        registry.register(
            "reconcile_failures",
            "Failures to keep the state or publish the bundle",
            self.reconcile_failures.clone(),
        );
        registry.register(
            "requests_waiting",
            "Requests that wait for the object of a pod",
            self.requests_waiting.clone(),
        );
    }
}

fn timestamp(time: SystemTime) -> i64 {
    i64::try_from(seconds(time)).unwrap_or(i64::MAX)
}
