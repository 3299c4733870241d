mod balancing;
mod random;
mod waypoints;

use std::collections::HashMap;

use super::*;
use crate::fixture::{addr, behind, identity, ip, pod, port, service, service_name, world};
use crate::{
    Change, Health, HealthPolicy, IpFamilies, NetworkAddress, NetworkMode, TunnelProtocol,
    Visibility,
};

/// How busy workloads are; those not named are idle.
#[derive(Default)]
struct Loads(HashMap<WorkloadUid, u32>);

impl Load for Loads {
    fn outstanding(&self, workload: &WorkloadUid) -> u32 {
        self.0.get(workload).copied().unwrap_or(0)
    }
}

/// A generator that is the same in every run (the constants are Knuth's).
fn seeded(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut state = seed;
    move |bound| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let high = u32::try_from(state >> 32).expect("32 bits");
        u32::try_from((u64::from(high) * u64::from(bound)) >> 32).expect("below a u32")
    }
}

fn web() -> Workload {
    pod("shop", "web", &["10.0.0.1", "fd00::1"])
}

fn cart(addresses: &[&str]) -> Workload {
    behind(pod("shop", "cart", addresses), "cart", &[])
}

fn unmeshed(workload: Workload) -> Workload {
    Workload {
        tunnel_protocol: TunnelProtocol::None,
        ..workload
    }
}

fn unhealthy(workload: Workload) -> Workload {
    Workload {
        health: Health::Unhealthy,
        ..workload
    }
}

fn go(snapshot: &Snapshot, source: &Workload, destination: &str) -> Result<Route, Reject> {
    route(
        snapshot,
        source,
        addr(destination),
        &Loads::default(),
        &mut seeded(1),
    )
}

/// `tunnel A for B`, `waypoint A for B`, `plain A`, `pass through`, or the reason of a refusal.
fn told(outcome: &Result<Route, Reject>) -> String {
    match outcome {
        Ok(Route::Tunnel(tunnel)) => {
            let kind = match tunnel.hop {
                Hop::Endpoint => "tunnel",
                Hop::Waypoint => "waypoint",
            };
            format!("{kind} {} for {}", tunnel.address, tunnel.authority)
        }
        Ok(Route::Plain(plain)) => format!("plain {}", plain.address),
        Ok(Route::PassThrough(_)) => "pass through".to_owned(),
        Err(reject) => reject.reason().to_owned(),
    }
}

fn check(case: &str, snapshot: &Snapshot, destination: &str, expected: &str) {
    assert_eq!(told(&go(snapshot, &web(), destination)), expected, "{case}");
}

#[test]
fn by_the_address_of_a_pod() {
    let alone = |workload: Workload| world(&[web(), workload], &[]);
    let cart4 = || cart(&["10.0.0.2"]);
    check(
        "nobody known",
        &alone(cart4()),
        "10.9.9.9:80",
        "pass through",
    );
    check(
        "a pod of the mesh",
        &alone(cart4()),
        "10.0.0.2:80",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:80",
    );
    check(
        "IPv6",
        &alone(cart(&["fd00::2"])),
        "[fd00::2]:80",
        "tunnel [fd00::2]:15008 for [fd00::2]:80",
    );
    check(
        "IPv4 in IPv6 clothes",
        &alone(cart4()),
        "[::ffff:10.0.0.2]:80",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:80",
    );
    check(
        "a pod outside",
        &alone(unmeshed(cart4())),
        "10.0.0.2:80",
        "plain 10.0.0.2:80",
    );
    check(
        "health does not matter",
        &alone(unhealthy(cart4())),
        "10.0.0.2:80",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:80",
    );
    let on_host = Workload {
        network_mode: NetworkMode::HostNetwork,
        ..cart4()
    };
    check(
        "the node's own network",
        &alone(on_host),
        "10.0.0.2:80",
        "pass through",
    );
    let elsewhere = Workload {
        network: "other".into(),
        ..cart4()
    };
    check(
        "another network's address",
        &alone(elsewhere),
        "10.0.0.2:80",
        "pass through",
    );
}

