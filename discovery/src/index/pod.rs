//! Pods.

use std::{net::IpAddr, sync::Arc};

use culvert_kubeyaml::selector::Labels;
use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta};

/// Annotation that the agent writes once a pod's redirection stands.
const ENROLLED: &str = "culvert.dev/enrolled";

/// The kinds that own pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerKind {
    /// Deployment.
    Deployment,
    /// ReplicaSet.
    ReplicaSet,
    /// Job.
    Job,
    /// CronJob.
    CronJob,
    /// Anything else.
    Other,
}

/// What owns a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Kind.
    pub kind: OwnerKind,
    /// Name.
    pub name: Arc<str>,
}

/// What the mesh needs of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Labels.
    pub labels: Labels,
    /// Node that it runs on; empty while it is not scheduled.
    pub node: Arc<str>,
    /// Service account.
    pub service_account: Arc<str>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it has the node's network.
    pub host_network: bool,
    /// Whether its traffic is redirected into tunnels.
    pub enrolled: bool,
    /// Condition Ready.
    pub ready: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether it has ended for good.
    pub terminal: bool,
    /// Its host name under `subdomain`.
    pub hostname: Option<String>,
    /// The headless service that names it.
    pub subdomain: Option<String>,
    /// What owns it.
    pub owner: Option<Owner>,
    /// TCP ports by name.
    pub ports: Vec<(String, u16)>,
}

impl Pod {
    /// The number of a named port.
    pub fn port(&self, name: &str) -> Option<u16> {
        let mut named = self.ports.iter().filter(|(other, _)| other == name);
        named.next().map(|(_, port)| *port)
    }

    pub(super) fn owner_by_hash(&self) -> Option<Owner> {
        let owner = self.owner.as_ref()?;
        let hash = self.labels.get("pod-template-hash")?;
        let name = owner.name.strip_suffix(hash.as_str())?.strip_suffix('-')?;
        (owner.kind == OwnerKind::ReplicaSet).then(|| Owner {
            kind: OwnerKind::Deployment,
            name: name.into(),
        })
    }
}

impl From<&core::Pod> for Pod {
    fn from(pod: &core::Pod) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let annotations = pod.metadata.annotations.as_ref();
        let conditions = status.iter().flat_map(|s| s.conditions.iter().flatten());
        let mut conditions = conditions.filter(|condition| condition.type_ == "Ready");
        let phase = status.and_then(|status| status.phase.as_deref());
        let account = spec.and_then(|spec| spec.service_account_name.as_deref());
        Self {
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            node: spec
                .and_then(|s| s.node_name.as_deref())
                .unwrap_or_default()
                .into(),
            service_account: account
                .filter(|a| !a.is_empty())
                .unwrap_or("default")
                .into(),
            addresses: addresses(status),
            host_network: spec.and_then(|spec| spec.host_network).unwrap_or(false),
            enrolled: annotations.is_some_and(|a| a.get(ENROLLED).is_some_and(|v| v == "true")),
            ready: conditions
                .next()
                .is_some_and(|ready| ready.status == "True"),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            terminal: matches!(phase, Some("Succeeded" | "Failed")),
            hostname: spec.and_then(|spec| spec.hostname.clone()),
            subdomain: spec.and_then(|spec| spec.subdomain.clone()),
            owner: controller(&pod.metadata),
            ports: ports(spec),
        }
    }
}

fn addresses(status: Option<&core::PodStatus>) -> Vec<IpAddr> {
    let list = status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten());
    let mut addresses: Vec<IpAddr> = list.filter_map(|ip| ip.ip.parse().ok()).collect();
    if addresses.is_empty() {
        let single = status.and_then(|status| status.pod_ip.as_ref());
        addresses.extend(single.and_then(|ip| ip.parse::<IpAddr>().ok()));
    }
    addresses
}

fn ports(spec: Option<&core::PodSpec>) -> Vec<(String, u16)> {
    let Some(spec) = spec else {
        return Vec::new();
    };
    // A sidecar is an init container that goes on running.
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .filter(|port| {
            port.protocol
                .as_deref()
                .is_none_or(|protocol| protocol == "TCP")
        })
        .filter_map(|port| Some((port.name.clone()?, u16::try_from(port.container_port).ok()?)))
        .collect()
}

/// The owner that manages an object.
pub(super) fn controller(meta: &ObjectMeta) -> Option<Owner> {
    let mut owners = meta.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(Owner {
        kind: match owner.kind.as_str() {
            "Deployment" => OwnerKind::Deployment,
            "ReplicaSet" => OwnerKind::ReplicaSet,
            "Job" => OwnerKind::Job,
            "CronJob" => OwnerKind::CronJob,
            _ => OwnerKind::Other,
        },
        name: owner.name.as_str().into(),
    })
}
