//! Deployments (and bare ReplicaSets): as many pods of the newest template as
//! wanted, replaced step by step when the template changes.
//!
//! There is no ReplicaSet in between: a pod's name carries the template's hash as
//! it would in a cluster, and the Deployment controls the pod itself.

use std::cmp::Reverse;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::template::{self, Rounding, int_or_percent};
use crate::engine::object::{Key, Object, is_pod_ready, labels, name, number, text, timestamp};
use crate::engine::world::{Action, World};

/// Label that tells the pods of one template from those of another.
pub(crate) const HASH_LABEL: &str = "pod-template-hash";

/// What has to happen for all Deployments and ReplicaSets.
pub(crate) fn desired(world: &World, now: SystemTime) -> Vec<Action> {
    let owners = world
        .of_kind("Deployment")
        .chain(world.of_kind("ReplicaSet"));
    owners.flat_map(|owner| one(world, owner, now)).collect()
}

fn one(world: &World, owner: &Object, now: SystemTime) -> Vec<Action> {
    let hash = template::hash(owner);
    let owned = template::owned(world, owner);
    let active: Vec<_> = owned
        .iter()
        .copied()
        .filter(|pod| template::is_active(pod))
        .collect();
    let (new, old): (Vec<_>, Vec<_>) = active
        .iter()
        .copied()
        .partition(|pod| labels(pod).get(HASH_LABEL) == Some(&hash.as_str()));
    let plan = Plan::of(owner);
    let mut actions = Vec::new();
    let leaving = owned.len() - active.len();
    let created = plan.to_create(new.len(), old.len(), leaving);
    for _ in 0..created {
        let name = format!("{}-{hash}-{}", name(owner), template::random_suffix());
        actions.push(Action::Put(template::pod(
            owner,
            &name,
            &[(HASH_LABEL, &hash)],
        )));
    }
    let deleted = plan.to_delete(&new, &old);
    actions.extend(deleted.iter().map(|pod| Action::Delete(Key::of(pod))));
    if let Some(status) = status(owner, &plan, &new, &active, now) {
        actions.push(Action::Status(Key::of(owner), status));
    }
    actions
}

/// The numbers of one Deployment.
#[derive(Debug)]
struct Plan {
    replicas: u64,
    surge: u64,
    unavailable: u64,
    recreate: bool,
}

impl Plan {
    fn of(owner: &Value) -> Self {
        let replicas = number(owner, "/spec/replicas").unwrap_or(1);
        let rolling = owner.pointer("/spec/strategy/rollingUpdate");
        let field = |key: &str, rounding| {
            let given = rolling.and_then(|rolling| rolling.get(key));
            int_or_percent(given.or(Some(&json!("25%"))), replicas, rounding).unwrap_or(1)
        };
        let surge = field("maxSurge", Rounding::Up);
        let unavailable = field("maxUnavailable", Rounding::Down);
        // Both zero would never move.
        let unavailable = if surge == 0 && unavailable == 0 {
            1
        } else {
            unavailable
        };
        let recreate = text(owner, "/spec/strategy/type") == Some("Recreate");
        Self {
            replicas,
            surge,
            unavailable,
            recreate,
        }
    }

    fn to_create(&self, new: usize, old: usize, leaving: usize) -> u64 {
        let (new, old, leaving) = (new as u64, old as u64, leaving as u64);
        if self.recreate {
            let blocked = old > 0 || (leaving > 0 && new == 0);
            return if blocked {
                0
            } else {
                self.replicas.saturating_sub(new)
            };
        }
        let room = (self.replicas + self.surge).saturating_sub(new + old);
        let wanted = self.replicas.saturating_sub(new);
        if old == 0 { wanted } else { wanted.min(room) }
    }

    fn to_delete<'a>(&self, new: &[&'a Object], old: &[&'a Object]) -> Vec<&'a Object> {
        let mut doomed = Vec::new();
        let surplus = new
            .len()
            .saturating_sub(usize::try_from(self.replicas).unwrap_or(usize::MAX));
        let mut leavers = new.to_vec();
        // Not ready first, then the youngest: least is lost.
        leavers.sort_by_key(|pod| {
            (
                is_pod_ready(pod),
                Reverse(created(pod)),
                name(pod).to_owned(),
            )
        });
        // A creation time has whole seconds: equal ones fall back to the name.
        doomed.extend(leavers.into_iter().take(surplus));
        if self.recreate {
            doomed.extend(old);
            return doomed;
        }
        let ready = new
            .iter()
            .chain(old)
            .filter(|pod| is_pod_ready(pod))
            .count() as u64;
        let mut spare = ready.saturating_sub(self.replicas.saturating_sub(self.unavailable));
        for pod in old {
            if !is_pod_ready(pod) {
                doomed.push(pod);
            } else if spare > 0 {
                spare -= 1;
                doomed.push(pod);
            }
        }
        doomed
    }
}

fn created(pod: &Value) -> String {
    text(pod, "/metadata/creationTimestamp")
        .unwrap_or_default()
        .to_owned()
}

