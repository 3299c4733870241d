mod random;

use super::*;
use crate::fixture::{behind, ip, pod, policy_name, port, service, service_name};
use crate::{Action, NetworkAddress, NetworkMode, TunnelProtocol, Visibility};

fn uids(workloads: &[Arc<Workload>]) -> Vec<&str> {
    workloads
        .iter()
        .map(|workload| workload.uid.as_str())
        .collect()
}

fn endpoint_uids(snapshot: &Snapshot, name: &ServiceName) -> Vec<String> {
    let endpoints = snapshot.endpoints(name).iter();
    endpoints
        .map(|endpoint| endpoint.workload.uid.to_string())
        .collect()
}

#[test]
fn who_is_preferred_at_an_address() {
    let named = |uid: &str, tunnel_protocol| {
        let workload = Workload {
            uid: uid.into(),
            tunnel_protocol,
            ..pod("a", "x", &["10.0.0.1", "10.0.0.1"])
        };
        Change::Workload(workload)
    };
    let snapshot = Snapshot::empty().apply([
        named("c/x/Entry/a/1", TunnelProtocol::None),
        named("c/x/Entry/a/2", TunnelProtocol::Hbone),
        named("c//Pod/a/2", TunnelProtocol::None),
        named("c//Pod/a/3", TunnelProtocol::Hbone),
        named("c//Pod/a/1", TunnelProtocol::None),
    ]);
    let expected = [
        "c//Pod/a/3",
        "c//Pod/a/1",
        "c//Pod/a/2",
        "c/x/Entry/a/2",
        "c/x/Entry/a/1",
    ];
    assert_eq!(uids(snapshot.workloads_at(ip("10.0.0.1"))), expected);
    assert_eq!(uids(snapshot.workloads_at(ip("::ffff:10.0.0.1"))), expected);
    assert_eq!(
        snapshot
            .workload_at(ip("10.0.0.1"))
            .map(|found| found.uid.as_str()),
        Some("c//Pod/a/3")
    );
}

#[test]
fn a_moved_workload_leaves_nothing_behind() {
    let name = service_name("s", "a");
    let before = behind(pod("a", "x", &["10.0.0.1"]), "s", &[]);
    let before = Workload {
        hostname: "x.example".into(),
        ..before
    };
    let after = Workload {
        uid: before.uid.clone(),
        ..pod("a", "x", &["10.0.0.2"])
    };
    let first = Snapshot::empty().apply([Change::Workload(before)]);
    assert_eq!(endpoint_uids(&first, &name), ["c//Pod/a/x"]);
    assert_eq!(first.workloads_named("x.example").len(), 1);
    let second = first.apply([Change::Workload(after.clone())]);
    assert!(second.workload_at(ip("10.0.0.1")).is_none());
    assert!(second.workload_at(ip("10.0.0.2")).is_some());
    assert!(second.endpoints(&name).is_empty());
    assert!(second.workloads_named("x.example").is_empty());
    assert_eq!(
        second,
        Snapshot::empty().apply([Change::Workload(after.clone())])
    );
    let third = second.apply([Change::RemoveAddress(after.uid.to_string())]);
    assert_eq!(third, Snapshot::empty());
    assert_eq!(
        first.workloads_named("x.example").len(),
        1,
        "the old view stays as it was"
    );
}

#[test]
fn endpoints_may_come_before_their_service() {
    let name = service_name("s", "a");
    let early = Snapshot::empty().apply([Change::Workload(behind(
        pod("a", "x", &[]),
        "s",
        &[port(80, 8080)],
    ))]);
    assert!(early.service(&name).is_none());
    assert_eq!(early.endpoints(&name)[0].target_port(80), Some(8080));
    let service = Service {
        name: name.clone(),
        ..service("s", &[], &[])
    };
    let known = early.apply([Change::Service(service.clone())]);
    assert_eq!(endpoint_uids(&known, &name), ["c//Pod/a/x"]);
    let renewed = known.apply([Change::Service(Service {
        canonical: true,
        ..service
    })]);
    assert_eq!(
        endpoint_uids(&renewed, &name),
        ["c//Pod/a/x"],
        "a service's update keeps its endpoints"
    );
    let gone = renewed.apply([Change::RemoveAddress(name.to_string())]);
    assert!(gone.service(&name).is_none());
    assert_eq!(
        endpoint_uids(&gone, &name),
        ["c//Pod/a/x"],
        "for when it comes back"
    );
}

