//! Namespaces and service accounts that other objects take for granted, and the
//! removal of objects whose owner is gone.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::engine::object::{
    Key, Object, controller_uid, is_cluster_scoped, is_terminating, labels, name, namespace, set,
    text, uid,
};
use crate::engine::world::{Action, World};

/// Namespaces that every cluster has.
const BUILT_IN: [&str; 3] = ["culvert-system", "default", "kube-system"];
/// Marks what the engine made because something else named it.
pub(crate) const IMPLICIT: &str = "culvert.dev/implicit";
/// Label that carries a namespace's own name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Implicit objects and garbage.
pub(crate) fn desired(world: &World, _now: SystemTime) -> Vec<Action> {
    let mut actions = namespaces(world);
    actions.extend(service_accounts(world));
    actions.extend(garbage(world));
    actions
}

fn namespaces(world: &World) -> Vec<Action> {
    let used: BTreeSet<&str> = world
        .iter()
        .filter(|(key, object)| !is_cluster_scoped(&key.kind) && !is_implicit(object))
        .map(|(key, _)| key.namespace.as_str())
        .chain(BUILT_IN)
        .filter(|namespace| !namespace.is_empty())
        .collect();
    let mut actions = Vec::new();
    for namespace in &used {
        match world.object(&Key::new("Namespace", "", namespace)) {
            None => actions.push(Action::Put(implicit_namespace(namespace))),
            Some(object) if labels(object).get(NAME_LABEL) != Some(namespace) => {
                let mut named = Value::clone(object);
                set(
                    &mut named,
                    &["metadata", "labels", NAME_LABEL],
                    json!(namespace),
                );
                actions.push(Action::Put(named));
            }
            Some(_) => {}
        }
    }
    let unused = world
        .of_kind("Namespace")
        .filter(|object| is_implicit(object) && !used.contains(name(object)));
    actions.extend(unused.map(|object| Action::Delete(Key::of(object))));
    actions
}

fn implicit_namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {NAME_LABEL: name}, "annotations": {IMPLICIT: "true"}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    })
}

fn service_accounts(world: &World) -> Vec<Action> {
    let named = world
        .of_kind("Pod")
        .filter_map(|pod| Some((namespace(pod), text(pod, "/spec/serviceAccountName")?)));
    let defaults = world
        .of_kind("Namespace")
        .map(|object| (name(object), "default"));
    let wanted: BTreeSet<_> = named.chain(defaults).collect();
    let missing = wanted.iter().filter(|(namespace, name)| {
        world
            .object(&Key::new("ServiceAccount", namespace, name))
            .is_none()
    });
    let unused = world.of_kind("ServiceAccount").filter(|account| {
        is_implicit(account) && !wanted.contains(&(namespace(account), name(account)))
    });
    missing
        .map(|(namespace, name)| {
            Action::Put(json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": name, "namespace": namespace,
                             "annotations": {IMPLICIT: "true"}},
            }))
        })
        .chain(unused.map(|account| Action::Delete(Key::of(account))))
        .collect()
}

/// Whether the engine made the object because something named it.
pub(crate) fn is_implicit(object: &Value) -> bool {
    crate::engine::object::annotation(object, IMPLICIT) == Some("true")
}

fn garbage(world: &World) -> Vec<Action> {
    let living: BTreeSet<&str> = world.iter().map(|(_, object)| uid(object)).collect();
    let orphan = |object: &Object| {
        controller_uid(object).is_some_and(|owner| !living.contains(owner))
            && !is_terminating(object)
    };
    world
        .iter()
        .filter(|(_, object)| orphan(object))
        .map(|(key, _)| Action::Delete(key.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::controllers::testing::Cluster;

    #[test]
    fn names_that_are_used_exist() {
        let mut cluster = Cluster::default();
        cluster.put(
            json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "shop"},
                           "spec": {"serviceAccountName": "web"}}),
        );
        cluster.settle(desired);
        let made = cluster.object("Namespace", "", "shop");
        assert_eq!(made["metadata"]["labels"][NAME_LABEL], json!("shop"));
        cluster.object("ServiceAccount", "shop", "default");
        cluster.object("ServiceAccount", "shop", "web");
        cluster.object("Namespace", "", "culvert-system");
    }

    #[test]
    fn an_implicit_namespace_goes_with_its_last_object() {
        let mut cluster = Cluster::default();
        let pod = json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "shop"}});
        cluster.put(pod.clone());
        cluster.settle(desired);
        cluster.remove(&pod);
        cluster.settle(desired);
        assert!(
            cluster
                .world()
                .object(&Key::new("Namespace", "", "shop"))
                .is_none()
        );
    }

    #[test]
    fn a_declared_namespace_keeps_its_labels_and_gets_its_name() {
        let mut cluster = Cluster::default();
        cluster.put(json!({"kind": "Namespace", "metadata": {"name": "shop",
                           "labels": {"culvert.dev/mesh": "enabled"}}}));
        cluster.put(json!({"kind": "Service", "metadata": {"name": "a", "namespace": "shop"}}));
        cluster.settle(desired);
        let labels = &cluster.object("Namespace", "", "shop")["metadata"]["labels"];
        assert_eq!(labels[NAME_LABEL], json!("shop"));
        assert_eq!(labels["culvert.dev/mesh"], json!("enabled"));
    }

    #[test]
    fn orphans_go() {
        let mut cluster = Cluster::default();
        cluster.put(
            json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "shop",
            "ownerReferences": [{"controller": true, "uid": "gone"}]}}),
        );
        cluster.settle(desired);
        assert!(is_terminating(&cluster.object("Pod", "shop", "a")));
    }
}