/// The new status, when it differs from the one that is there.
fn status(
    owner: &Value,
    plan: &Plan,
    new: &[&Object],
    active: &[&Object],
    now: SystemTime,
) -> Option<Value> {
    let ready = active.iter().filter(|pod| is_pod_ready(pod)).count() as u64;
    let available = ready >= plan.replicas.saturating_sub(plan.unavailable);
    let held = if available { "True" } else { "False" };
    let reason = if available {
        "MinimumReplicasAvailable"
    } else {
        "MinimumReplicasUnavailable"
    };
    let before = owner.pointer("/status/conditions/0");
    let since = match before {
        Some(before) if text(before, "/status") == Some(held) => {
            text(before, "/lastTransitionTime").map(str::to_owned)
        }
        _ => None,
    };
    let status = json!({
        "observedGeneration": number(owner, "/metadata/generation").unwrap_or(1),
        "replicas": active.len(),
        "updatedReplicas": new.len(),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": plan.replicas.saturating_sub(ready),
        "conditions": [{
            "type": "Available", "status": held, "reason": reason,
            "lastTransitionTime": since.unwrap_or_else(|| timestamp(now)),
        }],
    });
    (owner.get("status") != Some(&status)).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::controllers::testing::{Cluster, set_ready};

    fn deployment(replicas: u64, image: &str) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                     "template": {"metadata": {"labels": {"app": "web"}},
                                  "spec": {"containers": [{"name": "c", "image": image}]}}}
        })
    }

    fn settle(cluster: &mut Cluster) -> u64 {
        cluster.settle(desired)
    }

    #[test]
    fn makes_and_keeps_the_wanted_pods() {
        let mut cluster = Cluster::default();
        cluster.put(deployment(3, "a"));
        settle(&mut cluster);
        assert_eq!(cluster.pods().len(), 3);
        let lost = cluster.pods()[0].clone();
        assert!(
            lost["metadata"]["name"]
                .as_str()
                .expect("name")
                .starts_with("web-")
        );
        cluster.remove(&lost);
        settle(&mut cluster);
        assert_eq!(cluster.pods().len(), 3);
        assert!(
            !cluster
                .pods()
                .iter()
                .any(|pod| pod["metadata"]["name"] == lost["metadata"]["name"])
        );
    }

    #[test]
    fn scales_down_what_is_not_ready_first() {
        let mut cluster = Cluster::default();
        cluster.put(deployment(3, "a"));
        settle(&mut cluster);
        let pods = cluster.pods();
        set_ready(&mut cluster, &pods[0], true);
        set_ready(&mut cluster, &pods[2], true);
        cluster.put(deployment(2, "a"));
        settle(&mut cluster);
        let leaving: Vec<_> = cluster
            .pods()
            .into_iter()
            .filter(crate::engine::object::is_terminating)
            .collect();
        assert_eq!(leaving.len(), 1);
        assert_eq!(leaving[0]["metadata"]["name"], pods[1]["metadata"]["name"]);
    }

    #[test]
    fn a_new_template_rolls_without_losing_availability() {
        let mut cluster = Cluster::default();
        cluster.put(deployment(4, "a"));
        settle(&mut cluster);
        for pod in cluster.pods() {
            set_ready(&mut cluster, &pod, true);
        }
        cluster.put(deployment(4, "b"));
        let mut steps = 0;
        loop {
            settle(&mut cluster);
            let active: Vec<_> = cluster
                .pods()
                .into_iter()
                .filter(template::is_active)
                .collect();
            let ready = active.iter().filter(|pod| is_pod_ready(pod)).count();
            assert!(
                active.len() <= 5,
                "at most replicas + surge, not {}",
                active.len()
            );
            assert!(ready >= 3, "at least replicas - unavailable, not {ready}");
            let new: Vec<_> = active
                .iter()
                .filter(|pod| pod["spec"]["containers"][0]["image"] == "b")
                .collect();
            if new.len() == 4 && active.len() == 4 {
                break;
            }
            for pod in new {
                set_ready(&mut cluster, pod, true);
            }
            cluster.finish_leaving();
            steps += 1;
            assert!(steps < 20, "the rollout stands still");
        }
    }

    #[test]
    fn recreate_waits_for_the_old_pods_to_leave() {
        let mut cluster = Cluster::default();
        let with = |image| {
            let mut value = deployment(2, image);
            value["spec"]["strategy"] = json!({"type": "Recreate"});
            value
        };
        cluster.put(with("a"));
        settle(&mut cluster);
        cluster.put(with("b"));
        settle(&mut cluster);
        assert!(
            cluster
                .pods()
                .iter()
                .all(crate::engine::object::is_terminating)
        );
        cluster.finish_leaving();
        settle(&mut cluster);
        assert_eq!(cluster.pods().len(), 2);
        assert!(
            cluster
                .pods()
                .iter()
                .all(|pod| pod["spec"]["containers"][0]["image"] == "b")
        );
    }

    #[test]
    fn status_counts() {
        let mut cluster = Cluster::default();
        cluster.put(deployment(2, "a"));
        settle(&mut cluster);
        let pod = cluster.pods()[0].clone();
        set_ready(&mut cluster, &pod, true);
        settle(&mut cluster);
        let owner = cluster.object("Deployment", "shop", "web");
        assert_eq!(owner["status"]["readyReplicas"], json!(1));
        assert_eq!(owner["status"]["conditions"][0]["status"], json!("False"));
        assert_eq!(settle(&mut cluster), 0, "a settled world asks for nothing");
    }
}
