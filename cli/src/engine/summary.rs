//! Whether everything is up, and what is still missing. Pure; `up` shows it.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::enrollment::{ENROLLED, is_wanted};
use super::object::{
    Key, Object, age, annotation, is_pod_ready, is_terminating, list, namespace, number, phase,
    text,
};
use super::world::World;

/// Something that is not up yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Missing {
    /// Which object.
    pub object: String,
    /// What it waits for.
    pub reason: String,
    /// Whether only a person can help.
    pub needs_help: bool,
}

/// Reasons of containers that do not go away by waiting.
const HOPELESS: [&str; 2] = ["CreateContainerConfigError", "CreateContainerError"];
/// A container that ended this often will go on ending.
const RESTARTS_HOPELESS: u64 = 5;
/// A container that failed must last this long before its pod counts as up: without a
/// readiness probe it is ready as soon as it runs, and may end the next moment.
const SETTLED: Duration = Duration::from_secs(3);

/// Whether there is a mesh that pods have to be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mesh {
    /// Pods are enrolled as labelled.
    Enabled,
    /// Nobody is enrolled.
    Absent,
}

/// Everything that is missing.
pub(crate) fn missing(world: &World, mesh: Mesh, now: SystemTime) -> Vec<Missing> {
    let mut all: Vec<Missing> = world
        .of_kind("Pod")
        .filter(|pod| !is_terminating(pod))
        .filter_map(|pod| pod_missing(pod, now))
        .collect();
    if mesh == Mesh::Enabled {
        all.extend(
            world
                .of_kind("Pod")
                .filter(|pod| !is_terminating(pod))
                .filter_map(|pod| not_enrolled(world, pod)),
        );
    }
    for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"] {
        for owner in world.of_kind(kind) {
            // A pod that needs help speaks for its owner.
            let spoken =
                all.iter().any(|one| one.needs_help) && owned_needs_help(world, owner, &all);
            if let Some(reason) = replicas_missing(owner) {
                all.push(Missing {
                    object: Key::of(owner).to_string(),
                    reason,
                    needs_help: spoken,
                });
            }
        }
    }
    for job in world.of_kind("Job") {
        let begun = ["active", "succeeded", "failed"]
            .iter()
            .any(|field| number(job, &format!("/status/{field}")).unwrap_or(0) > 0);
        if !begun && job.pointer("/spec/suspend") != Some(&json!(true)) {
            let reason = "no pod yet".to_owned();
            all.push(Missing {
                object: Key::of(job).to_string(),
                reason,
                needs_help: false,
            });
        }
    }
    all
}

/// A pod that is ready, but not in the mesh that its labels put it into.
fn not_enrolled(world: &World, pod: &Object) -> Option<Missing> {
    let own = world.object(&Key::new("Namespace", "", namespace(pod)));
    let wanted = is_pod_ready(pod) && is_wanted(pod, own.map(|one| &**one));
    let enrolled = annotation(pod, ENROLLED) == Some("true");
    (wanted && !enrolled).then(|| Missing {
        object: Key::of(pod).to_string(),
        reason: "not enrolled yet".to_owned(),
        needs_help: false,
    })
}

fn owned_needs_help(world: &World, owner: &Object, missing: &[Missing]) -> bool {
    super::controllers::template::owned(world, owner)
        .iter()
        .any(|pod| {
            let name = Key::of(pod).to_string();
            missing
                .iter()
                .any(|one| one.needs_help && one.object == name)
        })
}

fn replicas_missing(owner: &Value) -> Option<String> {
    let (wanted, ready) = if text(owner, "/kind") == Some("DaemonSet") {
        (
            number(owner, "/status/desiredNumberScheduled"),
            number(owner, "/status/numberReady"),
        )
    } else {
        (
            number(owner, "/spec/replicas").or(Some(1)),
            number(owner, "/status/readyReplicas"),
        )
    };
    let seen = number(owner, "/status/observedGeneration") == number(owner, "/metadata/generation");
    let (wanted, ready) = (wanted.unwrap_or(1), ready.unwrap_or(0));
    (!seen || ready < wanted).then(|| format!("{ready} of {wanted} ready"))
}

fn pod_missing(pod: &Object, now: SystemTime) -> Option<Missing> {
    let missing = |reason: String, needs_help| {
        Some(Missing {
            object: Key::of(pod).to_string(),
            reason,
            needs_help,
        })
    };
    match phase(pod) {
        "Succeeded" => return None,
        // A Job retries; a bare pod does not.
        "Failed" if super::object::controller_uid(pod).is_some() => return None,
        "Failed" => return missing("failed".to_owned(), true),
        _ if is_pod_ready(pod) => {
            let unsettled = list(pod, "/status/containerStatuses")
                .iter()
                .find(|container| is_unsettled(container, now))?;
            return missing(format!("{} and was started anew", ended(unsettled)), false);
        }
        _ => {}
    }
    let scheduled = list(pod, "/status/conditions").iter().find(|one| {
        text(one, "/type") == Some("PodScheduled") && text(one, "/status") == Some("False")
    });
    if let Some(condition) = scheduled {
        let why = text(condition, "/message").unwrap_or("no node fits");
        return missing(format!("spec.nodeSelector, spec.affinity: {why}"), true);
    }
    let containers = list(pod, "/status/initContainerStatuses").iter();
    let containers = containers.chain(list(pod, "/status/containerStatuses"));
    let mut softer = None;
    for container in containers {
        let name = text(container, "/name").unwrap_or_default();
        let waiting = text(container, "/state/waiting/reason");
        let why = text(container, "/state/waiting/message").unwrap_or_default();
        let restarts = number(container, "/restartCount").unwrap_or(0);
        if waiting.is_some_and(|reason| HOPELESS.contains(&reason)) {
            return missing(format!("container {name}: {why}"), true);
        }
        if restarts >= RESTARTS_HOPELESS {
            return missing(ended(container), true);
        }
        let unready = container.get("ready") != Some(&json!(true));
        if unready && softer.is_none() {
            let word = waiting.unwrap_or("not ready");
            softer = Some(if why.is_empty() {
                format!("container {name}: {word}")
            } else {
                format!("container {name}: {word}: {why}")
            });
        }
    }
    missing(softer.unwrap_or_else(|| "not started".to_owned()), false)
}

