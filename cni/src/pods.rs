//! What the agent knows of the node's pods from Kubernetes objects, and the decision
//! whether a pod belongs to the mesh. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::rules::PodRules;

/// Label of Namespaces and Pods.
pub const MESH_LABEL: &str = "culvert.dev/mesh";
/// Annotation of Pods: inbound connections stay as they are.
pub const BYPASS_INBOUND: &str = "culvert.dev/bypass-inbound";
/// Annotation of Pods: DNS queries stay as they are.
pub const DNS: &str = "culvert.dev/dns";
/// Annotation of Pods: interfaces whose traffic counts as outbound.
pub const REROUTE_INTERFACES: &str = "culvert.dev/reroute-interfaces";

/// Longest name of a network interface.
const INTERFACE_BYTES_MAX: usize = 15;
/// More probe ports than that has no pod that means well.
const PROBE_PORTS_MAX: usize = 64;

/// Everything of interest on this node, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// Pods of this node by UID.
    pub pods: BTreeMap<Arc<str>, PodFacts>,
    /// Namespaces by name, with the value of [`MESH_LABEL`].
    pub namespaces: BTreeMap<String, Option<String>>,
}

/// What matters of a Pod object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Service account.
    pub service_account: String,
    /// Value of [`MESH_LABEL`].
    pub label: Option<String>,
    /// It has the node's own network.
    pub host_network: bool,
    /// All its containers have ended for good.
    pub finished: bool,
    /// How it wants to be redirected.
    pub rules: PodRules,
    /// Annotations that could not be understood.
    pub complaints: Vec<String>,
    /// Ports that the kubelet probes.
    pub probe_ports: BTreeSet<u16>,
}

/// Whether a pod belongs to the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// It does.
    In(PodRules),
    /// It does not, for this reason.
    Out(String),
    /// That cannot be known now, for this reason: whatever is, stays.
    Unknown(String),
}

impl Objects {
    /// Decides on one pod. `exempt` namespaces are never enrolled.
    #[must_use]
    pub fn membership(&self, uid: &str, exempt: &BTreeSet<String>) -> Membership {
        let Some(pod) = self.pods.get(uid) else {
            return Membership::Out("the pod object is gone".to_owned());
        };
        if pod.host_network {
            return Membership::Out("the pod has the node's network".to_owned());
        }
        if exempt.contains(&pod.namespace) {
            return Membership::Out(format!("namespace {} is exempt", pod.namespace));
        }
        if pod.finished {
            return Membership::Out("the pod has finished".to_owned());
        }
        match (pod.label.as_deref(), self.namespaces.get(&pod.namespace)) {
            (Some(value), _) => judge(value, "the pod", pod),
            (None, Some(Some(value))) => judge(value, "the namespace", pod),
            (None, Some(None)) => Membership::Out(format!(
                "neither pod nor namespace has the label {MESH_LABEL}"
            )),
            (None, None) => {
                Membership::Unknown(format!("namespace {} is not known yet", pod.namespace))
            }
        }
    }

    /// The pod of that name.
    #[must_use]
    pub fn named(&self, namespace: &str, name: &str) -> Option<&Arc<str>> {
        self.pods
            .iter()
            .find(|(_, pod)| pod.namespace == namespace && pod.name == name)
            .map(|(uid, _)| uid)
    }
}

fn judge(value: &str, whose: &str, pod: &PodFacts) -> Membership {
    match value {
        "enabled" => Membership::In(pod.rules.clone()),
        "disabled" => Membership::Out(format!("label {MESH_LABEL} of {whose} is disabled")),
        other => Membership::Out(format!(
            "label {MESH_LABEL} of {whose} is {other:?}, expected enabled or disabled"
        )),
    }
}

