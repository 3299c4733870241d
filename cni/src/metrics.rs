//! The agent's metrics. No label takes a value from a pod: the series are fixed.

use std::fmt::{self, Write};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::state::Summary;

/// How a job in a pod's namespace ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobResult {
    /// Something was written.
    Changed,
    /// All was as wanted.
    Unchanged,
    /// The rules were taken out.
    Removed,
    /// It failed.
    Failed,
}

/// How a CNI ADD ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddResult {
    /// The pod is enrolled.
    Enrolled,
    /// The pod is none of the mesh.
    NotEnrolled,
    /// The runtime will try again.
    Failed,
}

impl EncodeLabelValue for JobResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Removed => "removed",
            Self::Failed => "failed",
        })
    }
}

impl EncodeLabelValue for AddResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(match self {
            Self::Enrolled => "enrolled",
            Self::NotEnrolled => "not_enrolled",
            Self::Failed => "failed",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabels {
    result: JobResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddLabels {
    result: AddResult,
}

/// All metrics of the agent.
#[derive(Debug, Clone)]
pub struct AgentMetrics {
    enrolled: Gauge,
    not_captured: Gauge,
    connections: Gauge,
    sockets: Gauge,
    jobs: Family<JobLabels, Counter>,
    adds: Family<AddLabels, Histogram, fn() -> Histogram>,
}

/// 5 ms to 41 s: a good ADD takes some milliseconds, the deadline is 30 s.
fn add_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 14))
}

impl AgentMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            enrolled: Gauge::default(),
            not_captured: Gauge::default(),
            connections: Gauge::default(),
            sockets: Gauge::default(),
            jobs: Family::default(),
            adds: Family::new_with_constructor(add_buckets),
        };
        registry.register(
            "culvert_cni_pods_enrolled",
            "Pods of this node whose traffic passes the node proxy",
            metrics.enrolled.clone(),
        );
        registry.register(
            "culvert_cni_pods_not_captured",
            "Pods of this node that belong to the mesh but are not enrolled",
            metrics.not_captured.clone(),
        );
        registry.register(
            "culvert_cni_zds_connections",
            "Connections of node proxies",
            metrics.connections.clone(),
        );
        registry.register(
            "culvert_cni_kept_sockets",
            "Listening sockets kept for node proxies",
            metrics.sockets.clone(),
        );
        registry.register(
            "culvert_cni_rule_applications",
            "Times that rules of a pod were applied or looked at, by result",
            metrics.jobs.clone(),
        );
        registry.register(
            "culvert_cni_add_duration_seconds",
            "Time to answer a CNI ADD, by result",
            metrics.adds.clone(),
        );
        metrics
    }

    /// Shows the state.
    pub fn show(&self, summary: &Summary, sockets: usize) {
        let gauge = |gauge: &Gauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        gauge(&self.enrolled, summary.enrolled);
        gauge(&self.not_captured, summary.not_captured);
        gauge(&self.connections, summary.proxies);
        gauge(&self.sockets, sockets);
    }

    /// Counts a job.
    pub fn job(&self, result: JobResult) {
        self.jobs.get_or_create(&JobLabels { result }).inc();
    }

    /// Notes an answered ADD.
    pub fn add(&self, result: AddResult, seconds: f64) {
        let labels = AddLabels { result };
        self.adds.get_or_create(&labels).observe(seconds);
    }
}
