//! DaemonSets: one pod on every node that the template's selectors allow.

use std::time::SystemTime;

use serde_json::json;

use super::template;
use crate::engine::object::{
    Key, Object, is_finished, is_pod_ready, is_terminating, labels, name, number, set, text,
};
use crate::engine::scheduler;
use crate::engine::world::{Action, World};

const REVISION_LABEL: &str = "controller-revision-hash";

/// What has to happen for all DaemonSets.
pub(crate) fn desired(world: &World, _now: SystemTime) -> Vec<Action> {
    world
        .of_kind("DaemonSet")
        .flat_map(|owner| one(world, owner))
        .collect()
}

fn one(world: &World, owner: &Object) -> Vec<Action> {
    let revision = template::hash(owner);
    let owned = template::owned(world, owner);
    let template = json!({"spec": owner.pointer("/spec/template/spec")});
    let nodes: Vec<_> = world
        .of_kind("Node")
        .filter(|node| scheduler::fits(&template, node))
        .collect();
    let mut actions = Vec::new();
    for pod in owned.iter().filter(|pod| !is_terminating(pod)) {
        let node = text(pod, "/spec/nodeName").unwrap_or_default();
        if is_finished(pod) || !nodes.iter().any(|candidate| name(candidate) == node) {
            actions.push(Action::Delete(Key::of(pod)));
        }
    }
    for node in &nodes {
        let here = |pod: &&&Object| text(pod, "/spec/nodeName") == Some(name(node));
        if owned.iter().any(|pod| here(&pod)) {
            continue;
        }
        let pod_name = format!("{}-{}", name(owner), template::random_suffix());
        let mut pod = template::pod(owner, &pod_name, &[(REVISION_LABEL, &revision)]);
        set(&mut pod, &["spec", "nodeName"], json!(name(node)));
        actions.push(Action::Put(pod));
    }
    let whole = owned.len() == nodes.len()
        && owned
            .iter()
            .all(|pod| is_pod_ready(pod) && !is_terminating(pod));
    let stale = |pod: &&&Object| labels(pod).get(REVISION_LABEL) != Some(&revision.as_str());
    let all_broken = owned
        .iter()
        .filter(|pod| !is_terminating(pod))
        .filter(stale);
    // One at a time while the others serve; what does not serve is replaced at once.
    let replaced = all_broken.filter(|pod| whole || !is_pod_ready(pod));
    let doomed: Vec<_> = replaced
        .take(1)
        .map(|pod| Action::Delete(Key::of(pod)))
        .collect();
    actions.extend(doomed);
    actions.extend(status(owner, &owned, nodes.len(), &revision));
    actions
}

fn status(owner: &Object, owned: &[&Object], nodes: usize, revision: &str) -> Option<Action> {
    let active: Vec<_> = owned
        .iter()
        .filter(|pod| template::is_active(pod))
        .collect();
    let ready = active.iter().filter(|pod| is_pod_ready(pod)).count();
    let updated = active
        .iter()
        .filter(|pod| labels(pod).get(REVISION_LABEL) == Some(&revision))
        .count();
    let status = json!({
        "observedGeneration": number(owner, "/metadata/generation").unwrap_or(1),
        "currentNumberScheduled": active.len(),
        "desiredNumberScheduled": nodes,
        "numberReady": ready,
        "numberAvailable": ready,
        "numberMisscheduled": 0,
        "updatedNumberScheduled": updated,
    });
    (owner.get("status") != Some(&status)).then(|| Action::Status(Key::of(owner), status))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::engine::controllers::testing::{Cluster, set_ready};

    fn daemon_set(image: &str) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "agent", "namespace": "shop"},
            "spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"},
                                           "containers": [{"name": "c", "image": image}]}}}
        })
    }

    #[test]
    fn one_pod_on_each_matching_node() {
        let mut cluster = Cluster::with_nodes(3);
        cluster.label_node("node-1", "disk", "ssd");
        cluster.label_node("node-3", "disk", "ssd");
        cluster.put(daemon_set("a"));
        cluster.settle(desired);
        let mut nodes: Vec<_> = cluster
            .pods()
            .iter()
            .map(|pod| pod["spec"]["nodeName"].clone())
            .collect();
        nodes.sort_by_key(Value::to_string);
        assert_eq!(nodes, [json!("node-1"), json!("node-3")]);
        cluster.label_node("node-3", "disk", "slow");
        cluster.settle(desired);
        assert_eq!(
            cluster
                .pods()
                .iter()
                .filter(|pod| is_terminating(pod))
                .count(),
            1
        );
    }

    #[test]
    fn a_new_template_replaces_one_at_a_time() {
        let mut cluster = Cluster::with_nodes(2);
        cluster.label_node("node-1", "disk", "ssd");
        cluster.label_node("node-2", "disk", "ssd");
        cluster.put(daemon_set("a"));
        cluster.settle(desired);
        for pod in cluster.pods() {
            set_ready(&mut cluster, &pod, true);
        }
        cluster.put(daemon_set("b"));
        cluster.settle(desired);
        assert_eq!(
            cluster
                .pods()
                .iter()
                .filter(|pod| is_terminating(pod))
                .count(),
            1
        );
    }
}