impl PodFacts {
    /// Reads a Pod object. None when it has no UID, name or namespace, or is of
    /// another node.
    #[must_use]
    pub fn parse(object: &Value, node: &str) -> Option<(Arc<str>, Self)> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        if text("/spec/nodeName") != Some(node) {
            return None;
        }
        let uid = text("/metadata/uid").filter(|uid| !uid.is_empty())?;
        let label = label(object);
        let phase = text("/status/phase").unwrap_or_default();
        let host_network = object
            .pointer("/spec/hostNetwork")
            .and_then(Value::as_bool)
            .unwrap_or_default();
        let (rules, complaints) = annotations(object);
        let facts = Self {
            namespace: text("/metadata/namespace")?.to_owned(),
            name: text("/metadata/name")?.to_owned(),
            service_account: text("/spec/serviceAccountName")
                .filter(|name| !name.is_empty())
                .unwrap_or("default")
                .to_owned(),
            label,
            host_network,
            finished: matches!(phase, "Succeeded" | "Failed"),
            rules,
            complaints,
            probe_ports: probe_ports(object),
        };
        Some((Arc::from(uid), facts))
    }
}

/// The value of [`MESH_LABEL`] of an object.
#[must_use]
pub fn label(object: &Value) -> Option<String> {
    let labels = object.pointer("/metadata/labels")?;
    Some(labels.get(MESH_LABEL)?.as_str()?.to_owned())
}

fn annotations(object: &Value) -> (PodRules, Vec<String>) {
    let mut rules = PodRules::default();
    let mut complaints = Vec::new();
    let annotation = |name: &str| {
        let all = object.pointer("/metadata/annotations")?;
        all.get(name)?.as_str()
    };
    let mut flag = |name: &str, default: bool| match annotation(name) {
        None => default,
        Some("true") => true,
        Some("false") => false,
        Some(other) => {
            complaints.push(format!(
                "annotation {name} is {other:?}, expected \"true\" or \"false\""
            ));
            default
        }
    };
    rules.inbound = !flag(BYPASS_INBOUND, false);
    rules.dns = flag(DNS, true);
    for name in annotation(REROUTE_INTERFACES)
        .unwrap_or_default()
        .split(',')
    {
        let name = name.trim();
        let good = name.len() <= INTERFACE_BYTES_MAX && name != "lo" && name.is_ascii();
        if good && !name.is_empty() {
            rules.reroute_interfaces.push(name.to_owned());
        } else if !good {
            complaints.push(format!(
                "annotation {REROUTE_INTERFACES} names {name:?}, which is no interface of a \
                 virtual machine"
            ));
        }
    }
    (rules, complaints)
}

/// Ports of httpGet, tcpSocket and grpc in the probes and hooks of all containers.
fn probe_ports(object: &Value) -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    for list in ["/spec/containers", "/spec/initContainers"] {
        let containers = object.pointer(list).and_then(Value::as_array);
        for container in containers.into_iter().flatten() {
            for place in [
                "/livenessProbe",
                "/readinessProbe",
                "/startupProbe",
                "/lifecycle/postStart",
                "/lifecycle/preStop",
            ] {
                let Some(probe) = container.pointer(place) else {
                    continue;
                };
                ports.extend(
                    ["/httpGet/port", "/tcpSocket/port", "/grpc/port"]
                        .iter()
                        .filter_map(|pointer| port(probe.pointer(pointer)?, container)),
                );
            }
        }
    }
    while ports.len() > PROBE_PORTS_MAX {
        ports.pop_last();
    }
    ports
}

