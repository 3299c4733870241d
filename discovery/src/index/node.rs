//! Nodes and their leases.

use std::time::{Duration, SystemTime};

use k8s_openapi::{
    api::{coordination::v1, core::v1 as core},
    jiff::Timestamp,
};

/// The namespace in which nodes renew their leases.
pub(super) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// What the mesh needs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `topology.kubernetes.io/region`.
    pub region: String,
    /// `topology.kubernetes.io/zone`.
    pub zone: String,
    /// `topology.istio.io/subzone`.
    pub subzone: String,
    /// Condition Ready; a node that says nothing is ready.
    pub ready: bool,
}

impl From<&core::Node> for Node {
    fn from(node: &core::Node) -> Self {
        let label = |key: &str| {
            let labels = node.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get(key))
                .cloned()
                .unwrap_or_default()
        };
        let conditions = node
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten());
        let ready = conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready");
        Self {
            region: label("topology.kubernetes.io/region"),
            zone: label("topology.kubernetes.io/zone"),
            subzone: label("topology.istio.io/subzone"),
            ready: ready.is_none_or(|condition| condition.status == "True"),
        }
    }
}

/// Kubernetes' time as the system's; none for what the system cannot say.
pub(super) fn system_time(time: Timestamp) -> Option<SystemTime> {
    let nanoseconds = u128::try_from(time.as_nanosecond()).ok()?;
    let seconds = u64::try_from(nanoseconds / 1_000_000_000).ok()?;
    let rest = u32::try_from(nanoseconds % 1_000_000_000).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, rest))
}

/// Until when a node is known to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    renewed: Option<SystemTime>,
    lasts: Duration,
}

impl From<&v1::Lease> for Lease {
    fn from(lease: &v1::Lease) -> Self {
        let spec = lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
        Self {
            renewed: renewed.and_then(|time| system_time(time.0)),
            // 40 s is what Kubernetes takes for a node's lease.
            lasts: Duration::from_secs(seconds.unwrap_or(40)),
        }
    }
}

impl Lease {
    /// When it ends; never if it does not say when it was renewed.
    pub fn end(self) -> Option<SystemTime> {
        self.renewed?.checked_add(self.lasts)
    }

    /// Whether it holds.
    pub fn holds(self, now: SystemTime) -> bool {
        self.end().is_none_or(|end| now < end)
    }
}

/// Whether workloads of a node can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// They can.
    Alive,
    /// It is not ready, or has not renewed its lease.
    Dead,
}
