//! Workloads and services.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use culvert_api::names;
use culvert_api::proto::culvert::{EgressPolicies, PeerSets};
use culvert_api::proto::workload as wire;
use culvert_identity::{Identity, TrustDomain};
use culvert_model::{
    AppProtocol, ApplicationProtocol, ApplicationTunnel, GatewayAddress, GatewayDestination,
    HBONE_PORT, Health, HealthPolicy, IpFamilies, LoadBalancing, LoadBalancingMode, Locality,
    NetworkAddress, NetworkMode, PolicyName, Port, RoutingScope, Service, ServiceName,
    TunnelProtocol, Visibility, WeightedWaypoint, Workload, WorkloadType, WorkloadUid,
};
use ipnet::IpNet;
use prost::Message;

use super::fault::{At, FieldError, FieldFault, list, port};

pub(super) fn workload(message: wire::Workload) -> Result<Workload, FieldError> {
    let extensions = WorkloadExtensions::read(&message.extensions)?;
    let services: BTreeMap<ServiceName, Vec<Port>> = message
        .services
        .into_iter()
        .map(|(key, ports)| service_ports(&key, ports).at_index("services", &key))
        .collect::<Result<_, _>>()?;
    Ok(Workload {
        identity: identity(
            &message.trust_domain,
            &message.namespace,
            &message.service_account,
        )?,
        uid: required(&message.uid).map(WorkloadUid::new).at("uid")?,
        name: message.name.into(),
        namespace: message.namespace.into(),
        addresses: list("addresses", message.addresses, |bytes| ip(&bytes))?,
        hostname: message.hostname.into(),
        network: message.network.into(),
        tunnel_protocol: tunnel_protocol(message.tunnel_protocol).at("tunnel_protocol")?,
        native_tunnel: message.native_tunnel,
        waypoint: message.waypoint.map(gateway).transpose().at("waypoint")?,
        network_gateway: message
            .network_gateway
            .map(gateway)
            .transpose()
            .at("network_gateway")?,
        node: message.node.into(),
        cluster_id: text_or(&message.cluster_id, "Kubernetes"),
        canonical_name: message.canonical_name.into(),
        canonical_revision: message.canonical_revision.into(),
        workload_type: workload_type(message.workload_type).at("workload_type")?,
        workload_name: message.workload_name.into(),
        authorization_policies: policy_names(
            "authorization_policies",
            &message.authorization_policies,
        )?,
        egress_policies: extensions.egress_policies,
        peer_sets: extensions.peer_sets,
        health: health(message.status).at("status")?,
        services,
        application_tunnel: message
            .application_tunnel
            .map(application_tunnel)
            .transpose()
            .at("application_tunnel")?,
        locality: message.locality.map(locality).unwrap_or_default(),
        network_mode: network_mode(message.network_mode).at("network_mode")?,
        capacity: message.capacity.unwrap_or(1),
    })
}

pub(super) fn service(message: wire::Service) -> Result<Service, FieldError> {
    required(&message.namespace).at("namespace")?;
    let key = format!("{}/{}", message.namespace, message.hostname);
    Ok(Service {
        name: key.parse().map_err(FieldFault::Name).at("hostname")?,
        short_name: message.name.into(),
        addresses: list("addresses", message.addresses, network_address)?,
        ports: list("ports", message.ports, service_port)?,
        // One that is no workload identity can be proved by nobody: leaving it
        // out refuses no peer that would have been accepted.
        subject_alt_names: message
            .subject_alt_names
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect(),
        waypoint: message.waypoint.map(gateway).transpose().at("waypoint")?,
        weighted_waypoints: list(
            "weighted_waypoints",
            message.weighted_waypoints,
            weighted_waypoint,
        )?,
        load_balancing: message
            .load_balancing
            .map(load_balancing)
            .transpose()
            .at("load_balancing")?
            .unwrap_or_default(),
        ip_families: ip_families(message.ip_families).at("ip_families")?,
        canonical: message.canonical,
        ingress_use_waypoint: message.ingress_use_waypoint,
        visibility: match wire::service::Visibility::try_from(message.visibility) {
            Ok(wire::service::Visibility::Namespace) => Visibility::Namespace,
            // Values of later versions are public, as everywhere.
            Ok(wire::service::Visibility::Public) | Err(_) => Visibility::Public,
        },
    })
}

