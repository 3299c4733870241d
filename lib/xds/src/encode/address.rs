//! Workloads and services.

use std::net::IpAddr;

use bytes::Bytes;
use culvert_api::names;
use culvert_api::proto::culvert::{EgressPolicies, PeerSets};
use culvert_api::proto::workload as wire;
use culvert_model::{
    AppProtocol, ApplicationProtocol, ApplicationTunnel, GatewayAddress, GatewayDestination,
    Health, HealthPolicy, IpFamilies, LoadBalancing, LoadBalancingMode, NetworkAddress,
    NetworkMode, Port, RoutingScope, Service, TunnelProtocol, Visibility, WeightedWaypoint,
    Workload, WorkloadType,
};
use prost::Message;

/// A workload's message.
pub fn workload(from: &Workload) -> wire::Workload {
    wire::Workload {
        uid: from.uid.to_string(),
        name: from.name.to_string(),
        namespace: from.namespace.to_string(),
        addresses: from
            .addresses
            .iter()
            .map(|ip| Bytes::from(ip_bytes(*ip)))
            .collect(),
        hostname: from.hostname.to_string(),
        network: from.network.to_string(),
        tunnel_protocol: match from.tunnel_protocol {
            TunnelProtocol::None => wire::TunnelProtocol::None,
            TunnelProtocol::Hbone => wire::TunnelProtocol::Hbone,
        }
        .into(),
        trust_domain: from.identity.trust_domain().to_string(),
        service_account: from.identity.service_account().to_owned(),
        waypoint: from.waypoint.as_ref().map(gateway),
        network_gateway: from.network_gateway.as_ref().map(gateway),
        node: from.node.to_string(),
        canonical_name: from.canonical_name.to_string(),
        canonical_revision: from.canonical_revision.to_string(),
        workload_type: match from.workload_type {
            WorkloadType::Deployment => wire::WorkloadType::Deployment,
            WorkloadType::CronJob => wire::WorkloadType::Cronjob,
            WorkloadType::Pod => wire::WorkloadType::Pod,
            WorkloadType::Job => wire::WorkloadType::Job,
        }
        .into(),
        workload_name: from.workload_name.to_string(),
        native_tunnel: from.native_tunnel,
        authorization_policies: from
            .authorization_policies
            .iter()
            .map(ToString::to_string)
            .collect(),
        status: match from.health {
            Health::Healthy => wire::WorkloadStatus::Healthy,
            Health::Unhealthy => wire::WorkloadStatus::Unhealthy,
        }
        .into(),
        cluster_id: from.cluster_id.to_string(),
        services: from
            .services
            .iter()
            .map(|(name, ports)| (name.to_string(), port_list(ports)))
            .collect(),
        application_tunnel: from.application_tunnel.map(application_tunnel),
        locality: Some(wire::Locality {
            region: from.locality.region.to_string(),
            zone: from.locality.zone.to_string(),
            subzone: from.locality.subzone.to_string(),
        }),
        network_mode: match from.network_mode {
            NetworkMode::Standard => wire::NetworkMode::Standard,
            NetworkMode::HostNetwork => wire::NetworkMode::HostNetwork,
        }
        .into(),
        extensions: extensions(from),
        capacity: Some(from.capacity),
    }
}

fn extensions(from: &Workload) -> Vec<wire::Extension> {
    let mut extensions = Vec::new();
    if !from.peer_sets.is_empty() {
        let names = from.peer_sets.iter().map(ToString::to_string).collect();
        extensions.push(extension(names::PEER_SETS, "PeerSets", &PeerSets { names }));
    }
    if !from.egress_policies.is_empty() {
        let names = from
            .egress_policies
            .iter()
            .map(ToString::to_string)
            .collect();
        extensions.push(extension(
            names::EGRESS_POLICIES,
            "EgressPolicies",
            &EgressPolicies { names },
        ));
    }
    extensions
}

/// A message of ours under its name as an extension.
pub(super) fn extension(name: &str, message_type: &str, message: &impl Message) -> wire::Extension {
    wire::Extension {
        name: name.to_owned(),
        config: Some(prost_types::Any {
            type_url: format!("type.googleapis.com/culvert.workload.{message_type}"),
            value: message.encode_to_vec(),
        }),
    }
}

