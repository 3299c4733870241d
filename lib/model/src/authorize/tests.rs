mod oracle;
mod random;

use super::*;
use crate::fixture::{addr, identity, ip, pod, policy_name};
use crate::{Change, Group, Match, PortRange, Rules, ServiceAccount, StringMatch};

/// Conditions that hold for the connection of [`judge_for`].
fn port_8080() -> Match {
    Match {
        destination_ports: vec![8080],
        ..Match::default()
    }
}

fn port_9() -> Match {
    Match {
        destination_ports: vec![9],
        ..Match::default()
    }
}

fn rules(matches: Vec<Match>) -> Rules {
    Rules { matches }
}

fn group(rules: Vec<Rules>) -> Group {
    Group { rules }
}

fn one(conditions: Match) -> Vec<Group> {
    vec![group(vec![rules(vec![conditions])])]
}

fn policy(name: &str, action: Action, groups: Vec<Group>) -> Policy {
    Policy::new(policy_name(name), Scope::Namespace, action, groups)
}

fn deny_of(name: &str, groups: Vec<Group>) -> Policy {
    policy(name, Action::Deny, groups)
}

fn allow_of(name: &str, groups: Vec<Group>) -> Policy {
    policy(name, Action::Allow, groups)
}

fn dry(policy: Policy) -> Policy {
    Policy {
        dry_run: true,
        ..policy
    }
}

/// A connection from `shop/web` at 10.0.0.1 to port 8080 of `shop/cart` at 10.0.0.2.
fn judge_for(destination: &Workload, policies: &[Policy]) -> Verdict {
    let snapshot = Snapshot::empty().apply(policies.iter().cloned().map(Change::Policy));
    let source = identity("shop", "web");
    let connection = PeerConnection {
        source_ip: ip("10.0.0.1"),
        source_identity: Some(&source),
        source_workload: None,
        destination: addr("10.0.0.2:8080"),
    };
    authorize(&snapshot, destination, &connection)
}

fn cart() -> Workload {
    pod("shop", "cart", &["10.0.0.2"])
}

/// `allow`, `allow by P`, `deny by P`, `no allow`, `unknown P`, `unreadable P`.
fn told(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Allow { matched: None, .. } => "allow".to_owned(),
        Verdict::Allow {
            matched: Some(policy),
            ..
        } => format!("allow by {policy}"),
        Verdict::Deny(denial) => {
            let policy = denial
                .policy
                .as_ref()
                .map(|policy| format!(" {policy}"))
                .unwrap_or_default();
            let kind = match denial.reason {
                DenyReason::DenyPolicy => "deny by",
                DenyReason::NoAllowMatched => "no allow",
                DenyReason::PolicyUnknown => "unknown",
                DenyReason::PolicyUnreadable => "unreadable",
            };
            format!("{kind}{policy}")
        }
    }
}

