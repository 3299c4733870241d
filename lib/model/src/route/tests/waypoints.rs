use super::*;
use crate::{
    ApplicationProtocol, ApplicationTunnel, GatewayAddress, GatewayDestination, WeightedWaypoint,
};

fn by_name(short: &str) -> GatewayAddress {
    GatewayAddress {
        destination: GatewayDestination::Hostname(service_name(short, "shop")),
        hbone_port: HBONE_PORT,
    }
}

fn by_address(address: &str) -> GatewayAddress {
    GatewayAddress {
        destination: GatewayDestination::Address {
            network: "".into(),
            ip: ip(address),
        },
        hbone_port: HBONE_PORT,
    }
}

/// Not meshed itself: a waypoint is reached by tunnel all the same.
fn waypoint_pod(short: &str, address: &str) -> Workload {
    behind(unmeshed(pod("shop", short, &[address])), short, &[])
}

fn waypoint_service(short: &str, address: &str) -> Service {
    service(short, &[address], &[port(15008, 15008)])
}

fn cart_service(waypoint: Option<GatewayAddress>) -> Service {
    Service {
        waypoint,
        ..service("cart", &["10.96.0.1"], &[port(80, 8080)])
    }
}

fn mesh(workloads: &[Workload], waypoint: Option<GatewayAddress>) -> Snapshot {
    let common = [web(), cart(&["10.0.0.2"]), waypoint_pod("wp", "10.0.0.9")];
    let workloads: Vec<_> = common.iter().chain(workloads).cloned().collect();
    world(
        &workloads,
        &[waypoint_service("wp", "10.96.0.9"), cart_service(waypoint)],
    )
}

#[test]
fn a_service_behind_a_waypoint() {
    let through = "waypoint 10.0.0.9:15008 for 10.96.0.1:80";
    check(
        "by name",
        &mesh(&[], Some(by_name("wp"))),
        "10.96.0.1:80",
        through,
    );
    check(
        "by its service's address",
        &mesh(&[], Some(by_address("10.96.0.9"))),
        "10.96.0.1:80",
        through,
    );
    check(
        "by a workload's address",
        &mesh(&[], Some(by_address("10.0.0.9"))),
        "10.96.0.1:80",
        through,
    );
    let mut lone = pod("shop", "lone", &["10.0.0.8"]);
    lone.hostname = "lone.shop.svc".into();
    let lone_through = "waypoint 10.0.0.8:15008 for 10.96.0.1:80";
    check(
        "by a workload's hostname",
        &mesh(&[lone], Some(by_name("lone"))),
        "10.96.0.1:80",
        lone_through,
    );
    check(
        "a port that the service lacks is the waypoint's to refuse",
        &mesh(&[], Some(by_name("wp"))),
        "10.96.0.1:9",
        "waypoint 10.0.0.9:15008 for 10.96.0.1:9",
    );
    let via_pod = mesh(&[], Some(by_name("wp")));
    check(
        "by the pod's address it does not apply",
        &via_pod,
        "10.0.0.2:80",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:80",
    );
    let Ok(Route::Tunnel(tunnel)) = go(&via_pod, &web(), "10.96.0.1:80") else {
        panic!("no tunnel");
    };
    assert_eq!(tunnel.allowed, [identity("shop", "wp")]);
    assert_eq!(
        tunnel
            .service
            .map(|found| found.short_name.to_string())
            .as_deref(),
        Some("cart")
    );
}

#[test]
fn a_pod_behind_a_waypoint() {
    let guarded = |waypoint| Workload {
        waypoint: Some(waypoint),
        ..cart(&["10.0.0.2"])
    };
    let of = |waypoint| {
        let workloads = [web(), guarded(waypoint), waypoint_pod("wp", "10.0.0.9")];
        world(
            &workloads,
            &[waypoint_service("wp", "10.96.0.9"), cart_service(None)],
        )
    };
    let snapshot = of(by_name("wp"));
    check(
        "by its address",
        &snapshot,
        "10.0.0.2:80",
        "waypoint 10.0.0.9:15008 for 10.0.0.2:80",
    );
    check(
        "through its service",
        &snapshot,
        "10.96.0.1:80",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:8080",
    );
    check(
        "an unknown one",
        &of(by_name("gone")),
        "10.0.0.2:80",
        "waypoint_unknown",
    );
    let from_waypoint = go(&snapshot, &waypoint_pod("wp", "10.0.0.9"), "10.0.0.2:80");
    assert_eq!(
        told(&from_waypoint),
        "tunnel 10.0.0.2:15008 for 10.0.0.2:80",
        "from the waypoint itself"
    );
    let impostor = Workload {
        uid: "c//Pod/shop/impostor".into(),
        ..waypoint_pod("wp", "10.0.0.7")
    };
    let from_impostor = go(
        &snapshot,
        &Workload {
            services: [].into(),
            ..impostor
        },
        "10.0.0.2:80",
    );
    assert_eq!(
        told(&from_impostor),
        "waypoint 10.0.0.9:15008 for 10.0.0.2:80",
        "the same identity elsewhere"
    );
    let Ok(Route::Tunnel(tunnel)) = go(&snapshot, &web(), "10.0.0.2:80") else {
        panic!("no tunnel");
    };
    assert_eq!(
        tunnel.named.map(|found| found.name.to_string()).as_deref(),
        Some("cart")
    );
}

