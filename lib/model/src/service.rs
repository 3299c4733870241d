//! A name with addresses, behind which workloads stand.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_identity::Identity;
use ipnet::IpNet;

use crate::name::ServiceName;

/// A service, with or without virtual addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The key: namespace and hostname.
    pub name: ServiceName,
    /// The object's short name.
    pub short_name: Arc<str>,
    /// Virtual addresses; none for a headless service.
    pub addresses: Vec<NetworkAddress>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Further identities that its endpoints may prove.
    pub subject_alt_names: Vec<Identity>,
    /// The waypoint that its connections pass.
    pub waypoint: Option<GatewayAddress>,
    /// Waypoints among which connections are spread; outranks `waypoint`
    /// unless all weights are 0.
    pub weighted_waypoints: Vec<WeightedWaypoint>,
    /// How an endpoint is chosen.
    pub load_balancing: LoadBalancing,
    /// The families of endpoint addresses that may be picked.
    pub ip_families: IpFamilies,
    /// Whether it wins over other namespaces' services of the same name or address.
    pub canonical: bool,
    /// Whether gateways pass its waypoint too.
    pub ingress_use_waypoint: bool,
    /// Who may see it.
    pub visibility: Visibility,
}

impl Service {
    /// A service with nothing but a name.
    pub fn new(name: ServiceName, short_name: impl Into<Arc<str>>) -> Self {
        Self {
            name,
            short_name: short_name.into(),
            addresses: Vec::new(),
            ports: Vec::new(),
            subject_alt_names: Vec::new(),
            waypoint: None,
            weighted_waypoints: Vec::new(),
            load_balancing: LoadBalancing::default(),
            ip_families: IpFamilies::Automatic,
            canonical: false,
            ingress_use_waypoint: false,
            visibility: Visibility::Public,
        }
    }

    /// The port of that number.
    pub fn port(&self, service_port: u16) -> Option<&Port> {
        self.ports
            .iter()
            .find(|port| port.service_port == service_port)
    }

    /// Whether a client of the namespace may see it.
    pub fn is_visible_from(&self, namespace: &str) -> bool {
        self.visibility == Visibility::Public || *self.name.namespace == *namespace
    }

    /// Its virtual addresses that are single ones, in any network.
    pub fn host_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses
            .iter()
            .filter(|address| address.is_host())
            .map(|address| address.net.addr())
    }
}

/// An address, or a range of them, of a network.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkAddress {
    /// The network; empty for the default one.
    pub network: Arc<str>,
    /// The range; a full-length prefix is a single address.
    pub net: IpNet,
}

impl NetworkAddress {
    /// A single address of a network.
    pub fn host(network: impl Into<Arc<str>>, ip: IpAddr) -> Self {
        Self {
            network: network.into(),
            net: IpNet::from(ip),
        }
    }

    /// Whether it is a single address.
    pub fn is_host(&self) -> bool {
        self.net.prefix_len() == self.net.max_prefix_len()
    }
}

/// A port of a service, or what an endpoint makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Port {
    /// The port that clients name.
    pub service_port: u16,
    /// The application's port; `None` where only an endpoint can tell it.
    pub target_port: Option<u16>,
    /// What is spoken on it.
    pub app_protocol: AppProtocol,
}

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppProtocol {
    /// Not declared.
    Unknown,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2.
    Http2,
    /// gRPC.
    Grpc,
    /// Bytes.
    Tcp,
    /// TLS.
    Tls,
}

/// Where a waypoint or gateway is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatewayAddress {
    /// Its service or workload.
    pub destination: GatewayDestination,
    /// The port on which it accepts tunnels.
    pub hbone_port: u16,
}

/// How a gateway is named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GatewayDestination {
    /// By its service's name, or else its workload's hostname.
    Hostname(ServiceName),
    /// By a virtual address of its service, or else its workload's address.
    Address {
        /// The network that the address belongs to.
        network: Arc<str>,
        /// The address.
        ip: IpAddr,
    },
}

/// One of several waypoints of a service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightedWaypoint {
    /// Where it is.
    pub destination: GatewayAddress,
    /// Its share of the connections.
    pub weight: u32,
}

/// How an endpoint of a service is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LoadBalancing {
    /// What an endpoint should have in common with the client, most important first.
    pub routing_preference: Vec<RoutingScope>,
    /// What the preference means.
    pub mode: LoadBalancingMode,
    /// Whether unhealthy endpoints count.
    pub health_policy: HealthPolicy,
}

/// What an endpoint may have in common with the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoutingScope {
    /// The region.
    Region,
    /// The zone.
    Zone,
    /// The part of the zone.
    Subzone,
    /// The node.
    Node,
    /// The cluster.
    Cluster,
    /// The network.
    Network,
}

/// What a routing preference means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LoadBalancingMode {
    /// Nothing: all endpoints are equal.
    #[default]
    Unspecified,
    /// Endpoints that do not match every scope are left out.
    Strict,
    /// Endpoints that match more of the leading scopes are taken first.
    Failover,
    /// No endpoint is chosen: the connection goes where the client said, plainly.
    Passthrough,
}

/// Whether unhealthy endpoints count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HealthPolicy {
    /// They do not.
    #[default]
    OnlyHealthy,
    /// They do.
    AllowAll,
}

/// The families of endpoint addresses that may be picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IpFamilies {
    /// Any.
    Automatic,
    /// IPv4 only.
    Ipv4Only,
    /// IPv6 only.
    Ipv6Only,
    /// Both.
    Dual,
}

impl IpFamilies {
    /// Whether an address of that family may be picked.
    pub fn allows(self, ip: IpAddr) -> bool {
        match self {
            Self::Automatic | Self::Dual => true,
            Self::Ipv4Only => ip.is_ipv4(),
            Self::Ipv6Only => ip.is_ipv6(),
        }
    }
}

/// Who may see a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// Everyone.
    Public,
    /// Clients of its own namespace.
    Namespace,
}
