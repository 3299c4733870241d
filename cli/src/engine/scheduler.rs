//! Chooses a node for every pod that has none.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::object::{
    Key, Object, condition, controller_uid, is_finished, is_terminating, labels, list, name,
    namespace, set, string_map, text, timestamp,
};
use super::selector::{self, map_matches, requirement};
use super::world::{Action, World};

/// Label with a node's name.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Pod addresses of a node (a /24 without its ends and the gateway's number).
pub(crate) const PODS_MAX: usize = 250;

/// Assigns nodes, or says why not.
pub(crate) fn desired(world: &World, now: SystemTime) -> Vec<Action> {
    let nodes: Vec<_> = world.of_kind("Node").collect();
    if nodes.is_empty() {
        return Vec::new();
    }
    let mut load = Load::of(world);
    let waiting = world.of_kind("Pod").filter(|pod| {
        text(pod, "/spec/nodeName").is_none() && !is_terminating(pod) && !is_finished(pod)
    });
    waiting
        .filter_map(|pod| one(pod, &nodes, &mut load, now))
        .collect()
}

fn one(pod: &Object, nodes: &[&Object], load: &mut Load, now: SystemTime) -> Option<Action> {
    let fitting: Vec<_> = nodes.iter().filter(|node| fits(pod, node)).collect();
    let free = fitting.iter().filter(|node| {
        condition(node, "Ready") == Some("True")
            && load.total(name(node)) < PODS_MAX
            && !load.repels(pod, name(node))
    });
    let owner = controller_uid(pod).unwrap_or_default();
    let best = free.min_by_key(|node| {
        let node = name(node);
        (
            load.of_owner(node, owner),
            load.total(node),
            Reverse(load.prefers(pod, node)),
            node.to_owned(),
        )
    });
    let mut changed = Value::clone(pod);
    let condition = match best {
        Some(node) => {
            load.add(pod, name(node));
            set(&mut changed, &["spec", "nodeName"], json!(name(node)));
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(now)})
        }
        None => {
            let message = format!(
                "{} of {} nodes match nodeSelector and affinity; those are full, not ready or kept \
                 free by podAntiAffinity",
                fitting.len(),
                nodes.len()
            );
            if list(pod, "/status/conditions")
                .iter()
                .any(|one| text(one, "/message") == Some(&message))
            {
                return None;
            }
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                   "message": message, "lastTransitionTime": timestamp(now)})
        }
    };
    set(&mut changed, &["status", "phase"], json!("Pending"));
    set(&mut changed, &["status", "conditions"], json!([condition]));
    Some(Action::Put(changed))
}

/// Whether a pod's `nodeSelector` and required node affinity allow a node.
pub(crate) fn fits(pod: &Value, node: &Value) -> bool {
    let labels = labels(node);
    if !map_matches(&string_map(pod, "/spec/nodeSelector"), &labels) {
        return false;
    }
    let pointer = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let terms = list(pod, pointer);
    let term = |term: &Value| {
        let fields = BTreeMap::from([("metadata.name", name(node))]);
        list(term, "/matchExpressions")
            .iter()
            .all(|one| requirement(one, &labels))
            && list(term, "/matchFields")
                .iter()
                .all(|one| requirement(one, &fields))
    };
    terms.is_empty() || terms.iter().any(term)
}

/// What runs where, counted once for a whole pass.
#[derive(Debug)]
struct Load {
    pods: BTreeMap<String, Vec<Object>>,
}

impl Load {
    fn of(world: &World) -> Self {
        let mut load = Self {
            pods: BTreeMap::new(),
        };
        for pod in world.of_kind("Pod").filter(|pod| !is_finished(pod)) {
            if let Some(node) = text(pod, "/spec/nodeName") {
                load.add(pod, node);
            }
        }
        load
    }

    fn add(&mut self, pod: &Object, node: &str) {
        self.pods
            .entry(node.to_owned())
            .or_default()
            .push(Object::clone(pod));
    }

    fn on(&self, node: &str) -> &[Object] {
        self.pods.get(node).map_or(&[], Vec::as_slice)
    }

    fn total(&self, node: &str) -> usize {
        self.on(node).len()
    }

    fn of_owner(&self, node: &str, owner: &str) -> usize {
        let same = |pod: &&Object| !owner.is_empty() && controller_uid(pod) == Some(owner);
        self.on(node).iter().filter(same).count()
    }

    /// Required anti-affinity, by node.
    fn repels(&self, pod: &Value, node: &str) -> bool {
        let pointer =
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        self.any_term(pod, node, list(pod, pointer).iter())
    }

    /// Preferred affinity to pods that run on the node.
    fn prefers(&self, pod: &Value, node: &str) -> bool {
        let required = list(
            pod,
            "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution",
        );
        let preferred = list(
            pod,
            "/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution",
        );
        let terms = preferred
            .iter()
            .filter_map(|one| one.get("podAffinityTerm"));
        self.any_term(pod, node, required.iter().chain(terms))
    }

