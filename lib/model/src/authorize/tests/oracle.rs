//! The truth table written down once more, as plainly as possible and without
//! a line of the engine: texts for identities, bits for addresses, and lists
//! that are walked again for every question.

use std::collections::BTreeSet;

use super::*;

/// What the engine has to agree on.
#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    allowed: bool,
    reason: &'static str,
    /// Which policies may be named: of several that match, the engine is free to name any.
    dry_run: BTreeSet<String>,
}

impl Outcome {
    pub(super) fn of(verdict: &Verdict) -> Self {
        Self {
            allowed: verdict.is_allowed(),
            reason: match verdict {
                Verdict::Allow {
                    matched: Some(_), ..
                } => "matched",
                Verdict::Allow { matched: None, .. } => "free",
                Verdict::Deny(denial) => match denial.reason {
                    DenyReason::DenyPolicy => "denied",
                    DenyReason::NoAllowMatched => "not allowed",
                    DenyReason::PolicyUnknown => "unknown",
                    DenyReason::PolicyUnreadable => "unreadable",
                },
            },
            dry_run: verdict
                .dry_run()
                .iter()
                .map(|one| one.policy.to_string())
                .collect(),
        }
    }
}

/// The facts of a connection, as text and bits.
struct Facts {
    principal: Option<String>,
    namespace: String,
    account: Option<(String, String)>,
    sets: Vec<String>,
    sources: Vec<(bool, u128)>,
    destination: (bool, u128),
    port: u16,
    itself: bool,
}

/// Family and bits of an address.
fn bits(ip: IpAddr) -> (bool, u128) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => (true, u128::from(u32::from(ip)) << 96),
        IpAddr::V6(ip) => (false, u128::from(ip)),
    }
}

fn inside(net: &ipnet::IpNet, (is_v4, bits_of): (bool, u128)) -> bool {
    let (net_is_v4, net_bits) = bits(net.addr());
    let length = u32::from(net.prefix_len());
    is_v4 == net_is_v4 && (length == 0 || (bits_of ^ net_bits) >> (128 - length) == 0)
}

fn text_matches(wanted: &StringMatch, text: &str) -> bool {
    match wanted {
        StringMatch::Exact(exact) => exact.as_bytes() == text.as_bytes(),
        StringMatch::Prefix(prefix) => text.get(..prefix.len()) == Some(prefix),
        StringMatch::Suffix(suffix) => {
            text.len() >= suffix.len() && text.get(text.len() - suffix.len()..) == Some(suffix)
        }
        StringMatch::Presence => !text.is_empty(),
    }
}

/// A field and its negation: whether they say anything, and whether the
/// connection passes both.
fn pair<T>(values: &[T], not_values: &[T], holds: impl Fn(&T) -> bool) -> [(bool, bool); 2] {
    let hits = |list: &[T]| list.iter().filter(|value| holds(value)).count();
    [
        (!values.is_empty(), values.is_empty() || hits(values) > 0),
        (!not_values.is_empty(), hits(not_values) == 0),
    ]
}

fn questions(m: &Match, f: &Facts) -> Vec<(bool, bool)> {
    let principal = |wanted: &StringMatch| {
        f.principal
            .as_ref()
            .is_some_and(|text| text_matches(wanted, text))
    };
    let namespace = |wanted: &StringMatch| text_matches(wanted, &f.namespace);
    let account = |wanted: &ServiceAccount| {
        f.account == Some((wanted.namespace.to_string(), wanted.name.to_string()))
    };
    let source = |net: &ipnet::IpNet| f.sources.iter().any(|source| inside(net, *source));
    let destination = |net: &ipnet::IpNet| inside(net, f.destination);
    let set = |wanted: &std::sync::Arc<str>| f.sets.contains(&wanted.to_string());
    let port = |wanted: &u16| *wanted == f.port;
    let range = |wanted: &PortRange| wanted.first <= f.port && f.port <= wanted.last;
    [
        pair(&m.principals, &m.not_principals, principal),
        pair(&m.namespaces, &m.not_namespaces, namespace),
        pair(&m.service_accounts, &m.not_service_accounts, account),
        pair(&m.source_ips, &m.not_source_ips, source),
        pair(&m.destination_ips, &m.not_destination_ips, destination),
        pair(&m.peer_sets, &m.not_peer_sets, set),
        pair(&m.destination_ports, &m.not_destination_ports, port),
        pair(
            &m.destination_port_ranges,
            &m.not_destination_port_ranges,
            range,
        ),
    ]
    .concat()
}