#[test]
fn what_cannot_be_reached_is_refused() {
    let refused = |case: &str, snapshot: &Snapshot, expected: &str| {
        check(case, snapshot, "10.96.0.1:80", expected);
    };
    refused(
        "unknown name",
        &mesh(&[], Some(by_name("gone"))),
        "waypoint_unknown",
    );
    refused(
        "unknown address",
        &mesh(&[], Some(by_address("10.96.0.77"))),
        "waypoint_unknown",
    );
    let elsewhere = GatewayAddress {
        destination: GatewayDestination::Address {
            network: "other".into(),
            ip: ip("10.0.0.9"),
        },
        hbone_port: HBONE_PORT,
    };
    refused(
        "another network",
        &mesh(&[], Some(elsewhere)),
        "waypoint_unknown",
    );
    let with_waypoint = |workload: Workload, waypoint: Service| {
        world(
            &[web(), cart(&["10.0.0.2"]), workload],
            &[waypoint, cart_service(Some(by_name("wp")))],
        )
    };
    let wp = || waypoint_pod("wp", "10.0.0.9");
    let wp_service = || waypoint_service("wp", "10.96.0.9");
    refused(
        "no instance",
        &with_waypoint(pod("shop", "x", &[]), wp_service()),
        "waypoint_unavailable",
    );
    refused(
        "no healthy instance",
        &with_waypoint(unhealthy(wp()), wp_service()),
        "waypoint_unavailable",
    );
    let other_port = service("wp", &["10.96.0.9"], &[port(80, 80)]);
    refused(
        "no tunnel port",
        &with_waypoint(wp(), other_port.clone()),
        "waypoint_unavailable",
    );
    let sandwich = Workload {
        application_tunnel: Some(ApplicationTunnel {
            protocol: ApplicationProtocol::Proxy,
            port: Some(15088),
        }),
        ..wp()
    };
    let through = "waypoint 10.0.0.9:15008 for 10.96.0.1:80";
    refused(
        "no tunnel port, but a tunnel to the application",
        &with_waypoint(sandwich, other_port),
        through,
    );
}

#[test]
fn a_waypoint_does_not_meet_itself() {
    let snapshot = mesh(&[], Some(by_name("wp")));
    let from_waypoint = go(&snapshot, &waypoint_pod("wp", "10.0.0.9"), "10.96.0.1:80");
    assert_eq!(
        told(&from_waypoint),
        "tunnel 10.0.0.2:15008 for 10.0.0.2:8080"
    );
}

#[test]
fn its_service_decides_where_its_tunnel_port_is() {
    let moved = service("wp", &["10.96.0.9"], &[port(15008, 16000)]);
    let workloads = [web(), waypoint_pod("wp", "10.0.0.9")];
    let snapshot = world(&workloads, &[moved, cart_service(Some(by_name("wp")))]);
    check(
        "a target port",
        &snapshot,
        "10.96.0.1:80",
        "waypoint 10.0.0.9:16000 for 10.96.0.1:80",
    );
}

#[test]
fn several_waypoints_share_by_weight() {
    let weighted = |weights: [u32; 2], single: Option<GatewayAddress>| Service {
        weighted_waypoints: ["wp", "wp2"]
            .into_iter()
            .zip(weights)
            .map(|(short, weight)| WeightedWaypoint {
                destination: by_name(short),
                weight,
            })
            .collect(),
        ..cart_service(single)
    };
    let shares = |weights, single| {
        let workloads = [
            web(),
            cart(&["10.0.0.2"]),
            waypoint_pod("wp", "10.0.0.9"),
            waypoint_pod("wp2", "10.0.0.10"),
        ];
        let services = [
            waypoint_service("wp", "10.96.0.9"),
            waypoint_service("wp2", "10.96.0.10"),
            weighted(weights, single),
        ];
        let snapshot = world(&workloads, &services);
        let mut rng = seeded(7);
        let mut counts = [0; 3];
        for _ in 0..1000 {
            match route(
                &snapshot,
                &web(),
                addr("10.96.0.1:80"),
                &Loads::default(),
                &mut rng,
            ) {
                Ok(Route::Tunnel(tunnel)) if tunnel.hop == Hop::Endpoint => counts[2] += 1,
                Ok(Route::Tunnel(tunnel)) => {
                    counts[usize::from(&*tunnel.workload.name == "wp2")] += 1
                }
                other => panic!("{other:?}"),
            }
        }
        counts
    };
    let [first, second, direct] = shares([3, 1], None);
    assert!(
        (700..800).contains(&first) && second == 1000 - first && direct == 0,
        "{first} {second}"
    );
    assert_eq!(shares([0, 5], None), [0, 1000, 0]);
    assert_eq!(
        shares([0, 0], Some(by_name("wp"))),
        [1000, 0, 0],
        "without weights the single one"
    );
    assert_eq!(
        shares([0, 0], None),
        [0, 0, 1000],
        "without weights and a single one, none"
    );
}

#[test]
fn a_failed_instance_is_not_asked_again() {
    let second = behind(unmeshed(pod("shop", "second", &["10.0.0.10"])), "wp", &[]);
    let snapshot = mesh(&[second], Some(by_name("wp")));
    let source = web();
    let uid = |name: &str| WorkloadUid::new(format!("c//Pod/shop/{name}"));
    let try_without = |failed: &[WorkloadUid]| {
        let attempt = Attempt {
            source: &source,
            destination: addr("10.96.0.1:80"),
            failed,
        };
        told(&route_again(
            &snapshot,
            &attempt,
            &Loads::default(),
            &mut seeded(1),
        ))
    };
    assert_eq!(
        try_without(&[uid("wp")]),
        "waypoint 10.0.0.10:15008 for 10.96.0.1:80"
    );
    assert_eq!(
        try_without(&[uid("second")]),
        "waypoint 10.0.0.9:15008 for 10.96.0.1:80"
    );
    assert_eq!(
        try_without(&[uid("wp"), uid("second")]),
        "endpoints_exhausted"
    );
}
