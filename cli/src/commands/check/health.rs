//! The health of every part of a mesh that is up.

use serde_json::Value;

use super::super::printers::{accepted, accepted_reason, is_enrolled};
use super::super::target::Target;
use super::Line;
use crate::client::Client;
use crate::engine::api::Overview;
use crate::engine::enrollment::is_wanted;
use crate::engine::object::{
    Key, condition, is_finished, is_terminating, list, name, namespace, number, text,
};
use crate::state::{ProcessId, StateDir};
use crate::teardown::leftovers;

const GROUP: &str = "mesh";
/// A certificate with less than this part of its life left was not renewed in time.
const LIFE_LEFT_MIN: u64 = 4;

/// All checks of the mesh.
pub(super) async fn lines(
    client: &Client,
    overview: Option<&Overview>,
    state: &StateDir,
) -> Vec<Line> {
    let Some(overview) = overview else {
        return vec![absent(state)];
    };
    let mut all = vec![Line::new(GROUP, "the engine answers", None)];
    all.extend(components(overview));
    all.push(findings(overview));
    all.push(missing(overview));
    match objects(client).await {
        Ok([nodes, pods, namespaces, policies]) => {
            all.push(ready_nodes(&nodes));
            all.extend(policy_lines(&policies));
            if overview.settings.mesh_enabled {
                all.push(enrollment(&pods, &namespaces));
                for node in &nodes {
                    all.push(certificates(name(node), state).await);
                }
            }
        }
        Err(why) => {
            let complaint = (why, "see `culvert logs engine`".to_owned());
            all.push(Line::new(GROUP, "objects can be read", Some(complaint)));
        }
    }
    all
}

/// No engine: either nothing is up, which is fine, or something is left over.
fn absent(state: &StateDir) -> Line {
    let check = format!("mesh {} is not up", state.mesh());
    let crashed = ProcessId::read(&state.pid_file()).is_some_and(|engine| !engine.is_alive());
    let left = leftovers(state).ok().filter(|left| !left.is_empty());
    let complaint = left.map(|left| {
        let what = if crashed {
            "the engine has crashed"
        } else {
            "the engine does not answer"
        };
        let found = format!(
            "{what}; {} processes and {} namespaces are left",
            left.processes.len(),
            left.namespaces.len()
        );
        (found, "culvert down, then culvert up DIR".to_owned())
    });
    Line::new(GROUP, check, complaint)
}

async fn objects(client: &Client) -> Result<[Vec<Value>; 4], String> {
    let get = async |kind: &'static str| {
        client
            .objects(kind, None)
            .await
            .map_err(|error| culvert_runtime::chain(&error))
    };
    let mut policies = get("AuthorizationPolicy").await?;
    policies.extend(get("PeerAuthentication").await?);
    policies.extend(get("NetworkPolicy").await?);
    Ok([
        get("Node").await?,
        get("Pod").await?,
        get("Namespace").await?,
        policies,
    ])
}

fn components(overview: &Overview) -> Vec<Line> {
    overview
        .components
        .iter()
        .map(|(program, one)| {
            let complaint = (one.state != "ready").then(|| {
                let short = program.strip_prefix("culvert-").unwrap_or(program);
                (
                    format!("{}: {}", one.state, one.reason),
                    format!("see `culvert logs {short}`"),
                )
            });
            Line::new(GROUP, format!("{program} is ready"), complaint)
        })
        .collect()
}

fn findings(overview: &Overview) -> Line {
    let complaint = overview.findings.errors.first().map(|first| {
        let found = format!("{first} ({} in all)", overview.findings.errors.len());
        (
            found,
            "correct the file; it is read again at once".to_owned(),
        )
    });
    Line::new(
        GROUP,
        "every object of the directory can be used",
        complaint,
    )
    .mild()
}

fn missing(overview: &Overview) -> Line {
    let complaint = overview.missing.first().map(|first| {
        let found = format!(
            "{}: {} ({} in all)",
            first.object,
            first.reason,
            overview.missing.len()
        );
        (
            found,
            "see `culvert get pods -A` and `culvert logs POD`".to_owned(),
        )
    });
    Line::new(GROUP, "everything that should run is ready", complaint)
}