#[test]
fn order_of_judgement() {
    let yes = || one(port_8080());
    let no = || one(port_9());
    #[rustfmt::skip]
    let table: Vec<(&str, Vec<Policy>, &str, &[&str])> = vec![
        ("nothing applies", vec![], "allow", &[]),
        ("a DENY that matches", vec![deny_of("shop/d", yes())], "deny by shop/d", &[]),
        ("a DENY that does not", vec![deny_of("shop/d", no())], "allow", &[]),
        ("an ALLOW that matches", vec![allow_of("shop/a", yes())], "allow by shop/a", &[]),
        ("an ALLOW that does not", vec![allow_of("shop/a", no())], "no allow", &[]),
        ("one of two ALLOWs", vec![allow_of("shop/a", no()), allow_of("shop/b", yes())], "allow by shop/b", &[]),
        ("DENY before ALLOW", vec![allow_of("shop/a", yes()), deny_of("shop/d", yes())], "deny by shop/d", &[]),
        ("DENY that does not match beside an ALLOW that does not", vec![allow_of("shop/a", no()), deny_of("shop/d", no())], "no allow", &[]),
        ("a dry-run DENY", vec![dry(deny_of("shop/d", yes()))], "allow", &["shop/d"]),
        ("a dry-run DENY and an enforced one", vec![dry(deny_of("shop/x", yes())), deny_of("shop/d", yes())], "deny by shop/d", &["shop/x"]),
        ("a dry-run ALLOW that matches", vec![dry(allow_of("shop/a", yes()))], "allow", &["shop/a"]),
        ("a dry-run ALLOW is no implicit deny", vec![dry(allow_of("shop/a", no()))], "allow", &[]),
        ("a dry-run ALLOW does not help", vec![dry(allow_of("shop/a", yes())), allow_of("shop/b", no())], "no allow", &["shop/a"]),
        ("a dry-run ALLOW after a DENY is not reached", vec![dry(allow_of("shop/a", yes())), deny_of("shop/d", yes())], "deny by shop/d", &[]),
        ("ALLOW without groups denies everything", vec![allow_of("shop/a", vec![])], "no allow", &[]),
        ("DENY without groups does nothing", vec![deny_of("shop/d", vec![])], "allow", &[]),
        ("a group without rules matches everything", vec![deny_of("shop/d", vec![Group::default()])], "deny by shop/d", &[]),
        ("rules without match are true", vec![deny_of("shop/d", vec![group(vec![Rules::default()])])], "deny by shop/d", &[]),
        ("a match without field is skipped", vec![deny_of("shop/d", one(Match::default()))], "allow", &[]),
        ("beside one that says something", vec![deny_of("shop/d", vec![group(vec![rules(vec![Match::default(), port_8080()])])])], "deny by shop/d", &[]),
        ("rules are AND-ed", vec![deny_of("shop/d", vec![group(vec![rules(vec![port_8080()]), rules(vec![port_9()])])])], "allow", &[]),
        ("matches are OR-ed", vec![deny_of("shop/d", vec![group(vec![rules(vec![port_9(), port_8080()])])])], "deny by shop/d", &[]),
        ("groups are OR-ed", vec![deny_of("shop/d", [no(), yes()].concat())], "deny by shop/d", &[]),
    ];
    for (case, policies, expected, dry_run) in table {
        let verdict = judge_for(&cart(), &policies);
        assert_eq!(told(&verdict), expected, "{case}");
        let noted: Vec<_> = verdict
            .dry_run()
            .iter()
            .map(|one| one.policy.to_string())
            .collect();
        assert_eq!(noted, dry_run, "{case}");
    }
}

#[test]
fn scopes() {
    let yes = one(port_8080());
    let scoped = |scope, name: &str| Policy {
        scope,
        ..deny_of(name, yes.clone())
    };
    let naming = |name: &str| Workload {
        authorization_policies: vec![policy_name(name)],
        ..cart()
    };
    let table = [
        (Scope::Global, "root/d", cart(), "deny by root/d"),
        (Scope::Namespace, "shop/d", cart(), "deny by shop/d"),
        (Scope::Namespace, "other/d", cart(), "allow"),
        (Scope::WorkloadSelector, "shop/d", cart(), "allow"),
        (
            Scope::WorkloadSelector,
            "shop/d",
            naming("shop/d"),
            "deny by shop/d",
        ),
        (
            Scope::WorkloadSelector,
            "other/d",
            naming("other/d"),
            "deny by other/d",
        ),
        (
            Scope::Namespace,
            "other/d",
            naming("other/d"),
            "deny by other/d",
        ),
        (
            Scope::WorkloadSelector,
            "shop/x",
            naming("shop/d"),
            "unknown shop/d",
        ),
    ];
    for (scope, name, destination, expected) in table {
        let verdict = judge_for(&destination, &[scoped(scope, name)]);
        assert_eq!(told(&verdict), expected, "{scope:?} {name}");
    }
}

#[test]
fn a_policy_that_applies_twice_is_noted_once() {
    let destination = Workload {
        authorization_policies: vec![policy_name("shop/d")],
        ..cart()
    };
    let verdict = judge_for(&destination, &[dry(deny_of("shop/d", one(port_8080())))]);
    assert_eq!(verdict.dry_run().len(), 1);
}

#[test]
fn an_unknown_policy_refuses_after_a_known_reason_and_before_an_allow() {
    let destination = Workload {
        authorization_policies: vec![policy_name("shop/gone")],
        ..cart()
    };
    let allow = allow_of("shop/a", one(port_8080()));
    let deny = deny_of("shop/d", one(port_8080()));
    assert_eq!(
        told(&judge_for(&destination, std::slice::from_ref(&allow))),
        "unknown shop/gone"
    );
    assert_eq!(
        told(&judge_for(&destination, &[allow, deny])),
        "deny by shop/d"
    );
}

