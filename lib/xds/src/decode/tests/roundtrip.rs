//! What discovery writes is what a proxy reads; and no bytes break the reader.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_identity::Identity;
use culvert_model::{
    Action, AppProtocol, ApplicationProtocol, ApplicationTunnel, GatewayAddress, Group,
    HealthPolicy, IpFamilies, LoadBalancing, LoadBalancingMode, Locality, NetworkAddress, Origin,
    Port, PortRange, RoutingScope, Rules, Service, ServiceAccount, WeightedWaypoint, Workload,
    WorkloadType, WorkloadUid,
};
use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::encode;

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-z0-9.-]{0,8}".prop_map(Arc::from)
}

fn label() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,8}"
}

fn service_name() -> impl Strategy<Value = ServiceName> {
    (label(), label()).prop_map(|(namespace, hostname)| ServiceName::new(namespace, hostname))
}

fn policy_name() -> impl Strategy<Value = PolicyName> {
    (label(), label()).prop_map(|(namespace, name)| PolicyName::new(namespace, name))
}

fn identity() -> impl Strategy<Value = Identity> {
    (label(), label(), label()).prop_map(|(domain, namespace, account)| {
        Identity::new(&domain.parse().expect("valid"), &namespace, &account).expect("valid")
    })
}

fn address() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>().prop_map(|ip| ip.to_canonical())
}

fn net() -> impl Strategy<Value = IpNet> {
    (address(), 0..=128_u8).prop_map(|(ip, length)| {
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        let net = IpNet::new(ip, length.min(longest))
            .expect("not too long")
            .trunc();
        // Clearing host bits may put IPv6 into the clothes of IPv4.
        if net.addr() == net.addr().to_canonical() {
            net
        } else {
            IpNet::from(ip)
        }
    })
}

fn port() -> impl Strategy<Value = Port> {
    let protocols = select(vec![
        AppProtocol::Unknown,
        AppProtocol::Http11,
        AppProtocol::Http2,
        AppProtocol::Grpc,
        AppProtocol::Tcp,
        AppProtocol::Tls,
    ]);
    (1..=u16::MAX, option::of(1..=u16::MAX), protocols).prop_map(
        |(service_port, target_port, app_protocol)| Port {
            service_port,
            target_port,
            app_protocol,
        },
    )
}

fn gateway() -> impl Strategy<Value = GatewayAddress> {
    let destination = prop_oneof![
        service_name().prop_map(GatewayDestination::Hostname),
        (text(), address()).prop_map(|(network, ip)| GatewayDestination::Address { network, ip }),
    ];
    (destination, 1..=u16::MAX).prop_map(|(destination, hbone_port)| GatewayAddress {
        destination,
        hbone_port,
    })
}

fn application_tunnel() -> impl Strategy<Value = ApplicationTunnel> {
    let protocol = select(vec![ApplicationProtocol::None, ApplicationProtocol::Proxy]);
    (protocol, option::of(1..=u16::MAX))
        .prop_map(|(protocol, port)| ApplicationTunnel { protocol, port })
}

/// Who a workload is, and what telemetry says of it.
fn named_workload() -> impl Strategy<Value = Workload> {
    use WorkloadType::{CronJob, Deployment, Job, Pod};
    let who = (label(), label(), identity(), text(), text(), text());
    let types = select(vec![Deployment, CronJob, Pod, Job]);
    (who, (text(), text(), text()), types).prop_map(|(who, telemetry, workload_type)| {
        let (uid, name, identity, network, node, cluster) = who;
        Workload {
            network,
            node,
            // Nothing means the default here.
            cluster_id: if cluster.is_empty() {
                "Kubernetes".into()
            } else {
                cluster
            },
            canonical_name: telemetry.0,
            canonical_revision: telemetry.1,
            workload_name: telemetry.2,
            workload_type,
            ..Workload::new(WorkloadUid::new(uid), name, identity)
        }
    })
}