fn ready_nodes(nodes: &[Value]) -> Line {
    let bad: Vec<_> = nodes
        .iter()
        .filter(|node| condition(node, "Ready") != Some("True"))
        .map(name)
        .collect();
    let complaint =
        (!bad.is_empty()).then(|| (bad.join(", "), "see `culvert logs engine`".to_owned()));
    Line::new(GROUP, "all nodes are ready", complaint)
}

fn policy_lines(policies: &[Value]) -> Vec<Line> {
    let refused = policies.iter().filter(|policy| accepted(policy) == "False");
    let lines = refused.map(|policy| {
        let hint = format!(
            "see `culvert get {} -n {} -o yaml`",
            Key::of(policy).kind,
            namespace(policy)
        );
        Line::new(
            GROUP,
            format!("{} is accepted", Key::of(policy)),
            Some((accepted_reason(policy), hint)),
        )
        .mild()
    });
    lines.collect()
}

/// Whether every pod is in the mesh that its labels, or its namespace's, put there.
fn enrollment(pods: &[Value], namespaces: &[Value]) -> Line {
    let wanted = |pod: &Value| {
        let own = namespaces.iter().find(|one| name(one) == namespace(pod));
        is_wanted(pod, own)
    };
    let living = pods
        .iter()
        .filter(|pod| !is_finished(pod) && !is_terminating(pod));
    let wrong: Vec<_> = living
        .filter(|pod| wanted(pod) != is_enrolled(pod))
        .map(|pod| Key::of(pod).to_string())
        .collect();
    let complaint = (!wrong.is_empty()).then(|| {
        (
            format!("not as labelled: {}", wrong.join(", ")),
            "see `culvert logs cni/NODE`".to_owned(),
        )
    });
    Line::new(GROUP, "pods are enrolled as labelled", complaint)
}

async fn certificates(node: &str, state: &StateDir) -> Line {
    let check = format!("certificates on {node} are good");
    let hint = || "see `culvert certs` and `culvert logs ca`".to_owned();
    let dump = match Target::node_proxy(node, state).dump().await {
        Ok(dump) => dump,
        Err(error) => {
            return Line::new(
                GROUP,
                check,
                Some((culvert_runtime::chain(&*error), hint())),
            );
        }
    };
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let bad: Vec<_> = list(&dump, "/certificates")
        .iter()
        .filter(|one| text(one, "/state") != Some("Available") || is_late(one, now))
        .map(|one| {
            format!(
                "{} ({})",
                text(one, "/identity").unwrap_or_default(),
                text(one, "/reason")
                    .or(text(one, "/state"))
                    .unwrap_or_default()
            )
        })
        .collect();
    Line::new(
        GROUP,
        check,
        (!bad.is_empty()).then(|| (bad.join(", "), hint())),
    )
}

/// Less than a quarter of its life is left, although it is renewed at half.
fn is_late(certificate: &Value, now: u64) -> bool {
    let (Some(from), Some(to)) = (
        number(certificate, "/notBefore"),
        number(certificate, "/notAfter"),
    ) else {
        return false;
    };
    to.saturating_sub(now) < to.saturating_sub(from) / LIFE_LEFT_MIN
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Outcome;
    use super::*;

    #[test]
    fn labels_and_enrollment_agree() {
        let namespaces =
            [json!({"metadata": {"name": "shop", "labels": {"culvert.dev/mesh": "enabled"}}})];
        let pod = |label: Option<&str>, enrolled: bool| {
            let mut pod = json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "shop",
                                 "labels": {}, "annotations": {}}});
            if let Some(label) = label {
                pod["metadata"]["labels"]["culvert.dev/mesh"] = json!(label);
            }
            if enrolled {
                pod["metadata"]["annotations"]["culvert.dev/enrolled"] = json!("true");
            }
            pod
        };
        let check = |pod: Value, expect: Outcome| {
            assert_eq!(
                enrollment(std::slice::from_ref(&pod), &namespaces).outcome,
                expect,
                "{pod}"
            );
        };
        check(pod(None, true), Outcome::Ok);
        check(pod(None, false), Outcome::Failed);
        check(pod(Some("disabled"), false), Outcome::Ok);
        check(pod(Some("disabled"), true), Outcome::Failed);
    }

    #[test]
    fn late_certificates() {
        let one = json!({"notBefore": 0, "notAfter": 100});
        assert!(!is_late(&one, 50));
        assert!(is_late(&one, 80));
    }
}