#[test]
fn an_unreadable_policy_closes_its_scope_unless_something_was_known_of_it() {
    let unreadable = |scope| Change::UnreadablePolicy(policy_name("shop/p"), scope);
    let connection = PeerConnection {
        source_ip: ip("10.0.0.1"),
        source_identity: None,
        source_workload: None,
        destination: addr("10.0.0.2:8080"),
    };
    let judge = |snapshot: &Snapshot| told(&authorize(snapshot, &cart(), &connection));
    let first = Snapshot::empty().apply([unreadable(Scope::Namespace)]);
    assert_eq!(judge(&first), "unreadable shop/p");
    let readable = first.apply([Change::Policy(allow_of("shop/p", one(port_8080())))]);
    assert_eq!(judge(&readable), "allow by shop/p");
    let again = readable.apply([unreadable(Scope::Global)]);
    assert_eq!(judge(&again), "allow by shop/p");
    let gone = again.apply([Change::RemovePolicy(policy_name("shop/p"))]);
    assert_eq!(judge(&gone), "allow");
    let global = gone.apply([unreadable(Scope::Global)]);
    assert_eq!(judge(&global), "unreadable shop/p");
}

#[test]
fn a_denial_tells_policy_rule_and_origin() {
    let denying = Policy {
        origin: Some(Origin {
            kind: "NetworkPolicy".into(),
            namespace: "shop".into(),
            name: "web-only".into(),
            audit: false,
        }),
        ..deny_of("shop/np", [one(port_9()), one(port_8080())].concat())
    };
    let Verdict::Deny(denial) = judge_for(&cart(), std::slice::from_ref(&denying)) else {
        panic!("allowed");
    };
    assert_eq!(denial.rule, Some(1));
    assert_eq!(denial.origin, denying.origin);
    assert_eq!(
        denial.to_string(),
        "denied by policy shop/np rule 1 (NetworkPolicy shop/web-only)"
    );
    assert_eq!(denial.reason.reason(), "deny_policy");
}

fn text(kind: fn(std::sync::Arc<str>) -> StringMatch, value: &str) -> Vec<StringMatch> {
    vec![kind(value.into())]
}

fn nets(values: &[&str]) -> Vec<ipnet::IpNet> {
    values
        .iter()
        .map(|value| value.parse().expect(value))
        .collect()
}

fn account(namespace: &str, name: &str) -> Vec<ServiceAccount> {
    vec![ServiceAccount {
        namespace: namespace.into(),
        name: name.into(),
    }]
}

