//! Jobs: pods that run to completion, retried up to a limit.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::template;
use crate::engine::object::{
    Key, Object, age, annotation, condition, is_terminating, name, number, phase, set, set_default,
    text, timestamp,
};
use crate::engine::world::{Action, World};

/// Retries when the Job does not say: Kubernetes' default.
const BACKOFF_LIMIT: u64 = 6;
const INDEX_ANNOTATION: &str = "batch.kubernetes.io/job-completion-index";

/// What has to happen for all Jobs.
pub(crate) fn desired(world: &World, now: SystemTime) -> Vec<Action> {
    world
        .of_kind("Job")
        .flat_map(|job| one(world, job, now))
        .collect()
}

/// The pods of a Job, counted.
#[derive(Debug)]
struct Tally<'a> {
    active: Vec<&'a Object>,
    succeeded: u64,
    failed: u64,
    terminating: usize,
    done: BTreeSet<u64>,
    taken: BTreeSet<u64>,
}

fn one(world: &World, job: &Object, now: SystemTime) -> Vec<Action> {
    let owned = template::owned(world, job);
    if condition(job, "Complete") == Some("True") || condition(job, "Failed") == Some("True") {
        return finished(job, &owned, now);
    }
    let tally = count(&owned);
    let completions = number(job, "/spec/completions").unwrap_or(1);
    let limit = number(job, "/spec/backoffLimit").unwrap_or(BACKOFF_LIMIT);
    let deadline = number(job, "/spec/activeDeadlineSeconds").map(Duration::from_secs);
    let late = deadline.is_some_and(|limit| {
        age(job, "/status/startTime", now).is_some_and(|running| running >= limit)
    });
    let verdict = if tally.succeeded >= completions {
        Some(("Complete", "CompletionsReached", String::new()))
    } else if tally.failed > limit {
        Some((
            "Failed",
            "BackoffLimitExceeded",
            format!("{} pods failed", tally.failed),
        ))
    } else if late {
        Some((
            "Failed",
            "DeadlineExceeded",
            "the Job ran longer than allowed".to_owned(),
        ))
    } else {
        None
    };
    let mut actions = Vec::new();
    if verdict.is_some() {
        actions.extend(tally.active.iter().map(|pod| Action::Delete(Key::of(pod))));
    } else if job.pointer("/spec/suspend") != Some(&json!(true)) {
        actions.extend(pods(job, &tally, completions));
    }
    actions.extend(status(job, &tally, verdict, now));
    actions
}

fn count<'a>(owned: &[&'a Object]) -> Tally<'a> {
    let mut tally = Tally {
        active: Vec::new(),
        succeeded: 0,
        failed: 0,
        terminating: 0,
        done: BTreeSet::new(),
        taken: BTreeSet::new(),
    };
    for pod in owned {
        let index: Option<u64> =
            annotation(pod, INDEX_ANNOTATION).and_then(|index| index.parse().ok());
        match phase(pod) {
            "Succeeded" => {
                tally.succeeded += 1;
                tally.done.extend(index);
            }
            "Failed" => tally.failed += 1,
            _ if is_terminating(pod) => tally.terminating += 1,
            _ => {
                tally.taken.extend(index);
                tally.active.push(pod);
            }
        }
    }
    tally
}

/// New pods, as many as parallelism and remaining completions allow.
fn pods(job: &Value, tally: &Tally<'_>, completions: u64) -> Vec<Action> {
    let parallelism = number(job, "/spec/parallelism").unwrap_or(1);
    let busy = (tally.active.len() + tally.terminating) as u64;
    let left = completions.saturating_sub(tally.succeeded);
    let missing = parallelism.min(left).saturating_sub(busy);
    let indexed = text(job, "/spec/completionMode") == Some("Indexed");
    let mut free = (0..completions)
        .filter(|index| !tally.done.contains(index) && !tally.taken.contains(index));
    (0..missing)
        .filter_map(|_| {
            let index = if indexed { Some(free.next()?) } else { None };
            Some(Action::Put(pod(job, index)))
        })
        .collect()
}

fn pod(job: &Value, index: Option<u64>) -> Value {
    let job_name = name(job);
    let middle = index.map(|index| format!("{index}-")).unwrap_or_default();
    let pod_name = format!("{job_name}-{middle}{}", template::random_suffix());
    let labels = [
        ("job-name", job_name),
        ("batch.kubernetes.io/job-name", job_name),
    ];
    let mut pod = template::pod(job, &pod_name, &labels);
    if job.pointer("/spec/template/spec/restartPolicy").is_none() {
        set(&mut pod, &["spec", "restartPolicy"], json!("Never"));
    }
    if let Some(index) = index {
        set(
            &mut pod,
            &["metadata", "annotations", INDEX_ANNOTATION],
            json!(index.to_string()),
        );
        set_default(
            &mut pod,
            &["spec", "hostname"],
            json!(format!("{job_name}-{index}")),
        );
    }
    pod
}

