//! EndpointSlices: which pods stand behind each Service, and which of them are
//! ready. A pod that is to go is not ready from that moment on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::services::{families, is_external_name};
use crate::engine::object::{
    Key, Object, content_hash, is_finished, is_pod_ready, is_terminating, labels, list, name,
    namespace, owner_reference, pod_ips, string_map, suffix, text, uid,
};
use crate::engine::selector::map_matches;
use crate::engine::settings::Family;
use crate::engine::world::{Action, World};

const SERVICE_LABEL: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";

/// Writes the slices that changed and removes those of services that are gone.
pub(crate) fn desired(world: &World, _now: SystemTime) -> Vec<Action> {
    let mut wanted = BTreeMap::new();
    for service in world.of_kind("Service") {
        for slice in slices(world, service) {
            wanted.insert(Key::of(&slice), slice);
        }
    }
    let ours = world
        .of_kind("EndpointSlice")
        .filter(|slice| labels(slice).get(MANAGED_BY) == Some(&CONTROLLER));
    let stale: Vec<_> = ours
        .map(|slice| Key::of(slice))
        .filter(|key| !wanted.contains_key(key))
        .collect();
    let changed = wanted.into_iter().filter(|(key, slice)| {
        world
            .object(key)
            .is_none_or(|before| differs(before, slice))
    });
    changed
        .map(|(_, slice)| Action::Put(slice))
        .chain(stale.into_iter().map(Action::Delete))
        .collect()
}

fn differs(before: &Value, after: &Value) -> bool {
    ["endpoints", "ports", "addressType"]
        .iter()
        .any(|field| before.get(field) != after.get(field))
        || before.pointer("/metadata/labels") != after.pointer("/metadata/labels")
        || before.pointer("/metadata/ownerReferences") != after.pointer("/metadata/ownerReferences")
}

fn slices(world: &World, service: &Object) -> Vec<Value> {
    let selector = string_map(service, "/spec/selector");
    if selector.is_empty() || is_external_name(service) {
        return Vec::new();
    }
    let pods: Vec<_> = world
        .in_namespace("Pod", namespace(service))
        .filter(|pod| map_matches(&selector, &labels(pod)) && !is_finished(pod))
        .collect();
    let mut slices = Vec::new();
    for family in families(service).iter() {
        // Pods may give one port name different numbers: one slice for each set.
        let mut groups: BTreeMap<String, (Value, Vec<Value>)> = BTreeMap::new();
        for pod in &pods {
            let Some(address) = pod_ips(pod)
                .into_iter()
                .find(|one| Family::of(*one) == family)
            else {
                continue;
            };
            let ports = ports(service, Some(pod));
            let group = groups
                .entry(ports.to_string())
                .or_insert_with(|| (ports, Vec::new()));
            group.1.push(endpoint(service, pod, address));
        }
        if groups.is_empty() {
            groups.insert(String::new(), (ports(service, None), Vec::new()));
        }
        slices.extend(
            groups
                .into_values()
                .map(|(ports, ends)| slice(service, family, &ports, &ends)),
        );
    }
    slices
}

fn slice(service: &Object, family: Family, ports: &Value, endpoints: &[Value]) -> Value {
    // Without endpoints the ports are not known by number: one stable name for both.
    let names: BTreeSet<_> = list(&json!({"p": ports}), "/p")
        .iter()
        .map(Value::to_string)
        .collect();
    let end = suffix(content_hash(&json!([family.name(), names])), 5);
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{}-{end}", name(service)),
            "namespace": namespace(service),
            "labels": {SERVICE_LABEL: name(service), MANAGED_BY: CONTROLLER},
            "ownerReferences": [owner_reference(service)],
        },
        "addressType": family.name(),
        "endpoints": endpoints,
        "ports": ports,
    })
}

fn endpoint(service: &Value, pod: &Value, address: IpAddr) -> Value {
    let terminating = is_terminating(pod);
    let serving = is_pod_ready(pod);
    let publish = service.pointer("/spec/publishNotReadyAddresses") == Some(&json!(true));
    let mut endpoint = json!({
        "addresses": [address.to_string()],
        "conditions": {
            "ready": publish || (serving && !terminating),
            "serving": serving,
            "terminating": terminating,
        },
        "nodeName": text(pod, "/spec/nodeName"),
        "targetRef": {"kind": "Pod", "namespace": namespace(pod), "name": name(pod), "uid": uid(pod)},
    });
    let named = text(pod, "/spec/subdomain") == Some(name(service));
    if let (true, Some(hostname)) = (named, text(pod, "/spec/hostname")) {
        endpoint["hostname"] = json!(hostname);
    }
    endpoint
}

