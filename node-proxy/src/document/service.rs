//! Services in a document.

use std::collections::BTreeMap;
use std::str::FromStr;

use culvert_identity::Identity;
use culvert_model::{
    AppProtocol, HealthPolicy, IpFamilies, LoadBalancing, LoadBalancingMode, Port, RoutingScope,
    Service, ServiceName, Visibility, WeightedWaypoint,
};
use serde::{Deserialize, Serialize};

use super::{FieldError, GatewayDocument, network_address, network_address_text};

/// A service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceDocument {
    /// The object's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The fully qualified name.
    pub hostname: String,
    /// Virtual addresses, `network/IP`.
    pub vips: Vec<String>,
    /// Service port → target port; 0 where only endpoints can tell it.
    pub ports: BTreeMap<u16, u16>,
    /// Ranges of virtual addresses, `network/IP/prefix length`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cidr_vips: Vec<String>,
    /// Further identities of its endpoints.
    #[serde(default)]
    pub subject_alt_names: Vec<String>,
    /// Its waypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<GatewayDocument>,
    /// Several waypoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weighted_waypoints: Vec<WeightedDocument>,
    /// How an endpoint is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<BalancerDocument>,
    /// Families of endpoint addresses; left out for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_families: Option<Families>,
    /// Whether it wins over services of other namespaces.
    #[serde(default)]
    pub canonical: bool,
    /// Who may see it.
    #[serde(default)]
    pub visibility: Sight,
    /// Whether gateways pass its waypoint too.
    #[serde(default)]
    pub ingress_use_waypoint: bool,
}

/// One of several waypoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightedDocument {
    /// Where it is.
    pub destination: GatewayDocument,
    /// Its share.
    pub weight: u32,
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BalancerDocument {
    /// What an endpoint should have in common with the client.
    pub routing_preferences: Vec<Preference>,
    /// What the preference means.
    pub mode: BalancerMode,
    /// Whether unhealthy endpoints count.
    pub health_policy: HealthChoice,
}

/// What an endpoint may have in common with the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preference {
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

/// What a preference means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum BalancerMode {
    /// Nothing.
    #[default]
    Standard,
    /// All of it.
    Strict,
    /// As much as there is.
    Failover,
    /// No choice: the address that the client named.
    Passthrough,
}

/// Whether unhealthy endpoints count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HealthChoice {
    /// They do not.
    #[default]
    OnlyHealthy,
    /// They do.
    AllowAll,
}

/// Families of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Families {
    /// Both.
    Dual,
    /// IPv4 alone.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6 alone.
    #[serde(rename = "IPv6")]
    V6,
}

/// Who may see a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Sight {
    /// Everyone.
    #[default]
    Public,
    /// Its namespace.
    Namespace,
}

impl ServiceDocument {
    pub(super) fn model(self) -> Result<Service, FieldError> {
        let addresses = self
            .vips
            .iter()
            .chain(&self.cidr_vips)
            .map(|vip| network_address(vip));
        let identities = self
            .subject_alt_names
            .iter()
            .map(|name| Identity::from_str(name));
        let weighted = self.weighted_waypoints.iter().map(|weighted| {
            let destination = weighted.destination.model()?;
            Ok(WeightedWaypoint {
                destination,
                weight: weighted.weight,
            })
        });
        let ports = self.ports.iter().map(|(service_port, target_port)| Port {
            service_port: *service_port,
            target_port: (*target_port != 0).then_some(*target_port),
            app_protocol: AppProtocol::Unknown,
        });
        Ok(Service {
            addresses: addresses.collect::<Result<_, _>>()?,
            ports: ports.collect(),
            subject_alt_names: identities
                .collect::<Result<_, _>>()
                .map_err(|e| FieldError::new("subjectAltNames", &e))?,
            waypoint: self
                .waypoint
                .as_ref()
                .map(GatewayDocument::model)
                .transpose()?,
            weighted_waypoints: weighted.collect::<Result<_, FieldError>>()?,
            load_balancing: self.load_balancer.unwrap_or_default().model(),
            ip_families: match self.ip_families {
                None => IpFamilies::Automatic,
                Some(Families::Dual) => IpFamilies::Dual,
                Some(Families::V4) => IpFamilies::Ipv4Only,
                Some(Families::V6) => IpFamilies::Ipv6Only,
            },
            canonical: self.canonical,
            ingress_use_waypoint: self.ingress_use_waypoint,
            visibility: match self.visibility {
                Sight::Public => Visibility::Public,
                Sight::Namespace => Visibility::Namespace,
            },
            ..Service::new(ServiceName::new(self.namespace, self.hostname), self.name)
        })
    }

