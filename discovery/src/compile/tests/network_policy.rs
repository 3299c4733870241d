//! The compiled form against a naive reading of the NetworkPolicy API.

use culvert_kubeyaml::{Body, selector::selects};
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
    apimachinery::pkg::util::intstr::IntOrString,
};
use proptest::prelude::*;

use super::*;

/// Addresses, namespaces, labels and the number of port `http` of the pods.
const PODS: [(&str, &str, &str, &str, u16); 6] = [
    ("a1", "a", "10.0.0.1", "app: x, tier: one", 8080),
    ("a2", "a", "10.0.0.2", "app: y", 8081),
    ("a3", "a", "10.0.1.3", "tier: one", 8080),
    ("b1", "b", "10.0.1.1", "app: x", 9090),
    ("b2", "b", "10.0.0.6", "app: y, tier: one", 8080),
    ("c1", "c", "10.0.2.1", "", 8080),
];
const OUTSIDE: &str = "192.0.2.1";
const PORTS: [u16; 6] = [80, 8080, 8081, 8085, 9090, 65535];

fn pods() -> String {
    let pods = PODS.iter().map(|(name, namespace, ip, labels, http)| {
        pod(name, namespace, ip, labels)
            .replace("containerPort: 8080", &format!("containerPort: {http}"))
    });
    let namespaces = ["a", "b", "c"].map(|ns| {
        let team = if ns == "c" { "blue" } else { "red" };
        format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {ns}, labels: {{team: {team}}}}}\n")
    });
    pods.collect::<String>() + &namespaces.concat()
}

// === The oracle: the words of the API reference, one pod pair at a time. ===