/// The service's ports as the pod has them.
fn ports(service: &Value, pod: Option<&Value>) -> Value {
    let ports = list(service, "/spec/ports").iter().filter_map(|port| {
        let number = match port.get("targetPort") {
            Some(Value::String(wanted)) => match wanted.parse::<u16>() {
                Ok(number) => json!(number),
                Err(_) => match pod {
                    Some(pod) => json!(container_port(pod, wanted, text(port, "/protocol"))?),
                    None => Value::Null,
                },
            },
            Some(number @ Value::Number(_)) => number.clone(),
            _ => port.get("port")?.clone(),
        };
        let mut out = json!({
            "name": text(port, "/name").unwrap_or_default(),
            "protocol": text(port, "/protocol").unwrap_or("TCP"),
            "port": number,
        });
        if let Some(protocol) = port.get("appProtocol") {
            out["appProtocol"] = protocol.clone();
        }
        Some(out)
    });
    Value::Array(ports.collect())
}

/// Number of a named container port.
pub(crate) fn container_port(pod: &Value, wanted: &str, protocol: Option<&str>) -> Option<u64> {
    let protocol = protocol.unwrap_or("TCP");
    let containers = list(pod, "/spec/containers")
        .iter()
        .chain(list(pod, "/spec/initContainers"));
    containers
        .flat_map(|container| list(container, "/ports"))
        .find(|port| {
            text(port, "/name") == Some(wanted)
                && text(port, "/protocol").unwrap_or("TCP") == protocol
        })
        .and_then(|port| port.get("containerPort")?.as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::controllers::services;
    use crate::engine::controllers::testing::{Cluster, set_phase};

    fn pod(name: &str, ready: &str, port: u16) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"nodeName": "node-1", "hostname": name, "subdomain": "web",
                     "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": port}]}]},
            "status": {"phase": "Running",
                       "podIPs": [{"ip": format!("10.244.1.{}", port % 100)}, {"ip": "fd00:10:244:1::9"}],
                       "conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    fn cluster(pods: &[Value]) -> Cluster {
        let mut cluster = Cluster::default();
        cluster.put(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"ipFamilyPolicy": "PreferDualStack", "selector": {"app": "web"},
                     "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}}));
        cluster.settle(services::desired);
        for pod in pods {
            cluster.put(pod.clone());
        }
        cluster.settle(desired);
        cluster
    }

    fn slices_of(cluster: &Cluster, family: &str) -> Vec<Value> {
        let all = cluster
            .world()
            .of_kind("EndpointSlice")
            .map(|slice| Value::clone(slice));
        all.filter(|slice| slice["addressType"] == family).collect()
    }

    #[test]
    fn both_families_and_named_ports() {
        let cluster = cluster(&[pod("a", "True", 8080), pod("b", "False", 8080)]);
        let slices = slices_of(&cluster, "IPv4");
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0]["ports"][0]["port"], json!(8080));
        let endpoints = slices[0]["endpoints"].as_array().expect("endpoints");
        assert_eq!(endpoints[0]["conditions"]["ready"], json!(true));
        assert_eq!(endpoints[1]["conditions"]["ready"], json!(false));
        assert_eq!(endpoints[0]["hostname"], json!("a"));
        assert_eq!(slices_of(&cluster, "IPv6").len(), 1);
    }

    #[test]
    fn different_numbers_for_one_name_make_two_slices() {
        let cluster = cluster(&[pod("a", "True", 8080), pod("b", "True", 9090)]);
        assert_eq!(slices_of(&cluster, "IPv4").len(), 2);
    }

    #[test]
    fn a_terminating_pod_is_not_ready_but_serves() {
        let mut leaving = pod("a", "True", 8080);
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let cluster = cluster(&[leaving]);
        let conditions = &slices_of(&cluster, "IPv4")[0]["endpoints"][0]["conditions"];
        assert_eq!(
            *conditions,
            json!({"ready": false, "serving": true, "terminating": true})
        );
    }

    #[test]
    fn a_finished_pod_and_a_removed_service_leave() {
        let mut cluster = cluster(&[pod("a", "True", 8080)]);
        let one = cluster.pods()[0].clone();
        set_phase(&mut cluster, &one, "Succeeded");
        cluster.settle(desired);
        let slices = slices_of(&cluster, "IPv4");
        assert_eq!(slices[0]["endpoints"], json!([]));
        let service = cluster.object("Service", "shop", "web");
        cluster.remove(&service);
        cluster.settle(desired);
        assert!(slices_of(&cluster, "IPv4").is_empty());
    }
}
