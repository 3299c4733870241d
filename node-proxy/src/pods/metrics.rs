//! How many pods are served.

use culvert_runtime::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// Counters and gauges of pods, under the names that ztunnel's dashboards use.
#[derive(Debug, Clone, Default)]
pub struct PodMetrics {
    active: Gauge,
    pending: Gauge,
    pub(super) started: Counter,
    pub(super) stopped: Counter,
}

impl PodMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.register(|registry| {
            let mut gauge =
                |name, help, gauge: &Gauge| registry.register(name, help, gauge.clone());
            gauge(
                "workload_manager_active_proxy_count",
                "Pods that are served",
                &own.active,
            );
            gauge(
                "workload_manager_pending_proxy_count",
                "Pods whose start failed and is tried again",
                &own.pending,
            );
            registry.register(
                "workload_manager_proxies_started",
                "Starts of pods that succeeded",
                own.started.clone(),
            );
            registry.register(
                "workload_manager_proxies_stopped",
                "Pods that are served no more",
                own.stopped.clone(),
            );
        });
        own
    }

    pub(super) fn count(&self, pods: usize, pending: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.active.set(number(pods - pending));
        self.pending.set(number(pending));
    }
}