    pub(super) fn of(service: &Service) -> Self {
        let weighted = |waypoint: &WeightedWaypoint| WeightedDocument {
            destination: GatewayDocument::of(&waypoint.destination),
            weight: waypoint.weight,
        };
        let (hosts, ranges): (Vec<_>, Vec<_>) = service.addresses.iter().partition(|a| a.is_host());
        let port = |port: &Port| (port.service_port, port.target_port.unwrap_or(0));
        Self {
            name: service.short_name.to_string(),
            namespace: service.name.namespace.to_string(),
            hostname: service.name.hostname.to_string(),
            vips: hosts.into_iter().map(network_address_text).collect(),
            ports: service.ports.iter().map(port).collect(),
            cidr_vips: ranges.into_iter().map(network_address_text).collect(),
            subject_alt_names: service
                .subject_alt_names
                .iter()
                .map(ToString::to_string)
                .collect(),
            waypoint: service.waypoint.as_ref().map(GatewayDocument::of),
            weighted_waypoints: service.weighted_waypoints.iter().map(weighted).collect(),
            load_balancer: BalancerDocument::of(&service.load_balancing),
            ip_families: match service.ip_families {
                IpFamilies::Automatic => None,
                IpFamilies::Dual => Some(Families::Dual),
                IpFamilies::Ipv4Only => Some(Families::V4),
                IpFamilies::Ipv6Only => Some(Families::V6),
            },
            canonical: service.canonical,
            visibility: match service.visibility {
                Visibility::Public => Sight::Public,
                Visibility::Namespace => Sight::Namespace,
            },
            ingress_use_waypoint: service.ingress_use_waypoint,
        }
    }
}

/// Each pair of a document's and the model's word for one thing.
const PREFERENCES: [(Preference, RoutingScope); 6] = [
    (Preference::Region, RoutingScope::Region),
    (Preference::Zone, RoutingScope::Zone),
    (Preference::Subzone, RoutingScope::Subzone),
    (Preference::Node, RoutingScope::Node),
    (Preference::Cluster, RoutingScope::Cluster),
    (Preference::Network, RoutingScope::Network),
];

impl BalancerDocument {
    fn model(self) -> LoadBalancing {
        let scope = |wanted: &Preference| {
            PREFERENCES
                .iter()
                .find(|(word, _)| word == wanted)
                .map(|(_, scope)| *scope)
        };
        LoadBalancing {
            routing_preference: self.routing_preferences.iter().filter_map(scope).collect(),
            mode: match self.mode {
                BalancerMode::Standard => LoadBalancingMode::Unspecified,
                BalancerMode::Strict => LoadBalancingMode::Strict,
                BalancerMode::Failover => LoadBalancingMode::Failover,
                BalancerMode::Passthrough => LoadBalancingMode::Passthrough,
            },
            health_policy: match self.health_policy {
                HealthChoice::OnlyHealthy => HealthPolicy::OnlyHealthy,
                HealthChoice::AllowAll => HealthPolicy::AllowAll,
            },
        }
    }

    fn of(balancing: &LoadBalancing) -> Option<Self> {
        if *balancing == LoadBalancing::default() {
            return None;
        }
        let word = |wanted: &RoutingScope| {
            PREFERENCES
                .iter()
                .find(|(_, scope)| scope == wanted)
                .map(|(word, _)| *word)
        };
        Some(Self {
            routing_preferences: balancing
                .routing_preference
                .iter()
                .filter_map(word)
                .collect(),
            mode: match balancing.mode {
                LoadBalancingMode::Unspecified => BalancerMode::Standard,
                LoadBalancingMode::Strict => BalancerMode::Strict,
                LoadBalancingMode::Failover => BalancerMode::Failover,
                LoadBalancingMode::Passthrough => BalancerMode::Passthrough,
            },
            health_policy: match balancing.health_policy {
                HealthPolicy::OnlyHealthy => HealthChoice::OnlyHealthy,
                HealthPolicy::AllowAll => HealthChoice::AllowAll,
            },
        })
    }
}