fn workload() -> impl Strategy<Value = Workload> {
    let locality = (text(), text(), text()).prop_map(|(region, zone, subzone)| Locality {
        region,
        zone,
        subzone,
    });
    let places = (
        vec(address(), 0..3),
        text(),
        locality,
        option::of(gateway()),
        option::of(gateway()),
    );
    let flags = (
        any::<[bool; 4]>(),
        any::<u32>(),
        option::of(application_tunnel()),
    );
    let policies = || vec(policy_name(), 0..3);
    let services = btree_map(service_name(), vec(port(), 0..3), 0..3);
    let links = (services, policies(), policies(), vec(text(), 0..3));
    (named_workload(), places, flags, links).prop_map(|(named, places, flags, links)| {
        let [meshed, healthy, on_host, native_tunnel] = flags.0;
        Workload {
            addresses: places.0,
            hostname: places.1,
            locality: places.2,
            waypoint: places.3,
            network_gateway: places.4,
            tunnel_protocol: if meshed {
                TunnelProtocol::Hbone
            } else {
                TunnelProtocol::None
            },
            health: if healthy {
                Health::Healthy
            } else {
                Health::Unhealthy
            },
            network_mode: if on_host {
                NetworkMode::HostNetwork
            } else {
                NetworkMode::Standard
            },
            native_tunnel,
            capacity: flags.1,
            application_tunnel: flags.2,
            services: links.0,
            authorization_policies: links.1,
            egress_policies: links.2,
            peer_sets: links.3,
            ..named
        }
    })
}

fn load_balancing() -> impl Strategy<Value = LoadBalancing> {
    use RoutingScope::{Cluster, Network, Node, Region, Subzone, Zone};
    let scopes = vec(
        select(vec![Region, Zone, Subzone, Node, Cluster, Network]),
        0..4,
    );
    let modes = select(vec![
        LoadBalancingMode::Unspecified,
        LoadBalancingMode::Strict,
        LoadBalancingMode::Failover,
        LoadBalancingMode::Passthrough,
    ]);
    let health = select(vec![HealthPolicy::OnlyHealthy, HealthPolicy::AllowAll]);
    (scopes, modes, health).prop_map(|(routing_preference, mode, health_policy)| LoadBalancing {
        routing_preference,
        mode,
        health_policy,
    })
}

fn a_service() -> impl Strategy<Value = Service> {
    let addresses = vec(
        (text(), net()).prop_map(|(network, net)| NetworkAddress { network, net }),
        0..3,
    );
    let weighted = (gateway(), any::<u32>()).prop_map(|(destination, weight)| WeightedWaypoint {
        destination,
        weight,
    });
    let waypoints = (option::of(gateway()), vec(weighted, 0..3));
    let families = select(vec![
        IpFamilies::Automatic,
        IpFamilies::Ipv4Only,
        IpFamilies::Ipv6Only,
        IpFamilies::Dual,
    ]);
    (
        service_name(),
        text(),
        addresses,
        vec(port(), 0..3),
        vec(identity(), 0..3),
        waypoints,
        load_balancing(),
        families,
        any::<[bool; 3]>(),
    )
        .prop_map(
            |(
                name,
                short_name,
                addresses,
                ports,
                subject_alt_names,
                waypoints,
                load_balancing,
                ip_families,
                [canonical, ingress_use_waypoint, hidden],
            )| Service {
                name,
                short_name,
                addresses,
                ports,
                subject_alt_names,
                waypoint: waypoints.0,
                weighted_waypoints: waypoints.1,
                load_balancing,
                ip_families,
                canonical,
                ingress_use_waypoint,
                visibility: if hidden {
                    Visibility::Namespace
                } else {
                    Visibility::Public
                },
            },
        )
}

fn string_match() -> impl Strategy<Value = StringMatch> {
    prop_oneof![
        text().prop_map(StringMatch::Exact),
        text().prop_map(StringMatch::Prefix),
        text().prop_map(StringMatch::Suffix),
        Just(StringMatch::Presence),
    ]
}