fn labels_of(text: &str) -> culvert_kubeyaml::selector::Labels {
    let pairs = text.split(", ").filter_map(|pair| pair.split_once(": "));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn namespace_labels(namespace: &str) -> culvert_kubeyaml::selector::Labels {
    let team = if namespace == "c" { "blue" } else { "red" };
    [("team", team), ("kubernetes.io/metadata.name", namespace)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

type OraclePod = (&'static str, &'static str, &'static str, &'static str, u16);

fn pod_at(ip: &str) -> Option<&'static OraclePod> {
    PODS.iter().find(|pod| pod.2 == ip)
}

fn peer_matches(peer: &NetworkPolicyPeer, own_namespace: &str, ip: &str) -> bool {
    if let Some(block) = &peer.ip_block {
        let ip: IpAddr = ip.parse().unwrap();
        let inside = |cidr: &String| cidr.parse::<IpNet>().unwrap().contains(&ip);
        return inside(&block.cidr) && !block.except.iter().flatten().any(inside);
    }
    let Some(pod) = pod_at(ip) else {
        return false;
    };
    let namespace = match &peer.namespace_selector {
        Some(selector) => selects(selector, &namespace_labels(pod.1)),
        None => pod.1 == own_namespace,
    };
    let labels = labels_of(pod.3);
    namespace
        && peer
            .pod_selector
            .as_ref()
            .is_none_or(|selector| selects(selector, &labels))
}

fn port_matches(port: &NetworkPolicyPort, to: &str, number: u16) -> bool {
    if port.protocol.as_deref().unwrap_or("TCP") != "TCP" {
        return false;
    }
    match &port.port {
        None => true,
        Some(IntOrString::Int(first)) => {
            (*first..=port.end_port.unwrap_or(*first)).contains(&i32::from(number))
        }
        Some(IntOrString::String(name)) => {
            name == "http" && pod_at(to).is_some_and(|pod| pod.4 == number)
        }
    }
}

fn rule_allows(
    peers: Option<&Vec<NetworkPolicyPeer>>,
    ports: Option<&Vec<NetworkPolicyPort>>,
    matches: impl Fn(&NetworkPolicyPeer) -> bool,
    to: &str,
    number: u16,
) -> bool {
    let all_peers = peers.is_none_or(Vec::is_empty);
    let all_ports = ports.is_none_or(Vec::is_empty);
    (all_peers || peers.unwrap().iter().any(matches))
        && (all_ports
            || ports
                .unwrap()
                .iter()
                .any(|port| port_matches(port, to, number)))
}

fn applies(policy: &NetworkPolicy, direction: &str) -> bool {
    let spec = policy.spec.as_ref().unwrap();
    match &spec.policy_types {
        Some(types) if !types.is_empty() => types.iter().any(|kind| kind == direction),
        _ => direction == "Ingress" || spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()),
    }
}

fn oracle(policies: &[NetworkPolicy], direction: &str, from: &str, to: &str, number: u16) -> bool {
    // Nothing blocks a pod from itself.
    if from == to {
        return true;
    }
    let subject = if direction == "Ingress" { to } else { from };
    let subject = pod_at(subject).unwrap();
    let isolating: Vec<_> = policies
        .iter()
        .filter(|policy| policy.metadata.namespace.as_deref() == Some(subject.1))
        .filter(|policy| {
            let selector = policy
                .spec
                .as_ref()
                .unwrap()
                .pod_selector
                .clone()
                .unwrap_or_default();
            selects(&selector, &labels_of(subject.3)) && applies(policy, direction)
        })
        .collect();
    if isolating.is_empty() {
        return true;
    }
    isolating.iter().any(|policy| {
        let spec = policy.spec.as_ref().unwrap();
        if direction == "Ingress" {
            let matches = |peer: &NetworkPolicyPeer| peer_matches(peer, subject.1, from);
            let mut rules = spec.ingress.iter().flatten();
            rules.any(|rule| {
                rule_allows(rule.from.as_ref(), rule.ports.as_ref(), matches, to, number)
            })
        } else {
            let matches = |peer: &NetworkPolicyPeer| peer_matches(peer, subject.1, to);
            let mut rules = spec.egress.iter().flatten();
            rules
                .any(|rule| rule_allows(rule.to.as_ref(), rule.ports.as_ref(), matches, to, number))
        }
    })
}

// === Random policies. ===

fn selector() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "{}",
        "{matchLabels: {app: x}}",
        "{matchLabels: {app: y}}",
        "{matchLabels: {tier: one}}",
        "{matchExpressions: [{key: app, operator: In, values: [x, y]}]}",
        "{matchExpressions: [{key: tier, operator: DoesNotExist}]}",
        "{matchExpressions: [{key: app, operator: NotIn, values: [x]}]}",
    ])
}

fn peer() -> impl Strategy<Value = String> {
    let namespaces = prop::sample::select(vec![
        "{}",
        "{matchLabels: {team: red}}",
        "{matchLabels: {kubernetes.io/metadata.name: c}}",
    ]);
    let range = prop::sample::select(vec![
        "{cidr: 10.0.0.0/24}",
        "{cidr: 10.0.0.0/16, except: [10.0.0.0/24]}",
        "{cidr: 10.0.0.0/16, except: [10.0.0.0/30, 10.0.1.1/32]}",
        "{cidr: 0.0.0.0/0}",
        "{cidr: 192.0.2.0/24}",
        "{cidr: 10.0.0.0/31, except: [10.0.0.0/32, 10.0.0.1/32]}",
        "{cidr: '::/0'}",
    ]);
    prop_oneof![
        selector().prop_map(|pods| format!("{{podSelector: {pods}}}")),
        namespaces
            .clone()
            .prop_map(|ns| format!("{{namespaceSelector: {ns}}}")),
        (namespaces, selector())
            .prop_map(|(ns, pods)| format!("{{namespaceSelector: {ns}, podSelector: {pods}}}")),
        range.prop_map(|range| format!("{{ipBlock: {range}}}")),
    ]
}