/// What our own extensions of a workload say; others are not ours to judge.
#[derive(Default)]
struct WorkloadExtensions {
    peer_sets: Vec<Arc<str>>,
    egress_policies: Vec<PolicyName>,
}

impl WorkloadExtensions {
    fn read(extensions: &[wire::Extension]) -> Result<Self, FieldError> {
        let mut read = Self::default();
        for (index, extension) in extensions.iter().enumerate() {
            let body = extension.config.as_ref().map_or(&[][..], |any| &any.value);
            match extension.name.as_str() {
                names::PEER_SETS => {
                    let sets = PeerSets::decode(body).map_err(FieldFault::NotProtobuf);
                    let sets = sets.at_index("extensions", index)?;
                    read.peer_sets = sets.names.into_iter().map(Arc::from).collect();
                }
                names::EGRESS_POLICIES => {
                    let policies = EgressPolicies::decode(body).map_err(FieldFault::NotProtobuf);
                    let policies = policies.at_index("extensions", index)?;
                    read.egress_policies =
                        policy_names("names", &policies.names).at_index("extensions", index)?;
                }
                _ => {}
            }
        }
        Ok(read)
    }
}

fn required(text: &str) -> Result<Arc<str>, FieldFault> {
    if text.is_empty() {
        return Err(FieldFault::Missing);
    }
    Ok(Arc::from(text))
}

fn text_or(text: &str, default: &str) -> Arc<str> {
    Arc::from(if text.is_empty() { default } else { text })
}

fn identity(
    trust_domain: &str,
    namespace: &str,
    service_account: &str,
) -> Result<Identity, FieldError> {
    let trust_domain: TrustDomain = text_or(trust_domain, "cluster.local")
        .parse()
        .map_err(FieldFault::TrustDomain)
        .at("trust_domain")?;
    required(namespace).at("namespace")?;
    Identity::new(
        &trust_domain,
        namespace,
        &text_or(service_account, "default"),
    )
    .map_err(FieldFault::Identity)
    .at("service_account")
}

fn policy_names(path: &str, texts: &[String]) -> Result<Vec<PolicyName>, FieldError> {
    list(path, texts, |text| text.parse().map_err(FieldFault::Name))
}

fn service_ports(key: &str, ports: wire::PortList) -> Result<(ServiceName, Vec<Port>), FieldError> {
    let name = key.parse().map_err(FieldFault::Name)?;
    Ok((name, list("ports", ports.ports, service_port)?))
}

fn service_port(message: wire::Port) -> Result<Port, FieldError> {
    let number = port(message.service_port).at("service_port")?;
    if number == 0 {
        return Err(FieldError::new("service_port", FieldFault::Port(0)));
    }
    let target_port = port(message.target_port).at("target_port")?;
    Ok(Port {
        service_port: number,
        target_port: (target_port != 0).then_some(target_port),
        app_protocol: match wire::AppProtocol::try_from(message.app_protocol) {
            Ok(wire::AppProtocol::Http11) => AppProtocol::Http11,
            Ok(wire::AppProtocol::Http2) => AppProtocol::Http2,
            Ok(wire::AppProtocol::Grpc) => AppProtocol::Grpc,
            Ok(wire::AppProtocol::Tcp) => AppProtocol::Tcp,
            Ok(wire::AppProtocol::Tls) => AppProtocol::Tls,
            // Only a hint: a later version's value is the same as none.
            Ok(wire::AppProtocol::Unknown) | Err(_) => AppProtocol::Unknown,
        },
    })
}