fn conditions() -> impl Strategy<Value = Match> {
    let account =
        || (text(), text()).prop_map(|(namespace, name)| ServiceAccount { namespace, name });
    let range = || {
        any::<(u16, u16)>().prop_map(|(a, b)| PortRange {
            first: a.min(b),
            last: a.max(b),
        })
    };
    let strings = [(); 4].map(|()| vec(string_match(), 0..2));
    let nets = [(); 4].map(|()| vec(net(), 0..2));
    let ports = [(); 2].map(|()| vec(any::<u16>(), 0..2));
    let ranges = [(); 2].map(|()| vec(range(), 0..2));
    let accounts = [(); 2].map(|()| vec(account(), 0..2));
    let sets = [(); 2].map(|()| vec(text(), 0..2));
    (strings, nets, ports, ranges, accounts, sets).prop_map(
        |(strings, nets, ports, ranges, accounts, sets)| {
            let [namespaces, not_namespaces, principals, not_principals] = strings;
            let [
                source_ips,
                not_source_ips,
                destination_ips,
                not_destination_ips,
            ] = nets;
            let [destination_ports, not_destination_ports] = ports;
            let [destination_port_ranges, not_destination_port_ranges] = ranges;
            let [service_accounts, not_service_accounts] = accounts;
            let [peer_sets, not_peer_sets] = sets;
            Match {
                namespaces,
                not_namespaces,
                principals,
                not_principals,
                source_ips,
                not_source_ips,
                destination_ips,
                not_destination_ips,
                destination_ports,
                not_destination_ports,
                destination_port_ranges,
                not_destination_port_ranges,
                service_accounts,
                not_service_accounts,
                peer_sets,
                not_peer_sets,
            }
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    let rules = vec(conditions(), 0..3).prop_map(|matches| Rules { matches });
    let groups = vec(vec(rules, 0..3).prop_map(|rules| Group { rules }), 0..3);
    let origin =
        (text(), text(), text(), any::<bool>()).prop_map(|(kind, namespace, name, audit)| Origin {
            kind,
            namespace,
            name,
            audit,
        });
    let scope = select(vec![
        Scope::Global,
        Scope::Namespace,
        Scope::WorkloadSelector,
    ]);
    let action = select(vec![Action::Allow, Action::Deny]);
    (
        policy_name(),
        scope,
        action,
        groups,
        option::of(origin),
        any::<bool>(),
    )
        .prop_map(|(name, scope, action, groups, origin, dry_run)| Policy {
            origin,
            dry_run,
            ..Policy::new(name, scope, action, groups)
        })
}

fn through_the_wire(kind: ResourceType, resource: &crate::Resource) -> Change {
    super::super::resource(kind, &resource.to_wire(kind.url())).expect("what we wrote")
}

proptest! {
    #[test]
    fn workloads(workload in workload()) {
        let resource = encode::workload_resource(&workload);
        prop_assert_eq!(through_the_wire(ResourceType::Address, &resource), Change::Workload(workload.clone()));
        prop_assert_eq!(encode::workload_resource(&workload), resource, "the same bytes and version each time");
    }

    #[test]
    fn services(service in a_service()) {
        let resource = encode::service_resource(&service);
        prop_assert_eq!(through_the_wire(ResourceType::Address, &resource), Change::Service(service));
    }

    #[test]
    fn policies(policy in policy()) {
        let resource = encode::policy_resource(&policy);
        prop_assert_eq!(through_the_wire(ResourceType::Authorization, &resource), Change::Policy(policy.clone()));
        prop_assert_eq!(through_the_wire(ResourceType::EgressAuthorization, &resource), Change::EgressPolicy(policy));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let _ = address_bytes(&bytes);
        let _ = authorization_bytes(&bytes);
    }

    #[test]
    fn damaged_resources_are_read_or_refused(
        workload in workload(),
        policy in policy(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for resource in [encode::workload_resource(&workload), encode::policy_resource(&policy)] {
            let mut bytes = resource.body().to_vec();
            for (at, value) in &damage {
                if !bytes.is_empty() {
                    let index = at.index(bytes.len());
                    bytes[index] = *value;
                }
            }
            let _ = address_bytes(&bytes);
            let _ = authorization_bytes(&bytes);
        }
    }
}
