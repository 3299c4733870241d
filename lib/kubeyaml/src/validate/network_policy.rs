//! NetworkPolicies.

use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{Check, label_selector, names};
use crate::path::FieldPath;

pub(super) fn network_policy(policy: &NetworkPolicy, check: &mut Check) {
    let path = FieldPath::at("spec");
    let Some(spec) = &policy.spec else {
        return check.error(path, "required");
    };
    if let Some(selector) = &spec.pod_selector {
        label_selector(&path.key("podSelector"), selector, check);
    }
    for (index, kind) in spec.policy_types.iter().flatten().enumerate() {
        let path = path.key("policyTypes").index(index);
        check.one_of(path, Some(kind), &["Ingress", "Egress"]);
    }
    for (index, rule) in spec.ingress.iter().flatten().enumerate() {
        let path = path.key("ingress").index(index);
        peers(&path.key("from"), rule.from.as_deref(), check);
        ports(&path.key("ports"), rule.ports.as_deref(), check);
    }
    for (index, rule) in spec.egress.iter().flatten().enumerate() {
        let path = path.key("egress").index(index);
        peers(&path.key("to"), rule.to.as_deref(), check);
        ports(&path.key("ports"), rule.ports.as_deref(), check);
    }
}

fn peers(path: &FieldPath, peers: Option<&[NetworkPolicyPeer]>, check: &mut Check) {
    for (index, peer) in peers.into_iter().flatten().enumerate() {
        let path = path.index(index);
        let selectors = [
            ("podSelector", &peer.pod_selector),
            ("namespaceSelector", &peer.namespace_selector),
        ];
        let selected = selectors.iter().any(|(_, selector)| selector.is_some());
        match (&peer.ip_block, selected) {
            (None, false) => check.error(
                path.clone(),
                "expected podSelector, namespaceSelector or ipBlock",
            ),
            (Some(_), true) => {
                check.error(path.key("ipBlock"), "must not be set beside a selector");
            }
            (Some(block), false) => ip_block(&path.key("ipBlock"), block, check),
            (None, true) => {}
        }
        for (name, selector) in selectors {
            if let Some(selector) = selector {
                label_selector(&path.key(name), selector, check);
            }
        }
    }
}

fn ip_block(path: &FieldPath, block: &IPBlock, check: &mut Check) {
    let Ok(cidr) = block.cidr.parse::<IpNet>() else {
        let message = format!(
            "expected a range such as 10.0.0.0/8, found {:?}",
            block.cidr
        );
        return check.error(path.key("cidr"), message);
    };
    for (index, text) in block.except.iter().flatten().enumerate() {
        let path = path.key("except").index(index);
        match text.parse::<IpNet>() {
            Ok(except) if cidr.contains(&except) && cidr != except => {}
            Ok(_) => check.error(
                path,
                format!("expected a range inside {cidr}, found {text}"),
            ),
            Err(_) => {
                check.error(
                    path,
                    format!("expected a range such as 10.1.0.0/16, found {text:?}"),
                );
            }
        }
    }
}

fn ports(path: &FieldPath, ports: Option<&[NetworkPolicyPort]>, check: &mut Check) {
    for (index, port) in ports.into_iter().flatten().enumerate() {
        let path = path.index(index);
        let protocols = ["TCP", "UDP", "SCTP"];
        check.one_of(path.key("protocol"), port.protocol.as_deref(), &protocols);
        match (&port.port, port.end_port) {
            (Some(IntOrString::Int(first)), end) => {
                check.port(path.key("port"), *first);
                if let Some(end) = end {
                    check.port(path.key("endPort"), end);
                    if end < *first {
                        let message = format!("expected {first} or more, found {end}");
                        check.error(path.key("endPort"), message);
                    }
                }
            }
            (Some(IntOrString::String(name)), end) => {
                check.name(path.key("port"), names::port_name(name));
                if end.is_some() {
                    check.error(path.key("endPort"), "needs a number in port");
                }
            }
            (None, Some(_)) => check.error(path.key("endPort"), "needs a number in port"),
            (None, None) => {}
        }
    }
}
