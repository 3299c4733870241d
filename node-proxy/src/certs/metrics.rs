//! What the certificates of this node are doing.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use culvert_runtime::Metrics;
use culvert_tls::CertificateStore;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;

/// Counters of requests to the CA. Clones share them.
#[derive(Debug, Clone)]
pub struct CertificateMetrics {
    requests: Family<ResultLabel, Counter>,
    in_flight: Gauge,
    duration: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: RequestResult,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "they are the label's values")]
pub(crate) enum RequestResult {
    issued,
    refused,
    unreachable,
    unusable,
}

impl CertificateMetrics {
    /// Registers the counters, and the expiry of every certificate in the store.
    #[must_use]
    pub fn register(metrics: &Metrics) -> Self {
        let own = Self {
            requests: Family::default(),
            in_flight: Gauge::default(),
            duration: Histogram::new([0.005, 0.02, 0.1, 0.5, 2.0, 10.0]),
        };
        metrics.register(|registry| {
            registry.register(
                "culvert_certificate_requests",
                "Requests to the CA by result",
                own.requests.clone(),
            );
            registry.register(
                "culvert_certificate_requests_in_flight",
                "Requests to the CA that wait for an answer",
                own.in_flight.clone(),
            );
            registry.register(
                "culvert_certificate_request_duration_seconds",
                "How long the CA takes to answer",
                own.duration.clone(),
            );
        });
        own
    }

    /// Registers the expiry of every certificate in the store.
    pub fn register_expiry(metrics: &Metrics, store: Arc<CertificateStore>) {
        metrics.register(|registry| registry.register_collector(Box::new(Expiry(store))));
    }

    pub(crate) fn asked(&self) {
        self.in_flight.inc();
    }

    pub(crate) fn answered(&self, result: RequestResult, seconds: f64) {
        self.in_flight.dec();
        self.duration.observe(seconds);
        self.requests.get_or_create(&ResultLabel { result }).inc();
    }
}

/// One series for each identity of this node's pods; gone with the last pod.
#[derive(Debug)]
struct Expiry(Arc<CertificateStore>);

impl Collector for Expiry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut metric = encoder.encode_descriptor(
            "culvert_certificate_expiry_timestamp_seconds",
            "When the certificate in use for an identity expires",
            None,
            MetricType::Gauge,
        )?;
        let mut all = self.0.all();
        all.sort_by(|a, b| a.identity().cmp(b.identity()));
        for certificate in all {
            let labels = [("identity", certificate.identity().uri())];
            let gauge = ConstGauge::new(seconds(certificate.certificate().not_after()));
            gauge.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