#[test]
fn a_tunnel_says_whom_it_expects() {
    let mut cart_service = service("cart", &["10.96.0.1"], &[port(80, 8080)]);
    cart_service.subject_alt_names = vec![identity("shop", "cart"), identity("shop", "alias")];
    let snapshot = world(&[web(), cart(&["10.0.0.2"])], &[cart_service]);
    let Ok(Route::Tunnel(by_pod)) = go(&snapshot, &web(), "10.0.0.2:80") else {
        panic!("no tunnel");
    };
    assert_eq!(by_pod.allowed, [identity("shop", "cart")]);
    assert!(by_pod.service.is_none() && by_pod.named.is_some());
    let Ok(Route::Tunnel(by_service)) = go(&snapshot, &web(), "10.96.0.1:80") else {
        panic!("no tunnel");
    };
    assert_eq!(
        by_service.allowed,
        [identity("shop", "cart"), identity("shop", "alias")]
    );
    assert_eq!(
        by_service.service.map(|found| found.name.clone()),
        Some(service_name("cart", "shop"))
    );
    assert!(by_service.named.is_none());
}

/// One service on 10.96.0.1 with the workload behind it: port 80 goes to 8080,
/// port 81 is a named port.
fn one_endpoint(workload: Workload) -> Snapshot {
    let ports = [port(80, 8080), port(81, 0)];
    world(
        &[web(), workload],
        &[service("cart", &["10.96.0.1"], &ports)],
    )
}

#[test]
fn by_the_address_of_a_service() {
    let cart4 = || cart(&["10.0.0.2"]);
    let naming = || behind(cart4(), "cart", &[port(81, 9090), port(80, 7070)]);
    #[rustfmt::skip]
    let table = [
        ("the target port", cart4(), 80, "tunnel 10.0.0.2:15008 for 10.0.0.2:8080"),
        ("no such port", cart4(), 82, "no_service_port"),
        ("a named port nobody resolves", cart4(), 81, "no_usable_endpoint"),
        ("a named port", naming(), 81, "tunnel 10.0.0.2:15008 for 10.0.0.2:9090"),
        ("the endpoint's word counts", naming(), 80, "tunnel 10.0.0.2:15008 for 10.0.0.2:7070"),
        ("a port that only the endpoint has", naming(), 82, "no_service_port"),
        ("no endpoint", pod("shop", "x", &[]), 80, "no_endpoints"),
        ("an unhealthy one", unhealthy(cart4()), 80, "no_healthy_endpoint"),
        ("one outside the mesh", unmeshed(cart4()), 80, "plain 10.0.0.2:8080"),
        ("one without address", cart(&[]), 80, "no_usable_endpoint"),
    ];
    for (case, workload, port, expected) in table {
        check(
            case,
            &one_endpoint(workload),
            &format!("10.96.0.1:{port}"),
            expected,
        );
    }
}

#[test]
fn endpoints_in_special_places() {
    let cart4 = || cart(&["10.0.0.2"]);
    let idle = Workload {
        capacity: 0,
        ..cart4()
    };
    check(
        "without capacity",
        &one_endpoint(idle),
        "10.96.0.1:80",
        "no_usable_endpoint",
    );
    let elsewhere = Workload {
        network: "other".into(),
        ..cart4()
    };
    check(
        "on another network",
        &one_endpoint(elsewhere),
        "10.96.0.1:80",
        "other_network",
    );
    let on_host = Workload {
        network_mode: NetworkMode::HostNetwork,
        ..unmeshed(cart4())
    };
    check(
        "on its node's network",
        &one_endpoint(on_host),
        "10.96.0.1:80",
        "plain 10.0.0.2:8080",
    );
}

#[test]
fn unhealthy_endpoints_serve_where_the_service_says_so() {
    let mut lenient = service("cart", &["10.96.0.1"], &[port(80, 8080)]);
    lenient.load_balancing.health_policy = HealthPolicy::AllowAll;
    let snapshot = world(&[web(), unhealthy(cart(&["10.0.0.2"]))], &[lenient]);
    check(
        "allow all",
        &snapshot,
        "10.96.0.1:80",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:8080",
    );
}

