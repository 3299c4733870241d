//! Metrics of discovery. Labels are closed sets.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use culvert_kubeyaml::Kind;
use culvert_runtime::Metrics;
use culvert_xds::ResourceType;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counters, gauges and histograms; clones share them.
#[derive(Clone, Debug)]
pub struct DiscoveryMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    objects: Family<KindLabel, Gauge>,
    rejected_objects: Family<KindLabel, Gauge>,
    source_faults: Gauge,
    compile_seconds: Histogram,
    changed_resources: Counter,
    pushes: Family<TypeLabel, Counter>,
    pushed_resources: Family<TypeLabel, Counter>,
    push_seconds: Histogram,
    connected_nodes: Gauge,
    rejections: Family<TypeLabel, Counter>,
    refused_callers: Family<ReasonLabel, Counter>,
    handshakes_failed: Family<ReasonLabel, Counter>,
    status_write_failures: Counter,
    certificate_expiry: Gauge,
    certificate_failures: Counter,
}

impl DiscoveryMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let seconds = [
            0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
        ];
        let inner = Inner {
            objects: Family::default(),
            rejected_objects: Family::default(),
            source_faults: Gauge::default(),
            compile_seconds: Histogram::new(seconds),
            changed_resources: Counter::default(),
            pushes: Family::default(),
            pushed_resources: Family::default(),
            push_seconds: Histogram::new(seconds),
            connected_nodes: Gauge::default(),
            rejections: Family::default(),
            refused_callers: Family::default(),
            handshakes_failed: Family::default(),
            status_write_failures: Counter::default(),
            certificate_expiry: Gauge::default(),
            certificate_failures: Counter::default(),
        };
        metrics.register(|registry| inner.register(registry));
        Self(Arc::new(inner))
    }

    pub(crate) fn objects(&self, counts: &BTreeMap<Kind, usize>) {
        for (kind, count) in counts {
            set(&self.0.objects, *kind, *count);
        }
    }

    pub(crate) fn rejected_objects(&self, rejected: &BTreeMap<Kind, usize>) {
        for kind in Kind::ALL {
            set(
                &self.0.rejected_objects,
                *kind,
                rejected.get(kind).copied().unwrap_or(0),
            );
        }
    }

    pub(crate) fn source_faults(&self, count: usize) {
        self.0.source_faults.set(gauge(count));
    }

    pub(crate) fn compiled(&self, took: Duration, changed: usize) {
        self.0.compile_seconds.observe(took.as_secs_f64());
        self.0.changed_resources.inc_by(changed as u64);
    }

    pub(crate) fn pushed(&self, type_url: &str, resources: usize) {
        let label = TypeLabel {
            r#type: type_name(type_url),
        };
        self.0.pushes.get_or_create(&label).inc();
        self.0
            .pushed_resources
            .get_or_create(&label)
            .inc_by(resources as u64);
    }

    pub(crate) fn push_took(&self, took: Duration) {
        self.0.push_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn connected(&self, count: usize) {
        self.0.connected_nodes.set(gauge(count));
    }

    pub(crate) fn rejected(&self, type_url: &str) {
        let label = TypeLabel {
            r#type: type_name(type_url),
        };
        self.0.rejections.get_or_create(&label).inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.0
            .refused_callers
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    pub(crate) fn handshake_failed(&self, reason: &'static str) {
        self.0
            .handshakes_failed
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    pub(crate) fn status_write_failed(&self) {
        self.0.status_write_failures.inc();
    }

    pub(crate) fn certificate(&self, expiry: i64) {
        self.0.certificate_expiry.set(expiry);
    }

    pub(crate) fn certificate_failed(&self) {
        self.0.certificate_failures.inc();
    }
}

fn set(family: &Family<KindLabel, Gauge>, kind: Kind, count: usize) {
    let label = KindLabel { kind: kind.name() };
    family.get_or_create(&label).set(gauge(count));
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A client may ask for anything: only known types become labels.
fn type_name(type_url: &str) -> &'static str {
    ResourceType::from_url(type_url).map_or("other", ResourceType::as_str)
}

impl Inner {
    fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("culvert_discovery");
        registry.register(
            "objects",
            "Objects that exist, by kind",
            self.objects.clone(),
        );
        registry.register(
            "rejected_objects",
            "Objects whose newest form is not in force, by kind",
            self.rejected_objects.clone(),
        );
        registry.register(
            "source_faults",
            "Files and documents that cannot be read",
            self.source_faults.clone(),
        );
        registry.register(
            "compile_seconds",
            "From a change of objects to its publication",
            self.compile_seconds.clone(),
        );
        registry.register(
            "changed_resources",
            "Resources that changed or went away",
            self.changed_resources.clone(),
        );
        registry.register(
            "pushes",
            "Responses to node proxies, by type",
            self.pushes.clone(),
        );
        registry.register(
            "pushed_resources",
            "Resources in responses to node proxies, by type",
            self.pushed_resources.clone(),
        );
        registry.register(
            "push_seconds",
            "From a publication to a response that carries it",
            self.push_seconds.clone(),
        );
        registry.register(
            "connected_nodes",
            "Node proxies that are connected",
            self.connected_nodes.clone(),
        );
        registry.register(
            "rejections",
            "Resources that node proxies refused, by type",
            self.rejections.clone(),
        );
        self.register_callers(registry);
    }

    fn register_callers(&self, registry: &mut Registry) {
        registry.register(
            "refused_callers",
            "Callers that were refused, by reason",
            self.refused_callers.clone(),
        );
        registry.register(
            "handshakes_failed",
            "TLS handshakes that failed, by reason",
            self.handshakes_failed.clone(),
        );
        registry.register(
            "status_write_failures",
            "Statuses that could not be written",
            self.status_write_failures.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When the serving certificate expires",
            self.certificate_expiry.clone(),
        );
        registry.register(
            "certificate_failures",
            "Attempts to get a serving certificate that failed",
            self.certificate_failures.clone(),
        );
    }
}
