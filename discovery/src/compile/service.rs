//! Services.

use std::collections::BTreeMap;

use culvert_model::{
    HealthPolicy, LoadBalancing, LoadBalancingMode, NetworkAddress, Port, RoutingScope, Service,
    ServiceName,
};

use super::Settings;
use crate::index::{self, Distribution, Name, TargetPort, World};

/// The name of a service in the mesh.
pub(super) fn service_name(name: &Name, settings: &Settings) -> ServiceName {
    let domain = &settings.cluster_domain;
    let hostname = format!("{}.{}.svc.{domain}", name.name, name.namespace);
    ServiceName::new(name.namespace.clone(), hostname)
}

/// All services; names for something outside stay a matter of DNS.
pub(super) fn services(world: &World, settings: &Settings) -> BTreeMap<ServiceName, Service> {
    let published = world
        .services
        .iter()
        .filter(|(_, service)| !service.external_name);
    published
        .map(|(name, from)| {
            let mut service = Service::new(service_name(name, settings), name.name.clone());
            let addresses = from.addresses.iter();
            service.addresses = addresses.map(|ip| NetworkAddress::host("", *ip)).collect();
            service.ports = from.ports.iter().map(port).collect();
            let of_namespace = world.namespace_distribution.get(&name.namespace).copied();
            service.load_balancing = load_balancing(from, from.distribution.or(of_namespace));
            service.ip_families = from.ip_families;
            service.canonical = true;
            (service.name.clone(), service)
        })
        .collect()
}

fn port(port: &index::ServicePort) -> Port {
    Port {
        service_port: port.port,
        target_port: match port.target {
            TargetPort::Number(number) => Some(number),
            TargetPort::Name(_) => None,
        },
        app_protocol: port.protocol,
    }
}

fn load_balancing(service: &index::Service, distribution: Option<Distribution>) -> LoadBalancing {
    use RoutingScope::{Network, Node, Region, Subzone, Zone};
    let (mode, routing_preference) = match (service.local, distribution) {
        // Local is a promise, a distribution only a preference.
        (true, _) => (LoadBalancingMode::Strict, vec![Node]),
        (false, Some(Distribution::SameZone)) => {
            (LoadBalancingMode::Failover, vec![Network, Region, Zone])
        }
        (false, Some(Distribution::SameNode)) => (
            LoadBalancingMode::Failover,
            vec![Network, Region, Zone, Subzone, Node],
        ),
        (false, None) => (LoadBalancingMode::Unspecified, Vec::new()),
    };
    LoadBalancing {
        routing_preference,
        mode,
        health_policy: if service.publish_not_ready {
            HealthPolicy::AllowAll
        } else {
            HealthPolicy::OnlyHealthy
        },
    }
}
