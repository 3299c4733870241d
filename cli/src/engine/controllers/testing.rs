//! A world for controller tests: objects go in, a controller settles, pods are told
//! to be ready or to end.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::engine::object::{Key, is_terminating, set};
use crate::engine::world::{Action, World};

/// A cluster without a kubelet.
#[derive(Debug)]
pub(crate) struct Cluster {
    world: World,
    now: SystemTime,
}

impl Default for Cluster {
    fn default() -> Self {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        Self {
            world: World::default(),
            now,
        }
    }
}

impl Cluster {
    /// A cluster with `node-1` to `node-N`.
    pub(crate) fn with_nodes(count: usize) -> Self {
        let mut cluster = Self::default();
        for index in 1..=count {
            let name = format!("node-{index}");
            cluster.put(json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }));
        }
        cluster
    }

    pub(crate) fn put(&mut self, object: Value) {
        self.world.apply(Action::Put(object), self.now);
    }

    pub(crate) fn label_node(&mut self, node: &str, label: &str, value: &str) {
        let key = Key::new("Node", "", node);
        self.world.modify(&key, |node| {
            set(node, &["metadata", "labels", label], json!(value))
        });
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    pub(crate) fn object(&self, kind: &str, namespace: &str, name: &str) -> Value {
        Value::clone(
            self.world
                .object(&Key::new(kind, namespace, name))
                .expect("the object is there"),
        )
    }

    pub(crate) fn pods(&self) -> Vec<Value> {
        self.world
            .of_kind("Pod")
            .map(|pod| Value::clone(pod))
            .collect()
    }

    pub(crate) fn remove(&mut self, object: &Value) {
        self.world.remove(&Key::of(object));
    }

    /// Applies a controller until it asks for nothing; answers with the number of
    /// actions.
    pub(crate) fn settle(&mut self, controller: fn(&World, SystemTime) -> Vec<Action>) -> u64 {
        let mut total = 0;
        for _ in 0..20 {
            let mut changed = 0;
            for action in controller(&self.world, self.now) {
                changed += u64::from(self.world.apply(action, self.now).is_some());
            }
            total += changed;
            if changed == 0 {
                return total;
            }
        }
        panic!("the controller does not settle");
    }

    /// Does the kubelet's part for pods that are to go.
    pub(crate) fn finish_leaving(&mut self) {
        for pod in self.pods().iter().filter(|pod| is_terminating(pod)) {
            self.remove(pod);
        }
    }
}

/// Sets a pod's Ready condition.
pub(crate) fn set_ready(cluster: &mut Cluster, pod: &Value, ready: bool) {
    let held = if ready { "True" } else { "False" };
    cluster.world.modify(&Key::of(pod), |pod| {
        set(pod, &["status", "phase"], json!("Running"));
        set(
            pod,
            &["status", "conditions"],
            json!([{"type": "Ready", "status": held}]),
        );
    });
}

/// Sets a pod's phase.
pub(crate) fn set_phase(cluster: &mut Cluster, pod: &Value, phase: &str) {
    cluster.world.modify(&Key::of(pod), |pod| {
        set(pod, &["status", "phase"], json!(phase))
    });
}