fn port() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "{port: 8080}",
        "{port: 80, protocol: TCP}",
        "{port: http}",
        "{port: nothing}",
        "{port: 8080, endPort: 8090}",
        "{port: 8085, endPort: 65535}",
        "{protocol: TCP}",
        "{protocol: UDP}",
        "{port: 53, protocol: UDP}",
        "{}",
    ])
}

fn rule(peers: &'static str) -> impl Strategy<Value = String> {
    let lists = (
        prop::option::of(prop::collection::vec(peer(), 0..3)),
        prop::option::of(prop::collection::vec(port(), 0..3)),
    );
    lists.prop_map(move |(from, ports)| {
        let from = from
            .map(|from| format!("{peers}: [{}], ", from.join(", ")))
            .unwrap_or_default();
        let ports = ports
            .map(|ports| format!("ports: [{}]", ports.join(", ")))
            .unwrap_or_default();
        format!("{{{from}{ports}}}")
    })
}

fn network_policy() -> impl Strategy<Value = String> {
    let namespace = prop::sample::select(vec!["a", "b"]);
    let types = prop::sample::select(vec![
        "",
        "policyTypes: [Ingress], ",
        "policyTypes: [Egress], ",
        "policyTypes: [Ingress, Egress], ",
    ]);
    let ingress = prop::option::of(prop::collection::vec(rule("from"), 0..3));
    let egress = prop::option::of(prop::collection::vec(rule("to"), 0..3));
    (namespace, selector(), types, ingress, egress).prop_map(
        |(namespace, pods, types, ingress, egress)| {
            let list = |name: &str, rules: Option<Vec<String>>| {
                rules
                    .map(|rules| format!("{name}: [{}], ", rules.join(", ")))
                    .unwrap_or_default()
            };
            let spec = format!(
                "{{podSelector: {pods}, {types}{}{}}}",
                list("ingress", ingress),
                list("egress", egress)
            );
            policy("NetworkPolicy", "NAME", namespace, &spec)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_the_oracle(policies in prop::collection::vec(network_policy(), 0..4)) {
        let policies: Vec<_> = policies
            .iter()
            .enumerate()
            .map(|(index, text)| text.replace("NAME", &format!("np{index}")))
            .collect();
        let text = policies.concat();
        let parsed: Vec<NetworkPolicy> = parse_bytes(text.as_bytes())
            .objects
            .into_iter()
            .map(|object| match object.body {
                Body::NetworkPolicy(policy) => *policy,
                other => panic!("{:?}", other.kind()),
            })
            .collect();
        prop_assert_eq!(parsed.len(), policies.len());
        let snapshot = snapshot(&compiled(&(pods() + &text)));
        for (_, _, to, _, _) in PODS {
            for number in PORTS {
                for from in PODS.iter().map(|pod| pod.2).chain([OUTSIDE]) {
                    let expected = oracle(&parsed, "Ingress", from, to, number);
                    let mut ways = vec![From::Plain(from)];
                    if from != OUTSIDE {
                        ways.push(From::Tunnel(from));
                    }
                    for way in ways {
                        let verdict = ingress(&snapshot, way, to, number);
                        prop_assert_eq!(verdict.is_allowed(), expected, "in {}→{}:{} {:?}\n{}", from, to, number, verdict, text);
                    }
                }
                // The same pod as source of connections.
                for other in PODS.iter().map(|pod| pod.2).chain([OUTSIDE]) {
                    let expected = oracle(&parsed, "Egress", to, other, number);
                    let verdict = egress(&snapshot, to, other, number);
                    prop_assert_eq!(verdict.is_allowed(), expected, "out {}→{}:{} {:?}\n{}", to, other, number, verdict, text);
                }
            }
        }
    }
}

#[test]
fn a_named_port_in_a_range_of_addresses_is_that_of_its_pods() {
    let spec = "{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/24}}], \
                ports: [{port: http}]}]}";
    let text = pods() + &policy("NetworkPolicy", "one", "a", spec);
    let snapshot = snapshot(&compiled(&text));
    let may = |to: &str, port| egress(&snapshot, "10.0.0.1", to, port).is_allowed();
    assert!(!may("10.0.1.3", 8080), "not in the range");
    assert!(!may("10.0.0.2", 8080), "the number of another pod");
    assert!(!may("10.0.0.77", 8080), "no pod");
    assert!(may("10.0.0.2", 8081));
    assert!(may("10.0.0.6", 8080));
}

#[test]
fn a_refusal_names_all_that_speak() {
    let deny = "{podSelector: {}, policyTypes: [Ingress]}";
    let yaml = pods()
        + &policy("NetworkPolicy", "one", "a", deny)
        + &policy("NetworkPolicy", "two", "a", deny);
    let compiled = compiled(&yaml);
    let Verdict::Deny(denial) = ingress(
        &snapshot(&compiled),
        From::Tunnel("10.0.1.1"),
        "10.0.0.1",
        80,
    ) else {
        panic!("allowed");
    };
    assert_eq!(
        denial.to_string(),
        "denied by policy a/networkpolicy:one+two rule 0 (NetworkPolicy a/one+two)"
    );
    assert_eq!(
        reasons(&compiled, Kind::NetworkPolicy, "a", "one"),
        ["Accepted=Accepted", "Enforced=Enforced"]
    );
    assert_eq!(
        compiled.policies.len(),
        1,
        "one policy for all pods of the group"
    );
}

#[test]
fn probes_of_the_node_pass() {
    let yaml = pods()
        + &policy(
            "NetworkPolicy",
            "n",
            "a",
            "{podSelector: {}, policyTypes: [Ingress]}",
        );
    let snapshot = snapshot(&compiled(&yaml));
    for probe in ["169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"] {
        assert!(
            ingress(&snapshot, From::Plain(probe), "10.0.0.1", 8080).is_allowed(),
            "{probe}"
        );
    }
}

#[test]
fn the_clusters_dns_passes() {
    let dns = pod("dns", "kube-system", "10.0.9.9", "k8s-app: kube-dns")
        + "---\napiVersion: v1\nkind: Service\nmetadata: {name: kube-dns, namespace: kube-system}\nspec: {clusterIP: 10.96.0.10, selector: {k8s-app: kube-dns}, ports: [{port: 53, targetPort: 1053}]}\n";
    let yaml = pods()
        + &dns
        + &policy(
            "NetworkPolicy",
            "n",
            "a",
            "{podSelector: {}, policyTypes: [Egress]}",
        );
    let snapshot = snapshot(&compiled(&yaml));
    for (to, port, expected) in [
        ("10.96.0.10", 53, true),
        ("10.0.9.9", 1053, true),
        ("10.0.9.9", 8080, false),
        ("10.0.1.1", 53, false),
    ] {
        assert_eq!(
            egress(&snapshot, "10.0.0.1", to, port).is_allowed(),
            expected,
            "{to}:{port}"
        );
    }
}

#[test]
fn a_user_allow_opens_nothing() {
    let yaml = pods()
        + &policy(
            "NetworkPolicy",
            "n",
            "a",
            "{podSelector: {}, policyTypes: [Ingress]}",
        )
        + &policy("AuthorizationPolicy", "open", "a", "{rules: [{}]}");
    let snapshot = snapshot(&compiled(&yaml));
    assert!(!ingress(&snapshot, From::Tunnel("10.0.1.1"), "10.0.0.1", 8080).is_allowed());
}

#[test]
fn a_pod_that_comes_or_goes_changes_no_policy() {
    let text = policy(
        "NetworkPolicy",
        "n",
        "a",
        "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: x}}}]}]}",
    );
    let before = compiled(&(pods() + &text));
    let after = compiled(&(pods() + &pod("new", "a", "10.0.0.77", "app: x") + &text));
    assert_eq!(before.policies, after.policies);
    let new = &after.workloads["Kubernetes//Pod/a/new"];
    assert_eq!(&*new.peer_sets[0], "namespace a pods {app=x}");
}
