//! The engine against the oracle, on policies and connections from a world so
//! small that most conditions meet.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::oracle;
use super::*;

fn namespace() -> impl Strategy<Value = &'static str> {
    select(vec!["a", "b", "ab"])
}

fn account_name() -> impl Strategy<Value = &'static str> {
    select(vec!["x", "y"])
}

fn string_match() -> impl Strategy<Value = StringMatch> {
    let texts = || {
        select(vec![
            "",
            "a",
            "b",
            "ab",
            "cluster.local/ns/a",
            "cluster.local/ns/a/sa/x",
            "/sa/x",
            "x",
        ])
    };
    prop_oneof![
        texts().prop_map(|text| StringMatch::Exact(text.into())),
        texts().prop_map(|text| StringMatch::Prefix(text.into())),
        texts().prop_map(|text| StringMatch::Suffix(text.into())),
        Just(StringMatch::Presence),
    ]
}

fn net() -> impl Strategy<Value = ipnet::IpNet> {
    select(nets(&[
        "10.0.0.1/32",
        "10.0.0.0/31",
        "10.0.0.0/8",
        "0.0.0.0/0",
        "fd00::1/128",
        "fd00::/64",
        "::/0",
    ]))
}

fn address() -> impl Strategy<Value = IpAddr> {
    select(
        [
            "10.0.0.0",
            "10.0.0.1",
            "11.0.0.1",
            "fd00::1",
            "fd01::1",
            "::ffff:10.0.0.1",
        ]
        .map(ip)
        .to_vec(),
    )
}

fn port_number() -> impl Strategy<Value = u16> {
    select(vec![1, 2, 3, 65535])
}

fn port_range() -> impl Strategy<Value = PortRange> {
    (port_number(), port_number()).prop_map(|(a, b)| PortRange {
        first: a.min(b),
        last: a.max(b),
    })
}

fn service_account() -> impl Strategy<Value = ServiceAccount> {
    (namespace(), account_name()).prop_map(|(namespace, name)| ServiceAccount {
        namespace: namespace.into(),
        name: name.into(),
    })
}

fn set() -> impl Strategy<Value = std::sync::Arc<str>> {
    select(vec!["s", "t"]).prop_map(Into::into)
}

/// Mostly empty, as in life; otherwise one or two values.
fn few<T>(of: impl Strategy<Value = T> + 'static) -> impl Strategy<Value = Vec<T>>
where
    T: std::fmt::Debug + Clone + 'static,
{
    prop_oneof![5 => Just(Vec::new()), 2 => vec(of, 1..3)]
}

fn conditions() -> impl Strategy<Value = Match> {
    let peers = (
        few(string_match()),
        few(string_match()),
        few(string_match()),
        few(string_match()),
        few(service_account()),
        few(service_account()),
        few(set()),
        few(set()),
    );
    let places = (
        few(net()),
        few(net()),
        few(net()),
        few(net()),
        few(port_number()),
        few(port_number()),
        few(port_range()),
        few(port_range()),
    );
    (peers, places).prop_map(|(peers, places)| Match {
        namespaces: peers.0,
        not_namespaces: peers.1,
        principals: peers.2,
        not_principals: peers.3,
        service_accounts: peers.4,
        not_service_accounts: peers.5,
        peer_sets: peers.6,
        not_peer_sets: peers.7,
        source_ips: places.0,
        not_source_ips: places.1,
        destination_ips: places.2,
        not_destination_ips: places.3,
        destination_ports: places.4,
        not_destination_ports: places.5,
        destination_port_ranges: places.6,
        not_destination_port_ranges: places.7,
    })
}

fn policy_of_name(name: &'static str) -> impl Strategy<Value = Policy> {
    let rules = vec(conditions(), 0..3).prop_map(|matches| Rules { matches });
    let groups = vec(vec(rules, 0..3).prop_map(|rules| Group { rules }), 0..3);
    let scope = select(vec![
        Scope::Global,
        Scope::Namespace,
        Scope::WorkloadSelector,
    ]);
    let action = select(vec![Action::Allow, Action::Deny]);
    let origin = option::of(select(vec!["NetworkPolicy", "AuthorizationPolicy"]));
    let origin = origin.prop_map(|kind| {
        kind.map(|kind| Origin {
            kind: kind.into(),
            namespace: "a".into(),
            name: "1".into(),
            audit: false,
        })
    });
    (scope, action, prop::bool::weighted(0.2), groups, origin).prop_map(
        move |(scope, action, dry_run, groups, origin)| Policy {
            dry_run,
            origin,
            ..Policy::new(policy_name(name), scope, action, groups)
        },
    )
}

fn policies() -> impl Strategy<Value = Vec<Policy>> {
    let all: Vec<_> = ["a/1", "a/2", "b/1", "b/2", "r/1"]
        .map(|name| option::of(policy_of_name(name)).boxed())
        .into();
    all.prop_map(|found| found.into_iter().flatten().collect())
}

fn workload() -> impl Strategy<Value = Workload> {
    (
        namespace(),
        account_name(),
        vec(set(), 0..3),
        vec(address(), 0..3),
    )
        .prop_map(|(namespace, name, peer_sets, addresses)| Workload {
            peer_sets,
            addresses: addresses.iter().map(IpAddr::to_canonical).collect(),
            ..pod(namespace, name, &[])
        })
}

fn named() -> impl Strategy<Value = Vec<PolicyName>> {
    vec(
        select(vec!["a/1", "a/2", "b/1", "b/2"]).prop_map(policy_name),
        0..3,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn ingress_agrees_with_the_oracle(
        policies in policies(),
        destination in workload(),
        named in named(),
        source_ip in address(),
        source_identity in option::of((namespace(), account_name())),
        source_workload in option::of(workload()),
        destination_ip in address(),
        destination_port in port_number(),
    ) {
        let snapshot = Snapshot::empty().apply(policies.iter().cloned().map(Change::Policy));
        let destination = Workload { authorization_policies: named, ..destination };
        let source_identity = source_identity.map(|(namespace, name)| identity(namespace, name));
        let connection = PeerConnection {
            source_ip,
            source_identity: source_identity.as_ref(),
            source_workload: source_workload.as_ref(),
            destination: SocketAddr::new(destination_ip, destination_port),
        };
        let verdict = authorize(&snapshot, &destination, &connection);
        let expected = oracle::ingress(&policies, &destination, &connection);
        prop_assert_eq!(oracle::Outcome::of(&verdict), expected);
    }

    #[test]
    fn egress_agrees_with_the_oracle(
        policies in policies(),
        source in workload(),
        named in named(),
        destination_workload in option::of(workload()),
        destination_ip in address(),
        destination_port in port_number(),
    ) {
        let snapshot = Snapshot::empty().apply(policies.iter().cloned().map(Change::EgressPolicy));
        let source = Workload { egress_policies: named, ..source };
        let destination = SocketAddr::new(destination_ip, destination_port);
        let verdict = authorize_egress(&snapshot, &source, destination, destination_workload.as_ref());
        let expected = oracle::egress(&policies, &source, destination, destination_workload.as_ref());
        prop_assert_eq!(oracle::Outcome::of(&verdict), expected);
    }
}