    fn any_term<'a>(
        &self,
        pod: &Value,
        node: &str,
        mut terms: impl Iterator<Item = &'a Value>,
    ) -> bool {
        terms.any(|term| {
            let by_node = text(term, "/topologyKey") == Some(HOSTNAME);
            let selector = term.get("labelSelector").unwrap_or(&Value::Null);
            by_node
                && self.on(node).iter().any(|other| {
                    namespace(other) == namespace(pod)
                        && selector::matches(selector, &labels(other))
                })
        })
    }
}

/// The Node object of a number.
pub(crate) fn node_object(index: u8, extra: Option<&Value>, now: SystemTime) -> Value {
    let node = format!("node-{index}");
    let mut object = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node, "labels": {}, "annotations": {}},
        "spec": {"podCIDR": format!("10.244.{index}.0/24"),
                 "podCIDRs": [format!("10.244.{index}.0/24"), format!("fd00:10:244:{index:x}::/64")]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": format!("172.30.0.{index}")},
                {"type": "InternalIP", "address": format!("fd00:172:30::{index:x}")},
                {"type": "Hostname", "address": node},
            ],
            "capacity": {"pods": PODS_MAX.to_string()},
            "conditions": [{"type": "Ready", "status": "False", "reason": "NetworkNotReady",
                            "lastTransitionTime": timestamp(now)}],
            "nodeInfo": {"kubeletVersion": concat!("culvert-", env!("CARGO_PKG_VERSION")),
                         "operatingSystem": "linux", "architecture": std::env::consts::ARCH},
        },
    });
    for part in ["labels", "annotations"] {
        if let Some(given) = extra.and_then(|extra| extra["metadata"][part].as_object().cloned()) {
            set(&mut object, &["metadata", part], Value::Object(given));
        }
    }
    set(&mut object, &["metadata", "labels", HOSTNAME], json!(node));
    set(
        &mut object,
        &["metadata", "labels", "kubernetes.io/os"],
        json!("linux"),
    );
    object
}

/// The key of a node's object.
pub(crate) fn node_key(name: &str) -> Key {
    Key::new("Node", "", name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::controllers::testing::Cluster;

    fn pod(name: &str, spec: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
               "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}}, "spec": spec})
    }

    fn node_of(cluster: &Cluster, name: &str) -> Value {
        cluster.object("Pod", "shop", name)["spec"]["nodeName"].clone()
    }

    #[test]
    fn spreads() {
        let mut cluster = Cluster::with_nodes(3);
        for index in 0..6 {
            cluster.put(pod(&format!("p{index}"), &json!({})));
        }
        cluster.settle(desired);
        for node in ["node-1", "node-2", "node-3"] {
            let here = cluster
                .pods()
                .iter()
                .filter(|pod| pod["spec"]["nodeName"] == node)
                .count();
            assert_eq!(here, 2, "{node}");
        }
    }

    #[test]
    fn selectors_and_affinity_bind() {
        let mut cluster = Cluster::with_nodes(2);
        cluster.label_node("node-2", "disk", "ssd");
        cluster.put(pod("a", &json!({"nodeSelector": {"disk": "ssd"}})));
        let terms = json!([{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]);
        let affinity = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        cluster.put(pod("b", &json!({"affinity": affinity})));
        cluster.put(pod("c", &json!({"nodeName": "node-1"})));
        cluster.settle(desired);
        assert_eq!(node_of(&cluster, "a"), json!("node-2"));
        assert_eq!(node_of(&cluster, "b"), json!("node-2"));
        assert_eq!(node_of(&cluster, "c"), json!("node-1"));
    }

    #[test]
    fn anti_affinity_keeps_pods_apart() {
        let mut cluster = Cluster::with_nodes(2);
        let term =
            json!([{"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "web"}}}]);
        let spec = json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": term}}});
        for name in ["a", "b", "c"] {
            cluster.put(pod(name, &spec));
        }
        cluster.settle(desired);
        let placed: Vec<_> = ["a", "b", "c"]
            .iter()
            .map(|name| node_of(&cluster, name))
            .collect();
        assert_eq!(placed, [json!("node-1"), json!("node-2"), Value::Null]);
    }

    #[test]
    fn what_fits_nowhere_says_so() {
        let mut cluster = Cluster::with_nodes(2);
        cluster.put(pod("a", &json!({"nodeSelector": {"disk": "tape"}})));
        cluster.settle(desired);
        let pod = cluster.object("Pod", "shop", "a");
        let condition = &pod["status"]["conditions"][0];
        assert_eq!(condition["reason"], json!("Unschedulable"));
        assert!(
            condition["message"]
                .as_str()
                .expect("message")
                .starts_with("0 of 2 nodes")
        );
    }
}