/// An address of either family; an IPv4 one in IPv6 clothes is IPv4.
pub(super) fn ip(bytes: &[u8]) -> Result<IpAddr, FieldFault> {
    let ip = if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        IpAddr::from(octets)
    } else if let Ok(octets) = <[u8; 16]>::try_from(bytes) {
        IpAddr::from(octets)
    } else {
        return Err(FieldFault::AddressLength(bytes.len()));
    };
    Ok(ip.to_canonical())
}

/// A range of addresses, its host bits cleared.
pub(super) fn range(bytes: &[u8], length: u32) -> Result<IpNet, FieldFault> {
    let is_mapped = bytes.len() == 16 && ip(bytes)?.is_ipv4();
    // A range wider than all mapped addresses is one of IPv6.
    if is_mapped && length < 96 {
        let octets =
            <[u8; 16]>::try_from(bytes).map_err(|_| FieldFault::AddressLength(bytes.len()))?;
        return net(IpAddr::from(octets), length);
    }
    let in_family = if is_mapped {
        length.saturating_sub(96)
    } else {
        length
    };
    net(ip(bytes)?, in_family)
}

fn net(ip: IpAddr, length: u32) -> Result<IpNet, FieldFault> {
    u8::try_from(length)
        .ok()
        .and_then(|length| IpNet::new(ip, length).ok())
        .map(|net| net.trunc())
        .ok_or(FieldFault::PrefixLength(length))
}

fn network_address(message: wire::NetworkAddress) -> Result<NetworkAddress, FieldError> {
    let net = match message.length {
        Some(length) => range(&message.address, length),
        None => ip(&message.address).map(IpNet::from),
    };
    Ok(NetworkAddress {
        network: message.network.into(),
        net: net.at("address")?,
    })
}

fn gateway(message: wire::GatewayAddress) -> Result<GatewayAddress, FieldError> {
    use wire::gateway_address::Destination;
    let destination = match message.destination {
        None => return Err(FieldError::new("destination", FieldFault::Missing)),
        Some(Destination::Hostname(name)) => {
            let hostname = required(&name.hostname).at("hostname")?;
            GatewayDestination::Hostname(ServiceName::new(name.namespace, hostname))
        }
        Some(Destination::Address(address)) => GatewayDestination::Address {
            ip: ip(&address.address).at("address")?,
            network: address.network.into(),
        },
    };
    let hbone_port = port(message.hbone_mtls_port).at("hbone_mtls_port")?;
    Ok(GatewayAddress {
        destination,
        hbone_port: if hbone_port == 0 {
            HBONE_PORT
        } else {
            hbone_port
        },
    })
}

fn weighted_waypoint(message: wire::WeightedWaypoint) -> Result<WeightedWaypoint, FieldError> {
    let Some(destination) = message.destination else {
        return Err(FieldError::new("destination", FieldFault::Missing));
    };
    Ok(WeightedWaypoint {
        destination: gateway(destination).at("destination")?,
        weight: message.weight,
    })
}

fn application_tunnel(message: wire::ApplicationTunnel) -> Result<ApplicationTunnel, FieldError> {
    use wire::application_tunnel::Protocol;
    let protocol = match Protocol::try_from(message.protocol) {
        Ok(Protocol::None) => ApplicationProtocol::None,
        Ok(Protocol::Proxy) => ApplicationProtocol::Proxy,
        Err(_) => return Err(unknown(message.protocol)).at("protocol"),
    };
    let port = port(message.port).at("port")?;
    Ok(ApplicationTunnel {
        protocol,
        port: (port != 0).then_some(port),
    })
}

fn locality(message: wire::Locality) -> Locality {
    Locality {
        region: message.region.into(),
        zone: message.zone.into(),
        subzone: message.subzone.into(),
    }
}