/// A number, or the name of one of the container's ports.
fn port(value: &Value, container: &Value) -> Option<u16> {
    let number = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    if let Some(port) = number(value) {
        return Some(port);
    }
    let text = value.as_str()?;
    if let Ok(port) = text.parse() {
        return Some(port);
    }
    let named = container
        .pointer("/ports")?
        .as_array()?
        .iter()
        .find(|port| port.get("name").and_then(Value::as_str) == Some(text))?;
    number(named.get("containerPort")?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(labels: &Value, annotations: &Value) -> PodFacts {
        let object = json!({
            "metadata": {"uid": "u1", "name": "web", "namespace": "shop", "labels": labels,
                "annotations": annotations},
            "spec": {"nodeName": "n1", "containers": [{
                "ports": [{"name": "http", "containerPort": 8080}],
                "readinessProbe": {"httpGet": {"port": "http"}},
                "livenessProbe": {"tcpSocket": {"port": 9}},
                "startupProbe": {"grpc": {"port": 10}, "exec": {"command": ["x"]}},
            }]},
        });
        PodFacts::parse(&object, "n1")
            .expect("a pod of this node")
            .1
    }

    #[test]
    fn the_pods_label_wins_over_the_namespaces() {
        let none = BTreeSet::new();
        let check = |pod_label: Option<&str>, namespace: Option<Option<&str>>, enrolled| {
            let labels = match pod_label {
                Some(value) => json!({ MESH_LABEL: value }),
                None => json!({}),
            };
            let mut objects = Objects::default();
            objects.pods.insert("u1".into(), pod(&labels, &json!({})));
            if let Some(label) = namespace {
                let label = label.map(str::to_owned);
                objects.namespaces.insert("shop".to_owned(), label);
            }
            let found = match objects.membership("u1", &none) {
                Membership::In(_) => "in",
                Membership::Out(_) => "out",
                Membership::Unknown(_) => "unknown",
            };
            assert_eq!(found, enrolled, "{pod_label:?} {namespace:?}");
            let exempt = BTreeSet::from(["shop".to_owned()]);
            let out = objects.membership("u1", &exempt);
            assert!(matches!(out, Membership::Out(_)), "{out:?}");
        };
        check(None, None, "unknown");
        check(None, Some(None), "out");
        check(None, Some(Some("enabled")), "in");
        check(None, Some(Some("disabled")), "out");
        check(None, Some(Some("yes")), "out");
        check(Some("disabled"), Some(Some("enabled")), "out");
        check(Some("enabled"), Some(Some("disabled")), "in");
        check(Some("enabled"), None, "in");
        check(Some("true"), Some(Some("enabled")), "out");
    }

    #[test]
    fn annotations_opt_out_and_nonsense_is_named() {
        let facts = pod(&json!({}), &json!({}));
        assert_eq!(facts.rules, PodRules::default());
        assert_eq!(facts.probe_ports, BTreeSet::from([8080, 9, 10]));
        assert_eq!(facts.service_account, "default");
        let facts = pod(
            &json!({}),
            &json!({BYPASS_INBOUND: "true", DNS: "false", REROUTE_INTERFACES: "tap0, tap1"}),
        );
        let interfaces = ["tap0", "tap1"].map(str::to_owned).to_vec();
        let expect = PodRules {
            inbound: false,
            dns: false,
            reroute_interfaces: interfaces,
        };
        assert_eq!((facts.rules, facts.complaints.len()), (expect, 0));
        let facts = pod(
            &json!({}),
            &json!({BYPASS_INBOUND: "1", DNS: "no", REROUTE_INTERFACES: "lo,a-name-that-is-too-long"}),
        );
        assert_eq!(
            (facts.rules, facts.complaints.len()),
            (PodRules::default(), 4)
        );
    }

    #[test]
    fn pods_of_other_nodes_and_broken_objects_are_nobodys() {
        for object in [
            json!({"metadata": {"uid": "u", "name": "n", "namespace": "s"}, "spec": {"nodeName": "n2"}}),
            json!({"metadata": {"uid": "u", "name": "n", "namespace": "s"}}),
            json!({"metadata": {"uid": "", "name": "n", "namespace": "s"}, "spec": {"nodeName": "n1"}}),
            json!({"metadata": {"uid": "u", "name": 7}, "spec": {"nodeName": "n1"}}),
            json!([]),
        ] {
            assert!(PodFacts::parse(&object, "n1").is_none(), "{object}");
        }
    }
}