/// A finished Job goes when its time to live is over, with its pods.
fn finished(job: &Object, owned: &[&Object], now: SystemTime) -> Vec<Action> {
    let Some(keep) = number(job, "/spec/ttlSecondsAfterFinished") else {
        return Vec::new();
    };
    let over = age(job, "/status/conditions/0/lastTransitionTime", now)
        .is_some_and(|age| age >= Duration::from_secs(keep));
    if !over {
        return Vec::new();
    }
    let pods = owned.iter().map(|pod| Action::Delete(Key::of(pod)));
    pods.chain([Action::Delete(Key::of(job))]).collect()
}

fn status(
    job: &Object,
    tally: &Tally<'_>,
    verdict: Option<(&str, &str, String)>,
    now: SystemTime,
) -> Option<Action> {
    let started = text(job, "/status/startTime").map_or_else(|| timestamp(now), str::to_owned);
    let mut status = json!({
        "startTime": started,
        "active": tally.active.len(),
        "succeeded": tally.succeeded,
        "failed": tally.failed,
    });
    if let Some((kind, reason, message)) = verdict {
        status["active"] = json!(0);
        status["conditions"] = json!([{
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": timestamp(now),
        }]);
        if kind == "Complete" {
            status["completionTime"] = json!(timestamp(now));
        }
    }
    (job.get("status") != Some(&status)).then(|| Action::Status(Key::of(job), status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::controllers::testing::{Cluster, set_phase};

    fn job(spec: &Value) -> Value {
        let mut job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "once", "namespace": "shop"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}}
        });
        for (key, value) in spec.as_object().expect("fields") {
            job["spec"][key] = value.clone();
        }
        job
    }

    fn end_all(cluster: &mut Cluster, phase: &str) {
        for pod in cluster.pods() {
            if template::is_active(&pod) {
                set_phase(cluster, &pod, phase);
            }
        }
    }

    #[test]
    fn runs_to_completion() {
        let mut cluster = Cluster::default();
        cluster.put(job(&json!({"completions": 3, "parallelism": 2})));
        cluster.settle(desired);
        assert_eq!(cluster.pods().len(), 2);
        end_all(&mut cluster, "Succeeded");
        cluster.settle(desired);
        assert_eq!(cluster.pods().len(), 3, "one more is left to do");
        end_all(&mut cluster, "Succeeded");
        cluster.settle(desired);
        let job = cluster.object("Job", "shop", "once");
        assert_eq!(condition(&job, "Complete"), Some("True"));
        assert_eq!(job["status"]["succeeded"], json!(3));
        assert_eq!(cluster.settle(desired), 0);
    }

    #[test]
    fn gives_up_after_the_limit() {
        let mut cluster = Cluster::default();
        cluster.put(job(&json!({"backoffLimit": 1})));
        for _ in 0..4 {
            cluster.settle(desired);
            end_all(&mut cluster, "Failed");
        }
        assert_eq!(cluster.pods().len(), 2, "the first try and one more");
        let job = cluster.object("Job", "shop", "once");
        assert_eq!(
            job["status"]["conditions"][0]["reason"],
            json!("BackoffLimitExceeded")
        );
    }

    #[test]
    fn an_indexed_job_repeats_a_failed_index() {
        let mut cluster = Cluster::default();
        let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"});
        cluster.put(job(&spec));
        cluster.settle(desired);
        let pods = cluster.pods();
        let failed = pods
            .iter()
            .find(|pod| annotation(pod, INDEX_ANNOTATION) == Some("1"));
        set_phase(&mut cluster, failed.expect("index 1"), "Failed");
        cluster.settle(desired);
        let again = cluster
            .pods()
            .iter()
            .filter(|pod| annotation(pod, INDEX_ANNOTATION) == Some("1"))
            .count();
        assert_eq!(again, 2);
    }

    #[test]
    fn a_late_job_fails() {
        let mut cluster = Cluster::default();
        cluster.put(job(&json!({"activeDeadlineSeconds": 5})));
        cluster.settle(desired);
        cluster.advance(Duration::from_secs(6));
        cluster.settle(desired);
        let job = cluster.object("Job", "shop", "once");
        assert_eq!(
            job["status"]["conditions"][0]["reason"],
            json!("DeadlineExceeded")
        );
    }
}
