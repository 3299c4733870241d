//! Services and their endpoints.

use std::{collections::HashSet, net::IpAddr};

use k8s_openapi::{
    api::{
        core::v1::{Service, ServiceSpec},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{Check, names};
use crate::path::FieldPath;

pub(super) fn service(service: &Service, check: &mut Check) {
    let path = FieldPath::at("spec");
    let Some(spec) = &service.spec else {
        return check.error(path, "required");
    };
    let types = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
    check.one_of(path.key("type"), spec.type_.as_deref(), &types);
    let external = spec.type_.as_deref() == Some("ExternalName");
    if external {
        match spec.external_name.as_deref() {
            None | Some("") => {
                check.error(path.key("externalName"), "required with type ExternalName")
            }
            Some(name) => check.name(
                path.key("externalName"),
                names::dns_subdomain(name.trim_end_matches('.')),
            ),
        }
    }
    let headless = spec.cluster_ip.as_deref() == Some("None");
    if spec.ports.as_ref().is_none_or(Vec::is_empty) && !headless && !external {
        check.error(path.key("ports"), "required: at least one port");
    }
    addresses(&path, spec, check);
    ports(&path, spec, check);
    let policies = ["Cluster", "Local"];
    check.one_of(
        path.key("internalTrafficPolicy"),
        spec.internal_traffic_policy.as_deref(),
        &policies,
    );
    check.one_of(
        path.key("trafficDistribution"),
        spec.traffic_distribution.as_deref(),
        &["PreferClose", "PreferSameZone", "PreferSameNode"],
    );
}

fn addresses(path: &FieldPath, spec: &ServiceSpec, check: &mut Check) {
    let ip = |check: &mut Check, path: FieldPath, text: &str| {
        if !["", "None"].contains(&text) && text.parse::<IpAddr>().is_err() {
            check.error(
                path,
                format!("expected an IP address or None, found {text:?}"),
            );
        }
    };
    if let Some(text) = &spec.cluster_ip {
        ip(check, path.key("clusterIP"), text);
    }
    for (index, text) in spec.cluster_ips.iter().flatten().enumerate() {
        ip(check, path.key("clusterIPs").index(index), text);
    }
    for (index, family) in spec.ip_families.iter().flatten().enumerate() {
        let path = path.key("ipFamilies").index(index);
        check.one_of(path, Some(family), &["IPv4", "IPv6"]);
    }
    check.one_of(
        path.key("ipFamilyPolicy"),
        spec.ip_family_policy.as_deref(),
        &["SingleStack", "PreferDualStack", "RequireDualStack"],
    );
}

fn ports(path: &FieldPath, spec: &ServiceSpec, check: &mut Check) {
    let list = spec.ports.as_deref().unwrap_or_default();
    let (mut seen, mut seen_names) = (HashSet::new(), HashSet::new());
    for (index, port) in list.iter().enumerate() {
        let path = path.key("ports").index(index);
        check.port(path.key("port"), port.port);
        let protocol = port.protocol.as_deref();
        check.one_of(path.key("protocol"), protocol, &["TCP", "UDP", "SCTP"]);
        if !seen.insert((port.port, protocol.unwrap_or("TCP"))) {
            let message = format!("port {} is listed twice", port.port);
            check.error(path.key("port"), message);
        }
        match port.name.as_deref() {
            None | Some("") if list.len() > 1 => {
                check.error(
                    path.key("name"),
                    "required when a Service has several ports",
                );
            }
            None | Some("") => {}
            Some(name) => {
                // Unlike ports of containers these may be up to 63 long.
                check.name(path.key("name"), names::dns_label(name));
                if !seen_names.insert(name) {
                    check.error(path.key("name"), format!("two ports are named {name:?}"));
                }
            }
        }
        match &port.target_port {
            Some(IntOrString::Int(target)) => check.port(path.key("targetPort"), *target),
            Some(IntOrString::String(name)) => {
                check.name(path.key("targetPort"), names::port_name(name));
            }
            None => {}
        }
    }
}

pub(super) fn endpoint_slice(slice: &EndpointSlice, check: &mut Check) {
    let types = ["IPv4", "IPv6", "FQDN"];
    check.one_of(
        FieldPath::at("addressType"),
        Some(&slice.address_type),
        &types,
    );
    if slice.address_type == "FQDN" {
        return;
    }
    for (index, endpoint) in slice.endpoints.iter().enumerate() {
        let path = FieldPath::at("endpoints").index(index).key("addresses");
        if endpoint.addresses.is_empty() {
            check.error(path.clone(), "required: at least one address");
        }
        for (index, text) in endpoint.addresses.iter().enumerate() {
            if text.parse::<IpAddr>().is_err() {
                let message = format!("expected an IP address, found {text:?}");
                check.error(path.index(index), message);
            }
        }
    }
    for (index, port) in slice.ports.iter().flatten().enumerate() {
        if let Some(port) = port.port {
            check.port(FieldPath::at("ports").index(index).key("port"), port);
        }
    }
}