#[test]
fn address_families() {
    let dual = ["10.0.0.2", "fd00::2"];
    let of = |addresses: &[&str], ip_families| {
        let cart_service = Service {
            ip_families,
            ..service("cart", &["10.96.0.1", "fd00:96::1"], &[port(80, 80)])
        };
        world(&[web(), cart(addresses)], &[cart_service])
    };
    let v4 = "tunnel 10.0.0.2:15008 for 10.0.0.2:80";
    let v6 = "tunnel [fd00::2]:15008 for [fd00::2]:80";
    use IpFamilies::{Automatic, Dual, Ipv4Only, Ipv6Only};
    check(
        "v4 client, dual pod",
        &of(&dual, Automatic),
        "10.96.0.1:80",
        v4,
    );
    check(
        "v6 client, dual pod",
        &of(&dual, Dual),
        "[fd00:96::1]:80",
        v6,
    );
    check(
        "v6 client, v4 pod",
        &of(&dual[..1], Automatic),
        "[fd00:96::1]:80",
        v4,
    );
    check(
        "v4 client, v6 pod",
        &of(&dual[1..], Automatic),
        "10.96.0.1:80",
        v6,
    );
    check(
        "v6 client, v4 service",
        &of(&dual, Ipv4Only),
        "[fd00:96::1]:80",
        v4,
    );
    check(
        "v4 client, v6 service",
        &of(&dual, Ipv6Only),
        "10.96.0.1:80",
        v6,
    );
    check(
        "v6 service, v4 pod",
        &of(&dual[..1], Ipv6Only),
        "10.96.0.1:80",
        "no_usable_endpoint",
    );
    let only4 = pod("shop", "web", &["10.0.0.1"]);
    let from4 = |snapshot: &Snapshot| told(&go(snapshot, &only4, "10.96.0.1:80"));
    assert_eq!(
        from4(&of(&dual[1..], Automatic)),
        "no_usable_endpoint",
        "a source without IPv6"
    );
    assert_eq!(from4(&of(&dual, Automatic)), v4);
}

#[test]
fn one_pod_behind_several_services() {
    let both = behind(
        behind(cart(&["10.0.0.2"]), "a", &[port(80, 1000)]),
        "b",
        &[port(80, 2000)],
    );
    let services = [
        service("a", &["10.96.0.1"], &[port(80, 0)]),
        service("b", &["10.96.0.2"], &[port(80, 0)]),
    ];
    let snapshot = world(&[web(), both], &services);
    check(
        "through a",
        &snapshot,
        "10.96.0.1:80",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:1000",
    );
    check(
        "through b",
        &snapshot,
        "10.96.0.2:80",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:2000",
    );
}

#[test]
fn a_headless_service_is_its_pods() {
    let snapshot = world(
        &[web(), cart(&["10.0.0.2"])],
        &[service("cart", &[], &[port(80, 8080)])],
    );
    check(
        "by the pod's address",
        &snapshot,
        "10.0.0.2:8080",
        "tunnel 10.0.0.2:15008 for 10.0.0.2:8080",
    );
}

