//! A pod, or something that takes a pod's place, as the mesh sees it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use culvert_identity::Identity;

use crate::name::{PolicyName, ServiceName, WorkloadUid};
use crate::service::{GatewayAddress, Port};

/// A source or destination of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The key.
    pub uid: WorkloadUid,
    /// The pod's name.
    pub name: Arc<str>,
    /// The Kubernetes namespace.
    pub namespace: Arc<str>,
    /// Who it is: trust domain and service account are read from here.
    pub identity: Identity,
    /// Its addresses, the preferred one first.
    pub addresses: Vec<IpAddr>,
    /// Name to resolve where there are no addresses; may be empty.
    pub hostname: Arc<str>,
    /// The network that its addresses belong to; empty for the default one.
    pub network: Arc<str>,
    /// How it is reached.
    pub tunnel_protocol: TunnelProtocol,
    /// Whether it terminates tunnels without a node proxy.
    pub native_tunnel: bool,
    /// The waypoint that its connections by address pass.
    pub waypoint: Option<GatewayAddress>,
    /// The way in from other networks.
    pub network_gateway: Option<GatewayAddress>,
    /// The node that it runs on.
    pub node: Arc<str>,
    /// The cluster that it runs in.
    pub cluster_id: Arc<str>,
    /// Application name, for telemetry.
    pub canonical_name: Arc<str>,
    /// Application version, for telemetry.
    pub canonical_revision: Arc<str>,
    /// What owns it, for telemetry.
    pub workload_type: WorkloadType,
    /// The owner's name, for telemetry.
    pub workload_name: Arc<str>,
    /// Policies that select it; global and namespace-wide ones apply besides.
    pub authorization_policies: Vec<PolicyName>,
    /// Policies that its own connections obey.
    pub egress_policies: Vec<PolicyName>,
    /// Peer sets that it is a member of.
    pub peer_sets: Vec<Arc<str>>,
    /// Whether it may be picked for a service.
    pub health: Health,
    /// The services that it is an endpoint of, each with the ports it resolves.
    pub services: BTreeMap<ServiceName, Vec<Port>>,
    /// How tunnelled connections are handed to the application, if not plainly.
    pub application_tunnel: Option<ApplicationTunnel>,
    /// Where it runs.
    pub locality: Locality,
    /// Whether it has a network namespace of its own.
    pub network_mode: NetworkMode,
    /// Its share of a service's connections; 0 for none.
    pub capacity: u32,
}

impl Workload {
    /// A workload with nothing but names: plain, healthy, without addresses.
    pub fn new(uid: WorkloadUid, name: impl Into<Arc<str>>, identity: Identity) -> Self {
        let empty: Arc<str> = Arc::from("");
        Self {
            uid,
            name: name.into(),
            namespace: Arc::from(identity.namespace()),
            identity,
            addresses: Vec::new(),
            hostname: empty.clone(),
            network: empty.clone(),
            tunnel_protocol: TunnelProtocol::None,
            native_tunnel: false,
            waypoint: None,
            network_gateway: None,
            node: empty.clone(),
            cluster_id: Arc::from("Kubernetes"),
            canonical_name: empty.clone(),
            canonical_revision: empty.clone(),
            workload_type: WorkloadType::Deployment,
            workload_name: empty,
            authorization_policies: Vec::new(),
            egress_policies: Vec::new(),
            peer_sets: Vec::new(),
            health: Health::Healthy,
            services: BTreeMap::new(),
            application_tunnel: None,
            locality: Locality::default(),
            network_mode: NetworkMode::Standard,
            capacity: 1,
        }
    }

    /// The Kubernetes service account.
    pub fn service_account(&self) -> &str {
        self.identity.service_account()
    }

    /// Whether connections to it must be tunnelled.
    pub fn is_meshed(&self) -> bool {
        self.tunnel_protocol == TunnelProtocol::Hbone
    }

    /// Whether it can connect to addresses of this one's family. One without any
    /// address is taken to have both.
    pub(crate) fn has_family(&self, ip: IpAddr) -> bool {
        let own = &self.addresses;
        own.is_empty() || own.iter().any(|own| own.is_ipv4() == ip.is_ipv4())
    }

    /// Whether it is a member of the peer set.
    pub fn is_in_set(&self, set: &str) -> bool {
        self.peer_sets.iter().any(|name| **name == *set)
    }
}

/// How a workload is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TunnelProtocol {
    /// Plain TCP: it is not in the mesh.
    None,
    /// Through a mutually authenticated tunnel, and in no other way.
    Hbone,
}

/// Whether a workload may be picked for a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// Ready for connections.
    Healthy,
    /// Not ready, or on its way out.
    Unhealthy,
}

/// What owns a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkloadType {
    /// A Deployment.
    Deployment,
    /// A CronJob.
    CronJob,
    /// Nothing but the pod itself.
    Pod,
    /// A Job.
    Job,
}

impl WorkloadType {
    /// The name used in telemetry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::CronJob => "cronjob",
            Self::Pod => "pod",
            Self::Job => "job",
        }
    }
}

/// Whether a workload has a network namespace of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetworkMode {
    /// It has.
    Standard,
    /// It shares its node's, so that its addresses do not tell who it is.
    HostNetwork,
}

/// How the tunnel's last hop reaches the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ApplicationTunnel {
    /// What precedes the application's bytes.
    pub protocol: ApplicationProtocol,
    /// The port that replaces the one asked for.
    pub port: Option<u16>,
}

/// What precedes the application's bytes on the last hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApplicationProtocol {
    /// Nothing.
    None,
    /// A PROXY protocol header, version 2.
    Proxy,
}

/// Where a workload runs; parts that are not known are empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Locality {
    /// The region.
    pub region: Arc<str>,
    /// The zone of the region.
    pub zone: Arc<str>,
    /// The part of the zone.
    pub subzone: Arc<str>,
}
