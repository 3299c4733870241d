//! What cannot be meant in one of our policies, although its types are right.
//! Discovery refuses such a policy with the same words in its status.

use std::net::IpAddr;

use culvert_api::policy::{
    AuthorizationPolicySpec, Condition, DRY_RUN_ANNOTATION, PeerAuthenticationSpec, PortValue,
    Source, TargetReference,
};
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::path::FieldPath;

/// A field and what is wrong with it.
pub type PolicyFault = (FieldPath, String);

/// Attributes of `when` that are judged without a waypoint.
pub const L4_KEYS: &[&str] = &[
    "source.ip",
    "source.namespace",
    "source.principal",
    "source.serviceAccount",
    "destination.ip",
    "destination.port",
];

/// Attributes of `when` that only a waypoint can judge; those that end in `[`
/// carry a name.
pub const L7_KEYS: &[&str] = &[
    "remote.ip",
    "connection.sni",
    "request.auth.principal",
    "request.auth.audiences",
    "request.auth.presenter",
    "request.auth.claims[",
    "request.headers[",
];

/// Parses an address or a range of addresses.
pub fn ip_block(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// What is wrong with an `AuthorizationPolicy`.
pub fn authorization_faults(meta: &ObjectMeta, spec: &AuthorizationPolicySpec) -> Vec<PolicyFault> {
    let mut faults = Vec::new();
    let path = FieldPath::at("spec");
    if spec.selector.is_some() && !spec.target_refs.is_empty() {
        faults.push((
            path.key("selector"),
            "must not be set beside targetRefs".to_owned(),
        ));
    }
    let dry_run = meta.annotations.iter().flatten();
    if let Some((_, value)) = dry_run
        .into_iter()
        .find(|(key, _)| *key == DRY_RUN_ANNOTATION)
        && !["true", "false"].contains(&value.as_str())
    {
        faults.push((
            FieldPath::at("metadata.annotations").key(DRY_RUN_ANNOTATION),
            format!("expected true or false, found {value:?}"),
        ));
    }
    for (index, target) in spec.target_refs.iter().enumerate() {
        target_faults(&path.key("targetRefs").index(index), target, &mut faults);
    }
    for (index, rule) in spec.rules.iter().enumerate() {
        let path = path.key("rules").index(index);
        for (index, from) in rule.from.iter().enumerate() {
            let path = path.key("from").index(index).key("source");
            source_faults(&path, &from.source, &mut faults);
        }
        for (index, to) in rule.to.iter().enumerate() {
            let path = path.key("to").index(index).key("operation");
            if to.operation == Default::default() {
                faults.push((path.clone(), "expected at least one field".to_owned()));
            }
            port_faults(&path.key("ports"), &to.operation.ports, &mut faults);
            port_faults(&path.key("notPorts"), &to.operation.not_ports, &mut faults);
        }
        for (index, condition) in rule.when.iter().enumerate() {
            condition_faults(&path.key("when").index(index), condition, &mut faults);
        }
    }
    faults
}

/// What is wrong with a `PeerAuthentication`.
pub fn peer_authentication_faults(spec: &PeerAuthenticationSpec) -> Vec<PolicyFault> {
    let mut faults = Vec::new();
    let path = FieldPath::at("spec.portLevelMtls");
    for port in spec.port_level_mtls.keys() {
        if PortValue::Text(port.clone()).port().is_none() {
            faults.push((
                path.key(port),
                format!("expected a port from 1 to 65535, found {port:?}"),
            ));
        }
    }
    let selected = spec
        .selector
        .as_ref()
        .is_some_and(|selector| !selector.match_labels.is_empty());
    if !spec.port_level_mtls.is_empty() && !selected {
        faults.push((
            path,
            "needs a selector: ports belong to workloads".to_owned(),
        ));
    }
    faults
}

fn target_faults(path: &FieldPath, target: &TargetReference, faults: &mut Vec<PolicyFault>) {
    match (target.group.as_str(), target.kind.as_str()) {
        ("" | "core", "Service") | ("gateway.networking.k8s.io", "Gateway") => {}
        (group, kind) => faults.push((
            path.key("kind"),
            format!("expected Service (group \"\") or Gateway (group gateway.networking.k8s.io), found {kind:?} (group {group:?})"),
        )),
    }
    if target.name.is_empty() {
        faults.push((path.key("name"), "required".to_owned()));
    }
}

fn source_faults(path: &FieldPath, source: &Source, faults: &mut Vec<PolicyFault>) {
    if *source == Source::default() {
        faults.push((path.clone(), "expected at least one field".to_owned()));
    }
    for (name, values) in [
        ("principals", &source.principals),
        ("notPrincipals", &source.not_principals),
        ("requestPrincipals", &source.request_principals),
        ("notRequestPrincipals", &source.not_request_principals),
        ("namespaces", &source.namespaces),
        ("notNamespaces", &source.not_namespaces),
    ] {
        each(&path.key(name), values, faults, pattern_fault);
    }
    for (name, values) in [
        ("serviceAccounts", &source.service_accounts),
        ("notServiceAccounts", &source.not_service_accounts),
    ] {
        each(&path.key(name), values, faults, account_fault);
    }
    for (name, values) in [
        ("ipBlocks", &source.ip_blocks),
        ("notIpBlocks", &source.not_ip_blocks),
        ("remoteIpBlocks", &source.remote_ip_blocks),
        ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
    ] {
        each(&path.key(name), values, faults, ip_fault);
    }
}

fn condition_faults(path: &FieldPath, condition: &Condition, faults: &mut Vec<PolicyFault>) {
    let key = condition.key.as_str();
    let l7 = L7_KEYS.iter().any(|known| match known.strip_suffix('[') {
        Some(_) => key.starts_with(known) && key.ends_with(']'),
        None => *known == key,
    });
    if !l7 && !L4_KEYS.contains(&key) {
        let near = crate::words::closest(key, L4_KEYS.iter().chain(L7_KEYS).copied());
        let hint = near.map_or_else(
            || {
                format!(
                    "expected one of {}, or a request attribute",
                    L4_KEYS.join(", ")
                )
            },
            |near| format!("did you mean {near}?"),
        );
        faults.push((
            path.key("key"),
            format!("unknown attribute {key:?}; {hint}"),
        ));
    }
    if condition.values.is_empty() && condition.not_values.is_empty() {
        let message = "required: values or notValues".to_owned();
        faults.push((path.key("values"), message));
    }
    let fault: fn(&str) -> Option<String> = match key {
        "source.ip" | "destination.ip" | "remote.ip" => ip_fault,
        "destination.port" => port_fault,
        "source.serviceAccount" => account_fault,
        _ => pattern_fault,
    };
    each(&path.key("values"), &condition.values, faults, fault);
    each(&path.key("notValues"), &condition.not_values, faults, fault);
}

fn each(
    path: &FieldPath,
    values: &[String],
    faults: &mut Vec<PolicyFault>,
    fault: fn(&str) -> Option<String>,
) {
    for (index, value) in values.iter().enumerate() {
        if let Some(message) = fault(value) {
            faults.push((path.index(index), message));
        }
    }
}

fn pattern_fault(value: &str) -> Option<String> {
    let inner = value.strip_prefix('*').unwrap_or(value);
    let inner = inner.strip_suffix('*').unwrap_or(inner);
    if value.is_empty() {
        Some("expected text, prefix*, *suffix or *, found nothing".to_owned())
    } else if inner.contains('*')
        || (value.len() > 1 && value.starts_with('*') && value.ends_with('*'))
    {
        Some(format!(
            "expected text, prefix*, *suffix or *, found {value:?}"
        ))
    } else if value.starts_with("spiffe://") {
        Some(format!(
            "expected the identity without spiffe://, found {value:?}"
        ))
    } else {
        None
    }
}

fn account_fault(value: &str) -> Option<String> {
    let mut parts = value.split('/');
    let named = |part: Option<&str>| part.is_some_and(|p| !p.is_empty() && !p.contains('*'));
    let good = named(parts.next()) && parts.next().is_none_or(|p| named(Some(p)));
    (!good || parts.next().is_some())
        .then(|| format!("expected name or namespace/name without *, found {value:?}"))
}

fn ip_fault(value: &str) -> Option<String> {
    ip_block(value).is_none().then(|| {
        format!(
            "expected an address such as 10.0.0.1 or a range such as 10.0.0.0/8, found {value:?}"
        )
    })
}

fn port_fault(value: &str) -> Option<String> {
    PortValue::Text(value.to_owned())
        .port()
        .is_none()
        .then(|| format!("expected a port from 1 to 65535, found {value:?}"))
}

fn port_faults(path: &FieldPath, ports: &[PortValue], faults: &mut Vec<PolicyFault>) {
    for (index, port) in ports.iter().enumerate() {
        if port.port().is_none() {
            let message = format!("expected a port from 1 to 65535, found {port}");
            faults.push((path.index(index), message));
        }
    }
}