/// A service's message.
pub fn service(from: &Service) -> wire::Service {
    wire::Service {
        name: from.short_name.to_string(),
        namespace: from.name.namespace.to_string(),
        hostname: from.name.hostname.to_string(),
        addresses: from.addresses.iter().map(network_address).collect(),
        ports: from.ports.iter().map(port).collect(),
        subject_alt_names: from
            .subject_alt_names
            .iter()
            .map(ToString::to_string)
            .collect(),
        waypoint: from.waypoint.as_ref().map(gateway),
        load_balancing: Some(load_balancing(&from.load_balancing)),
        ip_families: match from.ip_families {
            IpFamilies::Automatic => wire::IpFamilies::Automatic,
            IpFamilies::Ipv4Only => wire::IpFamilies::Ipv4Only,
            IpFamilies::Ipv6Only => wire::IpFamilies::Ipv6Only,
            IpFamilies::Dual => wire::IpFamilies::Dual,
        }
        .into(),
        extensions: Vec::new(),
        canonical: from.canonical,
        ingress_use_waypoint: from.ingress_use_waypoint,
        weighted_waypoints: from
            .weighted_waypoints
            .iter()
            .map(weighted_waypoint)
            .collect(),
        visibility: match from.visibility {
            Visibility::Public => wire::service::Visibility::Public,
            Visibility::Namespace => wire::service::Visibility::Namespace,
        }
        .into(),
    }
}

pub(super) fn ip_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn network_address(from: &NetworkAddress) -> wire::NetworkAddress {
    wire::NetworkAddress {
        network: from.network.to_string(),
        address: ip_bytes(from.net.addr()),
        length: (!from.is_host()).then(|| u32::from(from.net.prefix_len())),
    }
}

fn port_list(ports: &[Port]) -> wire::PortList {
    wire::PortList {
        ports: ports.iter().map(port).collect(),
    }
}

fn port(from: &Port) -> wire::Port {
    wire::Port {
        service_port: u32::from(from.service_port),
        target_port: from.target_port.map_or(0, u32::from),
        app_protocol: match from.app_protocol {
            AppProtocol::Unknown => wire::AppProtocol::Unknown,
            AppProtocol::Http11 => wire::AppProtocol::Http11,
            AppProtocol::Http2 => wire::AppProtocol::Http2,
            AppProtocol::Grpc => wire::AppProtocol::Grpc,
            AppProtocol::Tcp => wire::AppProtocol::Tcp,
            AppProtocol::Tls => wire::AppProtocol::Tls,
        }
        .into(),
    }
}

fn gateway(from: &GatewayAddress) -> wire::GatewayAddress {
    use wire::gateway_address::Destination;
    let destination = match &from.destination {
        GatewayDestination::Hostname(name) => Destination::Hostname(wire::NamespacedHostname {
            namespace: name.namespace.to_string(),
            hostname: name.hostname.to_string(),
        }),
        GatewayDestination::Address { network, ip } => Destination::Address(wire::NetworkAddress {
            network: network.to_string(),
            address: ip_bytes(*ip),
            length: None,
        }),
    };
    wire::GatewayAddress {
        destination: Some(destination),
        hbone_mtls_port: u32::from(from.hbone_port),
    }
}

fn weighted_waypoint(from: &WeightedWaypoint) -> wire::WeightedWaypoint {
    wire::WeightedWaypoint {
        destination: Some(gateway(&from.destination)),
        weight: from.weight,
    }
}

fn application_tunnel(from: ApplicationTunnel) -> wire::ApplicationTunnel {
    use wire::application_tunnel::Protocol;
    wire::ApplicationTunnel {
        protocol: match from.protocol {
            ApplicationProtocol::None => Protocol::None,
            ApplicationProtocol::Proxy => Protocol::Proxy,
        }
        .into(),
        port: from.port.map_or(0, u32::from),
    }
}

fn load_balancing(from: &LoadBalancing) -> wire::LoadBalancing {
    use wire::load_balancing::{HealthPolicy as WireHealth, Mode, Scope};
    let scope = |scope: &RoutingScope| match scope {
        RoutingScope::Region => Scope::Region.into(),
        RoutingScope::Zone => Scope::Zone.into(),
        RoutingScope::Subzone => Scope::Subzone.into(),
        RoutingScope::Node => Scope::Node.into(),
        RoutingScope::Cluster => Scope::Cluster.into(),
        RoutingScope::Network => Scope::Network.into(),
    };
    wire::LoadBalancing {
        routing_preference: from.routing_preference.iter().map(scope).collect(),
        mode: match from.mode {
            LoadBalancingMode::Unspecified => Mode::UnspecifiedMode,
            LoadBalancingMode::Strict => Mode::Strict,
            LoadBalancingMode::Failover => Mode::Failover,
            LoadBalancingMode::Passthrough => Mode::Passthrough,
        }
        .into(),
        health_policy: match from.health_policy {
            HealthPolicy::OnlyHealthy => WireHealth::OnlyHealthy,
            HealthPolicy::AllowAll => WireHealth::AllowAll,
        }
        .into(),
    }
}