#[test]
fn a_removal_means_a_workload_before_a_service() {
    let name = service_name("s", "a");
    let service = Service {
        name: name.clone(),
        ..service("s", &["10.96.0.1"], &[])
    };
    let namesake = Workload {
        uid: WorkloadUid::new(name.to_string()),
        ..pod("a", "x", &[])
    };
    let both = Snapshot::empty().apply([Change::Service(service), Change::Workload(namesake)]);
    let one = both.apply([Change::RemoveAddress(name.to_string())]);
    assert_eq!((one.workloads().count(), one.services().count()), (0, 1));
    let none = one.apply([Change::RemoveAddress(name.to_string())]);
    assert_eq!(none, Snapshot::empty());
    let same = none.apply(
        ["", "a", "a/b/c/d", "c//Pod/a/x"].map(|name| Change::RemoveAddress(name.to_owned())),
    );
    assert_eq!(same, none, "unknown names mean nothing");
}

#[test]
fn only_addresses_of_our_network_are_found() {
    let workload = Workload {
        network: "n2".into(),
        ..pod("a", "x", &["10.0.0.1"])
    };
    let service = Service {
        addresses: vec![
            NetworkAddress::host("n1", ip("10.96.0.1")),
            NetworkAddress::host("n2", ip("10.96.0.2")),
            NetworkAddress {
                network: "n1".into(),
                net: "10.97.0.0/16".parse().expect("valid"),
            },
        ],
        ..service("s", &[], &[])
    };
    let changes = [Change::Workload(workload), Change::Service(service)];
    let seen = |network: &str| {
        let snapshot = Snapshot::for_network(network).apply(changes.clone());
        let at = |address| snapshot.service_at(ip(address), "a").is_some();
        (
            snapshot.workload_at(ip("10.0.0.1")).is_some(),
            at("10.96.0.1"),
            at("10.96.0.2"),
            at("10.97.1.1"),
        )
    };
    assert_eq!(seen("n1"), (false, true, false, true));
    assert_eq!(seen("n2"), (true, false, true, false));
    assert_eq!(seen(""), (false, false, false, false));
}

#[test]
fn a_workload_on_its_nodes_network_is_found_by_key_only() {
    let on_host = Workload {
        network_mode: NetworkMode::HostNetwork,
        ..pod("a", "x", &["10.0.0.1"])
    };
    let snapshot = Snapshot::empty().apply([Change::Workload(on_host.clone())]);
    assert!(snapshot.workload_at(ip("10.0.0.1")).is_none());
    assert!(snapshot.workload(&on_host.uid).is_some());
}

#[test]
fn a_hostname_means_the_clients_own_service_first() {
    let of = |namespace: &str| Service {
        name: ServiceName::new(namespace, "db.example"),
        ..service("db", &[], &[])
    };
    let hidden = Service {
        visibility: Visibility::Namespace,
        ..of("a")
    };
    let canonical = Service {
        canonical: true,
        ..of("c")
    };
    let snapshot = Snapshot::empty().apply([hidden, of("b"), canonical].map(Change::Service));
    let found = |namespace: &str| {
        snapshot
            .service_named("db.example", namespace)
            .map(|s| s.name.namespace.to_string())
    };
    assert_eq!(found("a").as_deref(), Some("a"));
    assert_eq!(found("b").as_deref(), Some("b"));
    assert_eq!(found("x").as_deref(), Some("c"));
    assert_eq!(snapshot.services_named("db.example").len(), 3);
    assert!(snapshot.service_named("other.example", "a").is_none());
}

#[test]
fn policies_of_a_workload_are_listed_once() {
    let of = |name: &str, scope| {
        Change::Policy(Policy::new(policy_name(name), scope, Action::Deny, vec![]))
    };
    let snapshot = Snapshot::empty().apply([
        of("root/g", Scope::Global),
        of("a/n", Scope::Namespace),
        of("a/w", Scope::WorkloadSelector),
        of("a/other", Scope::WorkloadSelector),
        of("b/n", Scope::Namespace),
    ]);
    let workload = Workload {
        authorization_policies: ["a/w", "a/n", "a/gone"].map(policy_name).into(),
        ..pod("a", "x", &[])
    };
    let listed: Vec<_> = snapshot
        .policies_of(&workload)
        .iter()
        .map(|policy| policy.name.to_string())
        .collect();
    assert_eq!(listed, ["a/n", "a/w", "root/g"]);
}

#[test]
fn many_endpoints_come_in_one_batch_without_copying_each_time() {
    let all = (0..20_000)
        .map(|number| Change::Workload(behind(pod("a", &format!("x{number}"), &[]), "s", &[])));
    let snapshot = Snapshot::empty().apply(all);
    assert_eq!(snapshot.endpoints(&service_name("s", "a")).len(), 20_000);
}