#[test]
fn which_service_an_address_means() {
    let ports = [port(80, 80)];
    let in_namespace = |namespace: &str, target: u16| Service {
        name: service_name("cart", namespace),
        ..service("cart", &["10.96.0.1"], &[port(80, target)])
    };
    let endpoint = |namespace: &str| behind(pod(namespace, "cart", &["10.0.0.2"]), "cart", &[]);
    let seen = |services: &[Service]| {
        let outcome = go(
            &world(&[endpoint("shop"), endpoint("a"), endpoint("b")], services),
            &web(),
            "10.96.0.1:80",
        );
        match outcome {
            Ok(Route::Tunnel(tunnel)) => tunnel.authority.port(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        seen(&[in_namespace("a", 1), in_namespace("b", 2)]),
        1,
        "the first by name"
    );
    let canonical = Service {
        canonical: true,
        ..in_namespace("b", 2)
    };
    assert_eq!(
        seen(&[in_namespace("a", 1), canonical.clone()]),
        2,
        "the canonical one"
    );
    assert_eq!(
        seen(&[in_namespace("shop", 3), canonical.clone()]),
        3,
        "the client's own"
    );
    let hidden = Service {
        visibility: Visibility::Namespace,
        ..canonical
    };
    assert_eq!(
        seen(&[in_namespace("a", 1), hidden.clone()]),
        1,
        "one that it may see"
    );
    let snapshot = world(&[endpoint("b")], &[hidden]);
    check(
        "none that it may see",
        &snapshot,
        "10.96.0.1:80",
        "pass through",
    );
    let workload_first = world(
        &[web(), pod("shop", "x", &["10.96.0.1"])],
        &[service("cart", &["10.96.0.1"], &ports)],
    );
    check(
        "a workload before a service",
        &workload_first,
        "10.96.0.1:80",
        "tunnel 10.96.0.1:15008 for 10.96.0.1:80",
    );
}

#[test]
fn ranges_of_addresses() {
    let range = |short: &str, namespace: &str, net: &str| Service {
        name: service_name(short, namespace),
        addresses: vec![NetworkAddress {
            network: "".into(),
            net: net.parse().expect(net),
        }],
        ..service(short, &[], &[port(80, 80)])
    };
    let services = [
        range("wide", "a", "10.96.0.0/12"),
        range("narrow", "a", "10.96.1.0/24"),
        range("own", "shop", "10.0.0.0/8"),
        service("exact", &["10.96.1.1"], &[port(80, 80)]),
        range("six", "a", "fd00:96::/64"),
    ];
    let snapshot = world(&[], &services);
    let found = |text: &str, namespace: &str| {
        snapshot
            .service_at(ip(text), namespace)
            .map(|service| service.short_name.to_string())
    };
    let table = [
        ("10.96.1.1", "a", Some("exact")),
        ("10.96.1.2", "a", Some("narrow")),
        ("10.96.2.2", "a", Some("wide")),
        ("10.96.1.2", "shop", Some("own")),
        ("10.96.1.2", "other", Some("narrow")),
        ("10.1.1.1", "other", Some("own")),
        ("fd00:96::9", "other", Some("six")),
        ("11.0.0.1", "a", None),
    ];
    for (address, namespace, expected) in table {
        assert_eq!(
            found(address, namespace).as_deref(),
            expected,
            "{address} from {namespace}"
        );
    }
}

#[test]
fn passthrough_is_said_by_the_service() {
    let mut open = service("cart", &["10.96.0.1"], &[port(80, 80)]);
    open.load_balancing.mode = LoadBalancingMode::Passthrough;
    let snapshot = world(&[web(), cart(&["10.0.0.2"])], &[open]);
    let outcome = go(&snapshot, &web(), "10.96.0.1:80");
    assert!(
        matches!(outcome, Ok(Route::PassThrough(Some(_)))),
        "{outcome:?}"
    );
}

#[test]
fn an_address_that_is_used_again() {
    let old = pod("shop", "old", &["10.0.0.2"]);
    let new = pod("shop", "zzz", &["10.0.0.2"]);
    let expects = |snapshot: &Snapshot| match go(snapshot, &web(), "10.0.0.2:80") {
        Ok(Route::Tunnel(tunnel)) => tunnel.allowed,
        other => panic!("{other:?}"),
    };
    let leaving = world(&[unhealthy(old.clone()), new.clone()], &[]);
    assert_eq!(
        expects(&leaving),
        [identity("shop", "zzz")],
        "the one that is not leaving"
    );
    let gone = leaving.apply([Change::RemoveAddress(old.uid.to_string())]);
    assert_eq!(expects(&gone), [identity("shop", "zzz")]);
    let outside = unmeshed(Workload {
        uid: "c/x/WorkloadEntry/a/b".into(),
        ..old
    });
    let beside_outsider = world(&[outside, new], &[]);
    assert_eq!(
        expects(&beside_outsider),
        [identity("shop", "zzz")],
        "a pod before anything else"
    );
}

#[test]
fn after_a_failure_another_one_is_tried() {
    let endpoints = ["10.0.0.2", "10.0.0.3", "10.0.0.4"];
    let pods: Vec<_> = endpoints
        .iter()
        .map(|address| behind(pod("shop", address, &[address]), "cart", &[]))
        .collect();
    let snapshot = world(&pods, &[service("cart", &["10.96.0.1"], &[port(80, 80)])]);
    let mut failed = Vec::new();
    let source = web();
    for _ in &endpoints {
        let attempt = Attempt {
            source: &source,
            destination: addr("10.96.0.1:80"),
            failed: &failed,
        };
        match route_again(&snapshot, &attempt, &Loads::default(), &mut seeded(1)) {
            Ok(Route::Tunnel(tunnel)) => {
                assert!(!failed.contains(&tunnel.workload.uid));
                failed.push(tunnel.workload.uid.clone());
            }
            other => panic!("{other:?}"),
        }
    }
    let last = |destination| {
        let attempt = Attempt {
            source: &source,
            destination: addr(destination),
            failed: &failed,
        };
        told(&route_again(
            &snapshot,
            &attempt,
            &Loads::default(),
            &mut seeded(1),
        ))
    };
    assert_eq!(last("10.96.0.1:80"), "endpoints_exhausted");
    assert_eq!(last("10.0.0.2:80"), "endpoints_exhausted");
}

#[test]
fn the_other_family_is_another_address_of_the_same_endpoint() {
    let dual = ["10.0.0.2", "fd00::2"];
    let told_other = |source: &Workload, cart: Workload, ip_families, destination: &str| {
        let cart_service = Service {
            ip_families,
            ..service("cart", &["10.96.0.1", "fd00:96::1"], &[port(80, 80)])
        };
        let route = go(&world(&[web(), cart], &[cart_service]), source, destination);
        let other = route.expect("a route").in_other_family(source);
        other.map_or("none".to_owned(), |other| {
            // There is no third family.
            let again = other.in_other_family(source).expect("back");
            assert_ne!(again, other);
            told(&Ok(other))
        })
    };
    use IpFamilies::{Automatic, Dual, Ipv4Only, Ipv6Only};
    let (v4, v6) = ("10.96.0.1:80", "[fd00:96::1]:80");
    let only_v4 = pod("shop", "web", &["10.0.0.1"]);
    let to_v4 = "tunnel 10.0.0.2:15008 for 10.0.0.2:80";
    let to_v6 = "tunnel [fd00::2]:15008 for [fd00::2]:80";
    #[rustfmt::skip]
    let table = [
        ("a pod's address", web(), cart(&dual), Automatic, "10.0.0.2:80", "none"),
        ("a pod's IPv6 address", web(), cart(&dual), Automatic, "[fd00::2]:80", "none"),
        ("an address outside", web(), cart(&dual), Automatic, "192.0.2.1:80", "none"),
        ("an endpoint of one family", web(), cart(&dual[..1]), Automatic, v6, "none"),
        ("a source of one family", only_v4, cart(&dual), Automatic, v4, "none"),
        ("a service of IPv4 alone", web(), cart(&dual), Ipv4Only, v4, "none"),
        ("a service of IPv6 alone", web(), cart(&dual), Ipv6Only, v6, "none"),
        ("from IPv4", web(), cart(&dual), Automatic, v4, to_v6),
        ("from IPv6", web(), cart(&dual), Dual, v6, to_v4),
        ("not in the mesh", web(), unmeshed(cart(&dual)), Automatic, v6, "plain 10.0.0.2:80"),
    ];
    for (case, source, cart, ip_families, destination, expected) in table {
        let found = told_other(&source, cart, ip_families, destination);
        assert_eq!(found, expected, "{case}");
    }
}