/// Each field alone, for a peer that proved to be `shop/web` and for one that
/// proved nothing.
#[test]
fn fields() {
    use StringMatch::{Exact, Prefix, Presence, Suffix};
    let principal = "cluster.local/ns/shop/sa/web";
    let none = Match::default;
    let range = |first, last| vec![PortRange { first, last }];
    #[rustfmt::skip]
    let table: Vec<(&str, Match, bool, bool)> = vec![
        ("exact principal", Match { principals: text(Exact, principal), ..none() }, true, false),
        ("other principal", Match { principals: text(Exact, "cluster.local/ns/shop/sa/x"), ..none() }, false, false),
        ("principal with its scheme", Match { principals: text(Exact, &format!("spiffe://{principal}")), ..none() }, false, false),
        ("principal prefix", Match { principals: text(Prefix, "cluster.local/ns/shop/"), ..none() }, true, false),
        ("principal suffix", Match { principals: text(Suffix, "/sa/web"), ..none() }, true, false),
        ("empty prefix still needs an identity", Match { principals: text(Prefix, ""), ..none() }, true, false),
        ("any principal", Match { principals: vec![Presence], ..none() }, true, false),
        ("no principal", Match { not_principals: vec![Presence], ..none() }, false, true),
        ("not that principal", Match { not_principals: text(Exact, principal), ..none() }, false, true),
        ("values are OR-ed", Match { principals: [text(Exact, "x"), text(Suffix, "web")].concat(), ..none() }, true, false),
        ("negated values are NOR-ed", Match { not_principals: [text(Exact, "x"), text(Suffix, "web")].concat(), ..none() }, false, true),
        ("namespace", Match { namespaces: text(Exact, "shop"), ..none() }, true, false),
        ("no namespace is the empty one", Match { namespaces: text(Exact, ""), ..none() }, false, true),
        ("any namespace", Match { namespaces: vec![Presence], ..none() }, true, false),
        ("empty prefix of a namespace", Match { namespaces: text(Prefix, ""), ..none() }, true, true),
        ("not that namespace", Match { not_namespaces: text(Exact, "shop"), ..none() }, false, true),
        ("service account", Match { service_accounts: account("shop", "web"), ..none() }, true, false),
        ("service account elsewhere", Match { service_accounts: account("x", "web"), ..none() }, false, false),
        ("not that service account", Match { not_service_accounts: account("shop", "web"), ..none() }, false, true),
        ("source address", Match { source_ips: nets(&["10.0.0.1/32"]), ..none() }, true, true),
        ("source range", Match { source_ips: nets(&["10.0.0.0/8"]), ..none() }, true, true),
        ("source range of the other family", Match { source_ips: nets(&["::/0"]), ..none() }, false, false),
        ("not the source range", Match { not_source_ips: nets(&["10.0.0.0/8"]), ..none() }, false, false),
        ("all but a hole", Match { source_ips: nets(&["10.0.0.0/8"]), not_source_ips: nets(&["10.0.0.1/32"]), ..none() }, false, false),
        ("destination address", Match { destination_ips: nets(&["10.0.0.2/32"]), ..none() }, true, true),
        ("not the destination address", Match { not_destination_ips: nets(&["10.0.0.2/32"]), ..none() }, false, false),
        ("port", Match { destination_ports: vec![1, 8080], ..none() }, true, true),
        ("not the port", Match { not_destination_ports: vec![1, 8080], ..none() }, false, false),
        ("not another port", Match { not_destination_ports: vec![1], ..none() }, true, true),
        ("first of a range", Match { destination_port_ranges: range(8080, 9000), ..none() }, true, true),
        ("last of a range", Match { destination_port_ranges: range(1, 8080), ..none() }, true, true),
        ("beside a range", Match { destination_port_ranges: range(8081, 9000), ..none() }, false, false),
        ("not in a range", Match { not_destination_port_ranges: range(8000, 9000), ..none() }, false, false),
        ("port and range are AND-ed", Match { destination_port_ranges: range(1, 9), ..port_8080() }, false, false),
        ("fields are AND-ed", Match { principals: text(Exact, principal), ..port_9() }, false, false),
        ("two fields that hold", Match { principals: text(Exact, principal), ..port_8080() }, true, false),
    ];
    let proven = identity("shop", "web");
    for (case, conditions, with_identity, without) in table {
        let denying = deny_of("shop/d", one(conditions));
        let snapshot = Snapshot::empty().apply([Change::Policy(denying)]);
        for (source_identity, expected) in [(Some(&proven), with_identity), (None, without)] {
            let connection = PeerConnection {
                source_ip: ip("10.0.0.1"),
                source_identity,
                source_workload: None,
                destination: addr("10.0.0.2:8080"),
            };
            let denied = !authorize(&snapshot, &cart(), &connection).is_allowed();
            assert_eq!(denied, expected, "{case}, identity {source_identity:?}");
        }
    }
}

#[test]
fn an_ipv4_peer_of_an_ipv6_listener_is_an_ipv4_peer() {
    let conditions = Match {
        source_ips: nets(&["10.0.0.1/32"]),
        destination_ips: nets(&["10.0.0.2/32"]),
        ..Match::default()
    };
    let snapshot = Snapshot::empty().apply([Change::Policy(deny_of("shop/d", one(conditions)))]);
    let connection = PeerConnection {
        source_ip: ip("::ffff:10.0.0.1"),
        source_identity: None,
        source_workload: None,
        destination: addr("[::ffff:10.0.0.2]:8080"),
    };
    assert!(!authorize(&snapshot, &cart(), &connection).is_allowed());
}

#[test]
fn membership_counts_only_for_the_peer_that_proved_itself() {
    let web = Workload {
        peer_sets: vec!["frontends".into()],
        ..pod("shop", "web", &["10.0.0.1"])
    };
    let (own, other) = (identity("shop", "web"), identity("shop", "thief"));
    let members = Match {
        not_peer_sets: vec!["frontends".into()],
        ..Match::default()
    };
    let snapshot = Snapshot::empty().apply([Change::Policy(deny_of("shop/d", one(members)))]);
    let table = [
        ("a member", Some(&own), Some(&web), true),
        (
            "a member without proof, as for pods outside the mesh",
            None,
            Some(&web),
            true,
        ),
        (
            "somebody else at the member's address",
            Some(&other),
            Some(&web),
            false,
        ),
        ("nobody known", Some(&own), None, false),
    ];
    for (case, source_identity, source_workload, allowed) in table {
        let connection = PeerConnection {
            source_ip: ip("10.0.0.1"),
            source_identity,
            source_workload,
            destination: addr("10.0.0.2:8080"),
        };
        let verdict = authorize(&snapshot, &cart(), &connection);
        assert_eq!(verdict.is_allowed(), allowed, "{case}");
    }
}