const LAST_EXIT_CODE: &str = "/lastState/terminated/exitCode";

/// Whether a container failed a moment ago and runs again.
fn is_unsettled(container: &Value, now: SystemTime) -> bool {
    let failed = number(container, LAST_EXIT_CODE).is_some_and(|code| code != 0);
    failed && age(container, "/state/running/startedAt", now).is_none_or(|age| age < SETTLED)
}

fn ended(container: &Value) -> String {
    let name = text(container, "/name").unwrap_or_default();
    let restarts = number(container, "/restartCount").unwrap_or(0);
    let code = container.pointer(LAST_EXIT_CODE).unwrap_or(&Value::Null);
    format!("container {name}: ended {restarts} times, last with exit code {code}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::world::Action;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn world(objects: &[Value]) -> World {
        let mut world = World::default();
        for object in objects {
            world.apply(Action::Put(object.clone()), NOW);
        }
        world
    }

    fn pod(status: &Value) -> Value {
        json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "shop"}, "status": status})
    }

    fn check(status: &Value, expect: Option<(&str, bool)>) {
        let found = missing(&world(&[pod(status)]), Mesh::Absent, NOW);
        match expect {
            None => assert!(found.is_empty(), "{found:?}"),
            Some((reason, needs_help)) => {
                assert_eq!(found.len(), 1, "{status}");
                assert!(found[0].reason.contains(reason), "{found:?}");
                assert_eq!(found[0].needs_help, needs_help, "{found:?}");
            }
        }
    }

    #[test]
    fn pods() {
        check(&json!({"phase": "Succeeded"}), None);
        check(
            &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
            None,
        );
        check(&json!({"phase": "Failed"}), Some(("failed", true)));
        check(&json!({}), Some(("not started", false)));
        let waiting = |reason: &str| {
            json!({"containerStatuses": [{"name": "c",
            "state": {"waiting": {"reason": reason, "message": "why"}}}]})
        };
        check(&waiting("CreateContainerConfigError"), Some(("why", true)));
        check(
            &waiting("ContainerCreating"),
            Some(("ContainerCreating: why", false)),
        );
        check(
            &json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "full"}]}),
            Some(("full", true)),
        );
    }

    #[test]
    fn a_container_that_keeps_failing_is_not_up_between_two_ends() {
        let pod = |code: u64| {
            pod(&json!({
                "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{
                    "name": "c", "ready": true, "restartCount": 2,
                    "state": {"running": {"startedAt": "1970-01-01T00:01:00Z"}},
                    "lastState": {"terminated": {"exitCode": code}},
                }],
            }))
        };
        let found = |code, seconds| {
            let now = NOW + Duration::from_secs(seconds);
            missing(&world(&[pod(code)]), Mesh::Absent, now)
        };
        let again = found(2, 61);
        assert_eq!(
            again[0].reason,
            "container c: ended 2 times, last with exit code 2 and was started anew"
        );
        assert!(!again[0].needs_help);
        assert_eq!(found(2, 63), [], "it lasts");
        assert_eq!(found(0, 61), [], "it ended in order");
    }

    #[test]
    fn a_ready_pod_waits_for_its_place_in_the_mesh() {
        let mut pod =
            pod(&json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
        pod["metadata"]["labels"] = json!({"culvert.dev/mesh": "enabled"});
        assert_eq!(missing(&world(&[pod.clone()]), Mesh::Absent, NOW), []);
        assert_eq!(
            missing(&world(&[pod.clone()]), Mesh::Enabled, NOW)[0].reason,
            "not enrolled yet"
        );
        pod["metadata"]["annotations"] = json!({ENROLLED: "true"});
        assert_eq!(missing(&world(&[pod]), Mesh::Enabled, NOW), []);
    }

    #[test]
    fn owners() {
        let deployment = |generation: u64, ready: u64| {
            json!({"kind": "Deployment", "metadata": {"name": "d", "namespace": "shop", "generation": 2},
                   "spec": {"replicas": 2},
                   "status": {"observedGeneration": generation, "readyReplicas": ready}})
        };
        assert!(missing(&world(&[deployment(2, 2)]), Mesh::Absent, NOW).is_empty());
        assert_eq!(
            missing(&world(&[deployment(2, 1)]), Mesh::Absent, NOW)[0].reason,
            "1 of 2 ready"
        );
        assert_eq!(
            missing(&world(&[deployment(1, 2)]), Mesh::Absent, NOW).len(),
            1,
            "the change is not seen yet"
        );
    }
}
