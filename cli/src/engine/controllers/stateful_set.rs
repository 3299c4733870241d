//! StatefulSets: pods with stable names, started and stopped in order.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::template;
use crate::engine::object::{
    Key, Object, is_finished, is_pod_ready, is_terminating, labels, list, name, number, set,
    set_default, text,
};
use crate::engine::world::{Action, World};

/// Label that tells the pods of one template from those of another.
const REVISION_LABEL: &str = "controller-revision-hash";

/// What has to happen for all StatefulSets.
pub(crate) fn desired(world: &World, _now: SystemTime) -> Vec<Action> {
    world
        .of_kind("StatefulSet")
        .flat_map(|owner| one(world, owner))
        .collect()
}

fn one(world: &World, owner: &Object) -> Vec<Action> {
    let revision = format!("{}-{}", name(owner), template::hash(owner));
    let first = number(owner, "/spec/ordinals/start").unwrap_or(0);
    let replicas = number(owner, "/spec/replicas").unwrap_or(1);
    let pods: BTreeMap<u64, &Object> = template::owned(world, owner)
        .into_iter()
        .filter_map(|pod| Some((ordinal(owner, pod)?, pod)))
        .collect();
    let wanted = first..first + replicas;
    let mut actions = Vec::new();
    let parallel = text(owner, "/spec/podManagementPolicy") == Some("Parallel");
    let mut whole = true;
    for index in wanted.clone() {
        match pods.get(&index) {
            None => {
                actions.push(Action::Put(pod(owner, index, &revision)));
                whole = false;
            }
            Some(pod) if is_finished(pod) && !is_terminating(pod) => {
                actions.push(Action::Delete(Key::of(pod)));
                whole = false;
            }
            Some(pod) => whole &= is_pod_ready(pod) && !is_terminating(pod),
        }
        if !whole && !parallel {
            break;
        }
    }
    let surplus: Vec<_> = pods
        .iter()
        .rev()
        .filter(|(index, _)| !wanted.contains(index))
        .collect();
    // Highest first, and in order only when the one before is gone.
    let step = if parallel { surplus.len() } else { 1 };
    let leaving = surplus
        .iter()
        .take(step)
        .filter(|(_, pod)| !is_terminating(pod));
    actions.extend(leaving.map(|(_, pod)| Action::Delete(Key::of(pod))));
    if whole && surplus.is_empty() && text(owner, "/spec/updateStrategy/type") != Some("OnDelete") {
        let from = number(owner, "/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0);
        let stale = pods.iter().rev().find(|(index, pod)| {
            **index >= from && labels(pod).get(REVISION_LABEL) != Some(&revision.as_str())
        });
        actions.extend(stale.map(|(_, pod)| Action::Delete(Key::of(pod))));
    }
    actions.extend(status(owner, &pods, &revision));
    actions
}

/// The number at the end of a pod's name.
fn ordinal(owner: &Value, pod: &Value) -> Option<u64> {
    name(pod)
        .strip_prefix(name(owner))?
        .strip_prefix('-')?
        .parse()
        .ok()
}

fn pod(owner: &Value, index: u64, revision: &str) -> Value {
    let pod_name = format!("{}-{index}", name(owner));
    let index = index.to_string();
    let extra = [
        (REVISION_LABEL, revision),
        ("statefulset.kubernetes.io/pod-name", pod_name.as_str()),
        ("apps.kubernetes.io/pod-index", index.as_str()),
    ];
    let mut pod = template::pod(owner, &pod_name, &extra);
    set(&mut pod, &["spec", "hostname"], json!(pod_name));
    if let Some(service) = text(owner, "/spec/serviceName") {
        set_default(&mut pod, &["spec", "subdomain"], json!(service));
    }
    let claims = list(owner, "/spec/volumeClaimTemplates")
        .iter()
        .filter_map(|claim| {
            let volume = text(claim, "/metadata/name")?;
            let claim = json!({"claimName": format!("{volume}-{pod_name}")});
            Some(json!({"name": volume, "persistentVolumeClaim": claim}))
        });
    let volumes: Vec<_> = list(&pod, "/spec/volumes")
        .iter()
        .cloned()
        .chain(claims)
        .collect();
    if !volumes.is_empty() {
        set(&mut pod, &["spec", "volumes"], json!(volumes));
    }
    pod
}

fn status(owner: &Object, pods: &BTreeMap<u64, &Object>, revision: &str) -> Option<Action> {
    let active: Vec<_> = pods
        .values()
        .filter(|pod| template::is_active(pod))
        .collect();
    let ready = active.iter().filter(|pod| is_pod_ready(pod)).count();
    let updated = active
        .iter()
        .filter(|pod| labels(pod).get(REVISION_LABEL) == Some(&revision))
        .count();
    let status = json!({
        "observedGeneration": number(owner, "/metadata/generation").unwrap_or(1),
        "replicas": active.len(),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": updated,
        "updatedReplicas": updated,
        "updateRevision": revision,
    });
    (owner.get("status") != Some(&status)).then(|| Action::Status(Key::of(owner), status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::controllers::testing::{Cluster, set_ready};

    fn stateful_set(replicas: u64, image: &str) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": "shop"},
            "spec": {"replicas": replicas, "serviceName": "db-peers",
                     "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
                     "template": {"metadata": {"labels": {"app": "db"}},
                                  "spec": {"containers": [{"name": "c", "image": image}]}}}
        })
    }

    fn names(cluster: &Cluster) -> Vec<String> {
        cluster
            .pods()
            .iter()
            .map(|pod| name(pod).to_owned())
            .collect()
    }

    #[test]
    fn starts_in_order() {
        let mut cluster = Cluster::default();
        cluster.put(stateful_set(3, "a"));
        cluster.settle(desired);
        assert_eq!(names(&cluster), ["db-0"]);
        let first = cluster.pods()[0].clone();
        assert_eq!(first["spec"]["hostname"], json!("db-0"));
        assert_eq!(first["spec"]["subdomain"], json!("db-peers"));
        assert_eq!(
            first["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
            json!("data-db-0")
        );
        set_ready(&mut cluster, &first, true);
        cluster.settle(desired);
        assert_eq!(names(&cluster), ["db-0", "db-1"]);
    }

    #[test]
    fn parallel_starts_all() {
        let mut cluster = Cluster::default();
        let mut value = stateful_set(3, "a");
        value["spec"]["podManagementPolicy"] = json!("Parallel");
        cluster.put(value);
        cluster.settle(desired);
        assert_eq!(names(&cluster), ["db-0", "db-1", "db-2"]);
    }

    fn running(replicas: u64) -> Cluster {
        let mut cluster = Cluster::default();
        cluster.put(stateful_set(replicas, "a"));
        for _ in 0..replicas {
            cluster.settle(desired);
            for pod in cluster.pods() {
                set_ready(&mut cluster, &pod, true);
            }
        }
        cluster.settle(desired);
        cluster
    }

    fn leaving(cluster: &Cluster) -> Vec<String> {
        let pods = cluster.pods();
        pods.iter()
            .filter(|pod| is_terminating(pod))
            .map(|pod| name(pod).to_owned())
            .collect()
    }

    #[test]
    fn scales_down_from_the_end_one_by_one() {
        let mut cluster = running(3);
        cluster.put(stateful_set(1, "a"));
        cluster.settle(desired);
        assert_eq!(leaving(&cluster), ["db-2"]);
        cluster.finish_leaving();
        cluster.settle(desired);
        assert_eq!(leaving(&cluster), ["db-1"]);
    }

    #[test]
    fn a_new_template_replaces_the_last_pod_first_and_keeps_its_name() {
        let mut cluster = running(2);
        cluster.put(stateful_set(2, "b"));
        cluster.settle(desired);
        assert_eq!(leaving(&cluster), ["db-1"]);
        cluster.finish_leaving();
        cluster.settle(desired);
        assert_eq!(names(&cluster), ["db-0", "db-1"]);
        assert_eq!(
            leaving(&cluster),
            Vec::<String>::new(),
            "db-0 waits until db-1 is ready"
        );
        let second = cluster.pods()[1].clone();
        set_ready(&mut cluster, &second, true);
        cluster.settle(desired);
        assert_eq!(leaving(&cluster), ["db-0"]);
    }
}