#[test]
fn egress_obeys_only_what_the_source_names_and_looks_at_the_destination() {
    let database = Workload {
        peer_sets: vec!["databases".into()],
        ..pod("data", "sql", &["10.0.0.9"])
    };
    let source = Workload {
        egress_policies: vec![policy_name("shop/out")],
        ..pod("shop", "web", &["10.0.0.1"])
    };
    let only_databases = Match {
        not_peer_sets: vec!["databases".into()],
        ..Match::default()
    };
    let named = Policy {
        scope: Scope::WorkloadSelector,
        ..deny_of("shop/out", one(only_databases))
    };
    let unnamed = deny_of("shop/not-named", vec![Group::default()]);
    let snapshot = Snapshot::empty().apply([
        Change::EgressPolicy(named),
        Change::EgressPolicy(unnamed.clone()),
        Change::Policy(unnamed),
    ]);
    let judge = |snapshot: &Snapshot, workload| {
        told(&authorize_egress(
            snapshot,
            &source,
            addr("10.0.0.9:5432"),
            workload,
        ))
    };
    assert_eq!(judge(&snapshot, Some(&database)), "allow");
    let cart = cart();
    assert_eq!(judge(&snapshot, Some(&cart)), "deny by shop/out");
    assert_eq!(judge(&snapshot, None), "deny by shop/out");
    assert_eq!(
        judge(&Snapshot::empty(), Some(&database)),
        "unknown shop/out"
    );
    let unreadable =
        Snapshot::empty().apply([Change::UnreadableEgressPolicy(policy_name("shop/out"))]);
    assert_eq!(judge(&unreadable, Some(&database)), "unreadable shop/out");
    let free = Workload {
        egress_policies: vec![],
        ..source.clone()
    };
    assert!(authorize_egress(&snapshot, &free, addr("10.0.0.9:5432"), None).is_allowed());
}

#[test]
fn a_network_policy_does_not_part_a_pod_from_itself() {
    let of_kind = |kind: &str, policy: Policy| Policy {
        origin: Some(Origin {
            kind: kind.into(),
            namespace: "shop".into(),
            name: "closed".into(),
            audit: false,
        }),
        ..policy
    };
    let everything = || deny_of("shop/closed", vec![Group::default()]);
    let network = || of_kind("NetworkPolicy", everything());
    let authorization = of_kind("AuthorizationPolicy", everything());
    let own = Workload {
        egress_policies: vec![policy_name("shop/closed")],
        ..cart()
    };
    // Under the same account, but another pod.
    let sibling = pod("shop", "cart-2", &["10.0.0.3"]);
    let sibling = Workload {
        identity: own.identity.clone(),
        ..sibling
    };
    let thief = identity("shop", "thief");
    #[rustfmt::skip]
    let table = [
        ("a pod of the same account", network(), &sibling, Some(&own.identity), "deny by shop/closed"),
        ("somebody else at its address", network(), &own, Some(&thief), "deny by shop/closed"),
        ("another kind of policy", authorization, &own, Some(&own.identity), "deny by shop/closed"),
        ("a policy of unknown origin", everything(), &own, Some(&own.identity), "deny by shop/closed"),
        ("itself", network(), &own, Some(&own.identity), "allow"),
        ("itself, plainly", network(), &own, None, "allow"),
    ];
    for (case, policy, source, source_identity, expected) in table {
        let snapshot =
            Snapshot::empty().apply([Change::Policy(policy.clone()), Change::EgressPolicy(policy)]);
        let connection = PeerConnection {
            source_ip: source.addresses[0],
            source_identity,
            source_workload: Some(source),
            destination: addr("10.0.0.2:8080"),
        };
        assert_eq!(
            told(&authorize(&snapshot, &own, &connection)),
            expected,
            "{case}"
        );
        if source_identity == Some(&own.identity) {
            let to = SocketAddr::new(source.addresses[0], 8080);
            let verdict = authorize_egress(&snapshot, &own, to, Some(source));
            assert_eq!(told(&verdict), expected, "egress: {case}");
        }
    }
    // An ALLOW that does not match still refuses.
    let snapshot = Snapshot::empty().apply([
        Change::Policy(network()),
        Change::Policy(allow_of("shop/a", one(port_9()))),
    ]);
    let connection = PeerConnection {
        source_ip: ip("10.0.0.2"),
        source_identity: Some(&own.identity),
        source_workload: Some(&own),
        destination: addr("10.0.0.2:8080"),
    };
    assert_eq!(told(&authorize(&snapshot, &own, &connection)), "no allow");
}
