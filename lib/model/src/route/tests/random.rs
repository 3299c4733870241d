//! What holds for every route in every world: nothing that belongs to the mesh
//! is ever reached in plain, and no waypoint is ever passed by.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::{GatewayAddress, GatewayDestination, LoadBalancing, RoutingScope};

const ADDRESSES: [&str; 6] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "fd00::1",
    "fd00::2",
    "10.96.0.1",
];
const NAMES: [&str; 3] = ["a", "b", "wp"];

fn gateway() -> impl Strategy<Value = GatewayAddress> {
    let name = select(NAMES.to_vec())
        .prop_map(|short| GatewayDestination::Hostname(service_name(short, "shop")));
    let address =
        (select(vec!["", "other"]), select(ADDRESSES.to_vec())).prop_map(|(network, address)| {
            GatewayDestination::Address {
                network: network.into(),
                ip: ip(address),
            }
        });
    prop_oneof![name, address].prop_map(|destination| GatewayAddress {
        destination,
        hbone_port: HBONE_PORT,
    })
}

fn workload(number: usize) -> impl Strategy<Value = Workload> {
    let places = (
        vec(select(ADDRESSES.to_vec()), 0..3),
        vec(select(NAMES.to_vec()), 0..3),
        option::weighted(0.2, gateway()),
        select(vec!["n1", "n2"]),
    );
    let state = (
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.1),
        0..3_u32,
        prop::bool::weighted(0.1),
    );
    (places, state).prop_map(move |(places, state)| {
        let (addresses, services, waypoint, node) = places;
        let (meshed, healthy, host, capacity, elsewhere) = state;
        let base = services.into_iter().fold(
            pod("shop", &format!("w{number}"), &addresses),
            |workload, short| behind(workload, short, &[]),
        );
        Workload {
            waypoint,
            node: node.into(),
            capacity,
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
            network_mode: if host {
                NetworkMode::HostNetwork
            } else {
                NetworkMode::Standard
            },
            network: if elsewhere { "other".into() } else { "".into() },
            ..base
        }
    })
}

fn a_service(short: &'static str) -> impl Strategy<Value = Service> {
    let mode = select(vec![
        LoadBalancingMode::Unspecified,
        LoadBalancingMode::Failover,
        LoadBalancingMode::Strict,
        LoadBalancingMode::Passthrough,
    ]);
    let addresses = vec(select(ADDRESSES.to_vec()), 0..3);
    (mode, addresses, option::weighted(0.3, gateway())).prop_map(
        move |(mode, addresses, waypoint)| Service {
            waypoint,
            load_balancing: LoadBalancing {
                mode,
                routing_preference: vec![RoutingScope::Node],
                ..LoadBalancing::default()
            },
            ..service(short, &addresses, &[port(80, 8080), port(15008, 15008)])
        },
    )
}

fn any_world() -> impl Strategy<Value = (Vec<Workload>, Snapshot)> {
    let workloads = (workload(0), workload(1), workload(2), workload(3)).prop_map(<[_; 4]>::from);
    (workloads, NAMES.map(a_service)).prop_map(|(workloads, services)| {
        let snapshot = world(&workloads, &services);
        (workloads.to_vec(), snapshot)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn never_plain_to_the_mesh_and_never_past_a_waypoint(
        (workloads, snapshot) in any_world(),
        destination in select(ADDRESSES.to_vec()),
        destination_port in select(vec![80, 81]),
        failed in vec(0..4_usize, 0..3),
        seed in any::<u64>(),
    ) {
        let source = &workloads[0];
        let failed: Vec<_> = failed.into_iter().map(|index| workloads[index].uid.clone()).collect();
        let attempt = Attempt { source, destination: SocketAddr::new(ip(destination), destination_port), failed: &failed };
        let outcome = route_again(&snapshot, &attempt, &Loads::default(), &mut seeded(seed));

        let named = snapshot.workload_at(ip(destination));
        let service = snapshot.service_at(ip(destination), "shop").filter(|_| named.is_none());
        let waypoint = match (named, service) {
            (Some(workload), _) => workload.waypoint.is_some(),
            (None, Some(service)) => service.waypoint.is_some(),
            (None, None) => false,
        };
        let may_be_waypoint = source.services.contains_key(&service_name("wp", "shop")) || waypoint_is(source, named, service);
        match outcome {
            Ok(Route::PassThrough(None)) => prop_assert!(named.is_none() && service.is_none()),
            Ok(Route::PassThrough(Some(found))) => {
                prop_assert_eq!(found.load_balancing.mode, LoadBalancingMode::Passthrough);
                prop_assert!(!waypoint || may_be_waypoint);
            }
            Ok(Route::Plain(plain)) => {
                prop_assert!(!plain.workload.is_meshed());
                prop_assert!(!waypoint || may_be_waypoint);
                prop_assert!(!failed.contains(&plain.workload.uid));
                prop_assert!(plain.workload.addresses.contains(&plain.address.ip()));
            }
            Ok(Route::Tunnel(tunnel)) => {
                prop_assert!(!failed.contains(&tunnel.workload.uid));
                prop_assert!(tunnel.allowed.contains(&tunnel.workload.identity));
                prop_assert!(tunnel.workload.addresses.contains(&tunnel.address.ip()));
                prop_assert_eq!(&*tunnel.workload.network, "");
                match tunnel.hop {
                    Hop::Waypoint => {
                        prop_assert!(waypoint);
                        prop_assert_eq!(tunnel.authority, attempt.destination);
                    }
                    Hop::Endpoint => {
                        prop_assert!(tunnel.workload.is_meshed());
                        prop_assert!(!waypoint || may_be_waypoint);
                        prop_assert_eq!(tunnel.authority.ip(), tunnel.address.ip());
                    }
                }
            }
            Err(_) => {}
        }
    }
}

/// Whether the source is what the waypoint's name stands for, by any reading.
fn waypoint_is(
    source: &Workload,
    named: Option<&Arc<Workload>>,
    service: Option<&Arc<Service>>,
) -> bool {
    let gateway = named
        .and_then(|workload| workload.waypoint.as_ref())
        .or_else(|| service.and_then(|service| service.waypoint.as_ref()));
    match gateway.map(|gateway| &gateway.destination) {
        Some(GatewayDestination::Hostname(name)) => source.services.contains_key(name),
        Some(GatewayDestination::Address { ip, .. }) => {
            source.addresses.contains(ip) || !source.services.is_empty()
        }
        None => false,
    }
}