fn load_balancing(message: wire::LoadBalancing) -> Result<LoadBalancing, FieldError> {
    use wire::load_balancing::{HealthPolicy as WireHealth, Mode, Scope};
    let scope = |number: i32| match Scope::try_from(number) {
        Ok(Scope::Region) => Ok(RoutingScope::Region),
        Ok(Scope::Zone) => Ok(RoutingScope::Zone),
        Ok(Scope::Subzone) => Ok(RoutingScope::Subzone),
        Ok(Scope::Node) => Ok(RoutingScope::Node),
        Ok(Scope::Cluster) => Ok(RoutingScope::Cluster),
        Ok(Scope::Network) => Ok(RoutingScope::Network),
        Ok(Scope::UnspecifiedScope) | Err(_) => Err(unknown(number)),
    };
    Ok(LoadBalancing {
        routing_preference: list("routing_preference", message.routing_preference, scope)?,
        mode: match Mode::try_from(message.mode) {
            Ok(Mode::UnspecifiedMode) => LoadBalancingMode::Unspecified,
            Ok(Mode::Strict) => LoadBalancingMode::Strict,
            Ok(Mode::Failover) => LoadBalancingMode::Failover,
            Ok(Mode::Passthrough) => LoadBalancingMode::Passthrough,
            Err(_) => return Err(unknown(message.mode)).at("mode"),
        },
        health_policy: match WireHealth::try_from(message.health_policy) {
            Ok(WireHealth::OnlyHealthy) => HealthPolicy::OnlyHealthy,
            Ok(WireHealth::AllowAll) => HealthPolicy::AllowAll,
            Err(_) => return Err(unknown(message.health_policy)).at("health_policy"),
        },
    })
}

fn unknown(number: i32) -> FieldFault {
    FieldFault::UnknownEnum(number)
}

fn tunnel_protocol(number: i32) -> Result<TunnelProtocol, FieldFault> {
    match wire::TunnelProtocol::try_from(number) {
        Ok(wire::TunnelProtocol::None) => Ok(TunnelProtocol::None),
        Ok(wire::TunnelProtocol::Hbone) => Ok(TunnelProtocol::Hbone),
        Ok(wire::TunnelProtocol::LegacyIstioMtls) | Err(_) => Err(unknown(number)),
    }
}

fn workload_type(number: i32) -> Result<WorkloadType, FieldFault> {
    match wire::WorkloadType::try_from(number) {
        Ok(wire::WorkloadType::Deployment) => Ok(WorkloadType::Deployment),
        Ok(wire::WorkloadType::Cronjob) => Ok(WorkloadType::CronJob),
        Ok(wire::WorkloadType::Pod) => Ok(WorkloadType::Pod),
        Ok(wire::WorkloadType::Job) => Ok(WorkloadType::Job),
        Err(_) => Err(unknown(number)),
    }
}

fn health(number: i32) -> Result<Health, FieldFault> {
    match wire::WorkloadStatus::try_from(number) {
        Ok(wire::WorkloadStatus::Healthy) => Ok(Health::Healthy),
        Ok(wire::WorkloadStatus::Unhealthy) => Ok(Health::Unhealthy),
        Err(_) => Err(unknown(number)),
    }
}

fn network_mode(number: i32) -> Result<NetworkMode, FieldFault> {
    match wire::NetworkMode::try_from(number) {
        Ok(wire::NetworkMode::Standard) => Ok(NetworkMode::Standard),
        Ok(wire::NetworkMode::HostNetwork) => Ok(NetworkMode::HostNetwork),
        Err(_) => Err(unknown(number)),
    }
}

fn ip_families(number: i32) -> Result<IpFamilies, FieldFault> {
    match wire::IpFamilies::try_from(number) {
        Ok(wire::IpFamilies::Automatic) => Ok(IpFamilies::Automatic),
        Ok(wire::IpFamilies::Ipv4Only) => Ok(IpFamilies::Ipv4Only),
        Ok(wire::IpFamilies::Ipv6Only) => Ok(IpFamilies::Ipv6Only),
        Ok(wire::IpFamilies::Dual) => Ok(IpFamilies::Dual),
        Err(_) => Err(unknown(number)),
    }
}