fn policy_matches(policy: &Policy, facts: &Facts) -> bool {
    let kind = policy.origin.as_ref().map(|origin| origin.kind.to_string());
    if facts.itself && policy.action == Action::Deny && kind == Some("NetworkPolicy".to_owned()) {
        return false;
    }
    for group in &policy.groups {
        let mut failed = 0;
        for rules in &group.rules {
            let mut passed = usize::from(rules.matches.is_empty());
            for conditions in &rules.matches {
                let questions = questions(conditions, facts);
                let says_something = questions.iter().any(|(says, _)| *says);
                if says_something && !questions.iter().any(|(_, passes)| !passes) {
                    passed += 1;
                }
            }
            if passed == 0 {
                failed += 1;
            }
        }
        if failed == 0 {
            return true;
        }
    }
    false
}

fn judge(applying: &[&Policy], has_unknown: bool, facts: &Facts) -> Outcome {
    let matching = |action: Action, dry_run: bool| -> BTreeSet<String> {
        applying
            .iter()
            .filter(|policy| policy.action == action && policy.dry_run == dry_run)
            .filter(|policy| policy_matches(policy, facts))
            .map(|policy| policy.name.to_string())
            .collect()
    };
    let mut dry_run = matching(Action::Deny, true);
    let outcome = |allowed, reason, dry_run| Outcome {
        allowed,
        reason,
        dry_run,
    };
    if !matching(Action::Deny, false).is_empty() {
        return outcome(false, "denied", dry_run);
    }
    if has_unknown {
        return outcome(false, "unknown", dry_run);
    }
    dry_run.extend(matching(Action::Allow, true));
    let allows = applying
        .iter()
        .filter(|policy| policy.action == Action::Allow && !policy.dry_run);
    if allows.count() == 0 {
        return outcome(true, "free", dry_run);
    }
    let is_matched = !matching(Action::Allow, false).is_empty();
    outcome(
        is_matched,
        if is_matched { "matched" } else { "not allowed" },
        dry_run,
    )
}

fn applying<'a>(
    all: &'a [Policy],
    named: &[PolicyName],
    namespace: Option<&str>,
) -> (Vec<&'a Policy>, bool) {
    let is_named = |policy: &Policy| named.contains(&policy.name);
    let by_scope = |policy: &Policy| match (policy.scope, namespace) {
        (Scope::Global, Some(_)) => true,
        (Scope::Namespace, Some(namespace)) => &*policy.name.namespace == namespace,
        _ => false,
    };
    let list = all
        .iter()
        .filter(|policy| is_named(policy) || by_scope(policy))
        .collect();
    let unknown = named
        .iter()
        .any(|name| all.iter().all(|policy| policy.name != *name));
    (list, unknown)
}

fn facts_of(identity: Option<&Identity>) -> Facts {
    let uri = identity.map(|identity| identity.uri().to_owned());
    let parts: Vec<String> = uri
        .iter()
        .flat_map(|uri| uri.split('/'))
        .map(str::to_owned)
        .collect();
    Facts {
        principal: uri.map(|uri| uri.replace("spiffe://", "")),
        namespace: parts.get(4).cloned().unwrap_or_default(),
        account: (!parts.is_empty()).then(|| (parts[4].clone(), parts[6].clone())),
        sets: Vec::new(),
        sources: Vec::new(),
        destination: (true, 0),
        port: 0,
        itself: false,
    }
}

fn sets_of(workload: Option<&Workload>) -> Vec<String> {
    workload
        .iter()
        .flat_map(|workload| &workload.peer_sets)
        .map(ToString::to_string)
        .collect()
}

pub(super) fn ingress(
    all: &[Policy],
    destination: &Workload,
    connection: &PeerConnection<'_>,
) -> Outcome {
    let member = connection.source_workload.filter(|workload| {
        connection
            .source_identity
            .is_none_or(|identity| identity.uri() == workload.identity.uri())
    });
    let facts = Facts {
        sets: sets_of(member),
        sources: vec![bits(connection.source_ip)],
        destination: bits(connection.destination.ip()),
        port: connection.destination.port(),
        itself: member.map(|workload| workload.uid.as_str()) == Some(destination.uid.as_str()),
        ..facts_of(connection.source_identity)
    };
    let (list, unknown) = applying(
        all,
        &destination.authorization_policies,
        Some(&destination.namespace),
    );
    judge(&list, unknown, &facts)
}

pub(super) fn egress(
    all: &[Policy],
    source: &Workload,
    destination: SocketAddr,
    workload: Option<&Workload>,
) -> Outcome {
    let facts = Facts {
        sets: sets_of(workload),
        sources: source.addresses.iter().copied().map(bits).collect(),
        destination: bits(destination.ip()),
        port: destination.port(),
        itself: workload.map(|workload| workload.uid.as_str()) == Some(source.uid.as_str()),
        ..facts_of(workload.map(|workload| &workload.identity))
    };
    let (list, unknown) = applying(all, &source.egress_policies, None);
    judge(&list, unknown, &facts)
}
