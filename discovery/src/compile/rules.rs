//! Rules of an `AuthorizationPolicy` as far as they can be judged on a
//! connection, and what is lost on the way.

use culvert_api::policy::{Action, Condition, Operation, PortValue, Rule, Source};
use culvert_model::{Group, Match};

use super::matches::{accounts, any, ips, strings};

/// A compiled rule.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// What is enforced; none if nothing is.
    pub(super) group: Option<Group>,
    /// What needs a waypoint, and what follows from its absence.
    pub(super) note: Option<String>,
    /// Whether more is refused than was written.
    pub(super) wider: bool,
}

/// Compiles the rule at `index`.
pub(super) fn compile(namespace: &str, action: Action, index: usize, rule: &Rule) -> Outcome {
    let fields = l7_fields(rule);
    let part = Parts {
        from: rule
            .from
            .iter()
            .map(|from| source(namespace, &from.source))
            .collect(),
        to: rule.to.iter().map(|to| operation(&to.operation)).collect(),
        when: rule
            .when
            .iter()
            .map(|condition| vec![self::condition(namespace, condition)])
            .collect(),
    };
    if fields.is_empty() {
        return Outcome {
            group: part.group(),
            ..Outcome::default()
        };
    }
    let named = format!("rules[{index}]: {} need a waypoint", fields.join(", "));
    match action {
        Action::Allow => Outcome {
            note: Some(format!(
                "{named}: the rule is left out, so what it allows is refused"
            )),
            ..Outcome::default()
        },
        Action::Deny | Action::Audit => {
            let group = part.group();
            let wider = group.is_some();
            let effect = match (wider, action) {
                (true, Action::Audit) => "the rest is recorded, which is more than was written",
                (true, _) => "the rest is enforced, so more is refused than was written",
                (false, _) => "nothing of the rule is enforced",
            };
            Outcome {
                group,
                note: Some(format!("{named}: {effect}")),
                wider,
            }
        }
    }
}

struct Parts {
    from: Vec<Match>,
    to: Vec<Match>,
    when: Vec<Vec<Match>>,
}

impl Parts {
    /// A part that lost all of its fields does nothing, and so does its rule:
    /// without the fields it would hold for every connection.
    fn group(self) -> Option<Group> {
        let mut rules = Vec::new();
        let parts = [self.from, self.to]
            .into_iter()
            .filter(|part| !part.is_empty());
        for part in parts.chain(self.when) {
            let judged: Vec<_> = part
                .into_iter()
                .filter(|m| *m != Match::default())
                .collect();
            if judged.is_empty() {
                return None;
            }
            rules.push(any(judged));
        }
        Some(Group { rules })
    }
}

fn source(namespace: &str, source: &Source) -> Match {
    Match {
        principals: strings(&source.principals),
        not_principals: strings(&source.not_principals),
        namespaces: strings(&source.namespaces),
        not_namespaces: strings(&source.not_namespaces),
        service_accounts: accounts(namespace, &source.service_accounts),
        not_service_accounts: accounts(namespace, &source.not_service_accounts),
        source_ips: ips(&source.ip_blocks),
        not_source_ips: ips(&source.not_ip_blocks),
        ..Match::default()
    }
}

fn operation(operation: &Operation) -> Match {
    Match {
        destination_ports: ports(&operation.ports),
        not_destination_ports: ports(&operation.not_ports),
        ..Match::default()
    }
}

fn ports(values: &[PortValue]) -> Vec<u16> {
    values.iter().filter_map(PortValue::port).collect()
}

fn text_ports(values: &[String]) -> Vec<u16> {
    let values = values.iter();
    values
        .filter_map(|value| PortValue::Text(value.clone()).port())
        .collect()
}

fn condition(namespace: &str, condition: &Condition) -> Match {
    let (values, not_values) = (&condition.values, &condition.not_values);
    let mut result = Match::default();
    match condition.key.as_str() {
        "source.ip" => {
            result.source_ips = ips(values);
            result.not_source_ips = ips(not_values);
        }
        "source.namespace" => {
            result.namespaces = strings(values);
            result.not_namespaces = strings(not_values);
        }
        "source.principal" => {
            result.principals = strings(values);
            result.not_principals = strings(not_values);
        }
        "source.serviceAccount" => {
            result.service_accounts = accounts(namespace, values);
            result.not_service_accounts = accounts(namespace, not_values);
        }
        "destination.ip" => {
            result.destination_ips = ips(values);
            result.not_destination_ips = ips(not_values);
        }
        "destination.port" => {
            result.destination_ports = text_ports(values);
            result.not_destination_ports = text_ports(not_values);
        }
        _ => {}
    }
    result
}

/// The fields of a rule that only a waypoint can judge.
fn l7_fields(rule: &Rule) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |list: &str, index: usize, object: &str, field: &str, values: &[String]| {
        if !values.is_empty() {
            found.push(format!("{list}[{index}].{object}.{field}"));
        }
    };
    for (index, from) in rule.from.iter().enumerate() {
        let source = &from.source;
        for (field, values) in [
            ("requestPrincipals", &source.request_principals),
            ("notRequestPrincipals", &source.not_request_principals),
            ("remoteIpBlocks", &source.remote_ip_blocks),
            ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
        ] {
            note("from", index, "source", field, values);
        }
    }
    for (index, to) in rule.to.iter().enumerate() {
        let operation = &to.operation;
        for (field, values) in [
            ("hosts", &operation.hosts),
            ("notHosts", &operation.not_hosts),
            ("methods", &operation.methods),
            ("notMethods", &operation.not_methods),
            ("paths", &operation.paths),
            ("notPaths", &operation.not_paths),
        ] {
            note("to", index, "operation", field, values);
        }
    }
    for (index, condition) in rule.when.iter().enumerate() {
        if !culvert_kubeyaml::policy::L4_KEYS.contains(&condition.key.as_str()) {
            found.push(format!("when[{index}] {}", condition.key));
        }
    }
    found
}
