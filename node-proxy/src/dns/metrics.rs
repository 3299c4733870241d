//! Counters of the DNS proxy, under the names of Istio's.

use std::time::Duration;

use culvert_runtime::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

/// Clones share the counters.
#[derive(Debug, Clone)]
pub struct DnsMetrics {
    pub(super) requests: Counter,
    pub(super) dropped: Counter,
    asked: Counter,
    failures: Counter,
    duration: Histogram,
}

impl DnsMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(metrics: &Metrics) -> Self {
        let own = Self {
            requests: Counter::default(),
            dropped: Counter::default(),
            asked: Counter::default(),
            failures: Counter::default(),
            duration: Histogram::new([0.0005, 0.001, 0.01, 0.1, 1.0, 5.0]),
        };
        metrics.register(|registry| {
            let mut counter = |name, help, counter: &Counter| {
                registry.register(name, help, counter.clone());
            };
            counter("istio_dns_requests", "DNS queries of pods", &own.requests);
            counter(
                "istio_dns_upstream_requests",
                "DNS queries sent on to the machine's servers",
                &own.asked,
            );
            counter(
                "istio_dns_upstream_failures",
                "DNS queries that a server of the machine did not answer",
                &own.failures,
            );
            counter(
                "culvert_dns_queries_dropped",
                "DNS queries dropped because the pod had too many under way",
                &own.dropped,
            );
            registry.register(
                "istio_dns_upstream_request_duration_seconds",
                "How long a server of the machine took",
                own.duration.clone(),
            );
        });
        own
    }

    pub(super) fn asked(&self, took: Duration, answered: bool) {
        self.asked.inc();
        self.duration.observe(took.as_secs_f64());
        if !answered {
            self.failures.inc();
        }
    }
}
