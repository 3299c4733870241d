//! Columns of each kind, as kubectl has them.

use culvert_identity::{Identity, TrustDomain};
use serde_json::Value;

use crate::engine::object::{
    annotation, condition, is_cluster_scoped, is_terminating, list, name, namespace, number, phase,
    pod_ips, string_map, text,
};
use crate::output::{Table, age};

/// Columns of one kind after NAME, and whether they are for `-o wide` only.
type Column = (&'static str, bool, fn(&Value) -> String);

/// A table of objects of one kind.
pub(crate) fn table(kind: &str, objects: &[Value], all_namespaces: bool, wide: bool) -> Table {
    let columns: Vec<Column> = columns(kind)
        .into_iter()
        .filter(|(_, only_wide, _)| wide || !only_wide)
        .collect();
    let spaced = all_namespaces && !is_cluster_scoped(kind);
    let mut heading = Vec::new();
    if spaced {
        heading.push("NAMESPACE");
    }
    heading.push("NAME");
    heading.extend(columns.iter().map(|(title, ..)| *title));
    let mut table = Table::new(heading);
    for object in objects {
        let mut row = Vec::new();
        if spaced {
            row.push(namespace(object).to_owned());
        }
        row.push(name(object).to_owned());
        row.extend(columns.iter().map(|(.., value)| value(object)));
        table.row(row);
    }
    table
}

/// Every table ends in the age, or has it where kubectl has it.
const AGE: Column = ("AGE", false, |object| age(object));

fn columns(kind: &str) -> Vec<Column> {
    workload_columns(kind)
        .or_else(|| network_columns(kind))
        .or_else(|| policy_columns(kind))
        .unwrap_or_else(|| other_columns(kind))
}

fn workload_columns(kind: &str) -> Option<Vec<Column>> {
    const READY: Column = ("READY", false, |one| {
        ratio(one, "/status/readyReplicas", "/spec/replicas")
    });
    Some(match kind {
        "Pod" => vec![
            ("READY", false, pod_ready),
            ("STATUS", false, pod_status),
            ("RESTARTS", false, |pod| restarts(pod).to_string()),
            AGE,
            ("IP", true, pod_address),
            ("NODE", true, |pod| at(pod, "/spec/nodeName")),
            ("ENROLLED", true, |pod| yes_no(is_enrolled(pod))),
        ],
        "Deployment" | "ReplicaSet" => vec![
            READY,
            ("UP-TO-DATE", false, |one| {
                count(one, "/status/updatedReplicas")
            }),
            ("AVAILABLE", false, |one| {
                count(one, "/status/availableReplicas")
            }),
            AGE,
        ],
        "StatefulSet" => vec![READY, AGE],
        "DaemonSet" => vec![
            ("DESIRED", false, |one| {
                count(one, "/status/desiredNumberScheduled")
            }),
            ("CURRENT", false, |one| {
                count(one, "/status/currentNumberScheduled")
            }),
            ("READY", false, |one| count(one, "/status/numberReady")),
            ("UP-TO-DATE", false, |one| {
                count(one, "/status/updatedNumberScheduled")
            }),
            AGE,
        ],
        "Job" => vec![
            ("STATUS", false, job_status),
            ("COMPLETIONS", false, completions),
            AGE,
        ],
        _ => return None,
    })
}

fn network_columns(kind: &str) -> Option<Vec<Column>> {
    Some(match kind {
        "Service" => vec![
            ("TYPE", false, |one| at(one, "/spec/type")),
            ("CLUSTER-IP", false, |one| joined(one, "/spec/clusterIPs")),
            ("EXTERNAL-NAME", true, |one| at(one, "/spec/externalName")),
            ("PORT(S)", false, service_ports),
            AGE,
            ("SELECTOR", true, |one| pairs(one, "/spec/selector")),
        ],
        "EndpointSlice" => vec![
            ("ADDRESSTYPE", false, |one| at(one, "/addressType")),
            ("PORTS", false, slice_ports),
            ("ENDPOINTS", false, slice_endpoints),
            AGE,
        ],
        "Node" => vec![
            ("STATUS", false, node_status),
            AGE,
            ("INTERNAL-IP", true, node_address),
            ("POD-CIDR", true, |node| joined(node, "/spec/podCIDRs")),
            ("LABELS", true, |node| pairs(node, "/metadata/labels")),
        ],
        _ => return None,
    })
}

fn policy_columns(kind: &str) -> Option<Vec<Column>> {
    const ACCEPTED: Column = ("ACCEPTED", false, accepted);
    const REASON: Column = ("REASON", false, accepted_reason);
    Some(match kind {
        "AuthorizationPolicy" => vec![("ACTION", false, action), ACCEPTED, REASON, AGE],
        "PeerAuthentication" => {
            vec![
                ("MODE", false, |one| at(one, "/spec/mtls/mode")),
                ACCEPTED,
                REASON,
                AGE,
            ]
        }
        "NetworkPolicy" => vec![
            ("POD-SELECTOR", false, |one| {
                pairs(one, "/spec/podSelector/matchLabels")
            }),
            AGE,
            ("ACCEPTED", true, accepted),
        ],
        _ => return None,
    })
}

fn other_columns(kind: &str) -> Vec<Column> {
    match kind {
        "Namespace" => vec![
            ("STATUS", false, |one| at(one, "/status/phase")),
            ("MESH", false, |one| label(one, "culvert.dev/mesh")),
            AGE,
        ],
        "ConfigMap" | "Secret" => vec![("DATA", false, |one| data_count(one).to_string()), AGE],
        "Lease" => vec![
            ("HOLDER", false, |one| at(one, "/spec/holderIdentity")),
            ("RENEWED", false, |one| at(one, "/spec/renewTime")),
        ],
        _ => vec![AGE],
    }
}

fn action(policy: &Value) -> String {
    text(policy, "/spec/action").unwrap_or("ALLOW").to_owned()
}

fn completions(job: &Value) -> String {
    let wanted = number(job, "/spec/completions").unwrap_or(1);
    format!("{}/{wanted}", count(job, "/status/succeeded"))
}

fn at(object: &Value, pointer: &str) -> String {
    text(object, pointer).unwrap_or_default().to_owned()
}

fn count(object: &Value, pointer: &str) -> String {
    number(object, pointer).unwrap_or(0).to_string()
}

fn ratio(object: &Value, of: &str, all: &str) -> String {
    format!(
        "{}/{}",
        number(object, of).unwrap_or(0),
        number(object, all).unwrap_or(1)
    )
}

fn joined(object: &Value, pointer: &str) -> String {
    let all: Vec<_> = list(object, pointer)
        .iter()
        .filter_map(Value::as_str)
        .collect();
    all.join(",")
}

fn pairs(object: &Value, pointer: &str) -> String {
    let all: Vec<_> = string_map(object, pointer)
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    all.join(",")
}

fn label(object: &Value, key: &str) -> String {
    crate::engine::object::labels(object)
        .get(key)
        .copied()
        .unwrap_or_default()
        .to_owned()
}

fn data_count(object: &Value) -> usize {
    ["/data", "/stringData", "/binaryData"]
        .iter()
        .filter_map(|pointer| object.pointer(pointer)?.as_object())
        .map(serde_json::Map::len)
        .sum()
}

fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// Whether the agent has enrolled the pod.
pub(crate) fn is_enrolled(pod: &Value) -> bool {
    annotation(pod, crate::engine::enrollment::ENROLLED) == Some("true")
}

fn pod_ready(pod: &Value) -> String {
    let containers = list(pod, "/spec/containers").len();
    let ready = list(pod, "/status/containerStatuses")
        .iter()
        .filter(|one| one.get("ready") == Some(&Value::Bool(true)))
        .count();
    format!("{ready}/{containers}")
}

fn restarts(pod: &Value) -> u64 {
    list(pod, "/status/containerStatuses")
        .iter()
        .filter_map(|one| number(one, "/restartCount"))
        .sum()
}

/// One word, as kubectl chooses it.
pub(crate) fn pod_status(pod: &Value) -> String {
    if is_terminating(pod) {
        return "Terminating".to_owned();
    }
    let init = list(pod, "/status/initContainerStatuses");
    for (index, one) in init.iter().enumerate() {
        if number(one, "/state/terminated/exitCode") == Some(0)
            || one.get("started") == Some(&Value::Bool(true))
        {
            continue;
        }
        let reason =
            text(one, "/state/waiting/reason").or_else(|| text(one, "/state/terminated/reason"));
        return match reason {
            Some(reason) if reason != "PodInitializing" => format!("Init:{reason}"),
            _ => format!("Init:{index}/{}", init.len()),
        };
    }
    for one in list(pod, "/status/containerStatuses") {
        let waiting = text(one, "/state/waiting/reason");
        let ended = text(one, "/state/terminated/reason");
        if let Some(reason) = waiting.or(ended) {
            return reason.to_owned();
        }
    }
    phase(pod).to_owned()
}

fn pod_address(pod: &Value) -> String {
    let all: Vec<_> = pod_ips(pod).iter().map(ToString::to_string).collect();
    all.join(",")
}

fn job_status(job: &Value) -> String {
    for kind in ["Complete", "Failed"] {
        if condition(job, kind) == Some("True") {
            return kind.to_owned();
        }
    }
    "Running".to_owned()
}

fn service_ports(service: &Value) -> String {
    let all: Vec<_> = list(service, "/spec/ports")
        .iter()
        .map(|port| {
            format!(
                "{}/{}",
                count(port, "/port"),
                text(port, "/protocol").unwrap_or("TCP")
            )
        })
        .collect();
    all.join(",")
}

fn slice_ports(slice: &Value) -> String {
    let all: Vec<_> = list(slice, "/ports")
        .iter()
        .map(|port| count(port, "/port"))
        .collect();
    all.join(",")
}

fn slice_endpoints(slice: &Value) -> String {
    let all: Vec<_> = list(slice, "/endpoints")
        .iter()
        .flat_map(|endpoint| {
            let ready = endpoint.pointer("/conditions/ready") != Some(&Value::Bool(false));
            let mark = if ready { "" } else { " (not ready)" };
            list(endpoint, "/addresses")
                .iter()
                .filter_map(move |one| Some(format!("{}{mark}", one.as_str()?)))
        })
        .collect();
    all.join(",")
}

fn node_status(node: &Value) -> String {
    if condition(node, "Ready") == Some("True") {
        "Ready"
    } else {
        "NotReady"
    }
    .to_owned()
}

fn node_address(node: &Value) -> String {
    let all: Vec<_> = list(node, "/status/addresses")
        .iter()
        .filter(|one| text(one, "/type") == Some("InternalIP"))
        .filter_map(|one| text(one, "/address"))
        .collect();
    all.join(",")
}

/// `Accepted` of a policy, from its ancestors or its own conditions.
pub(crate) fn accepted(policy: &Value) -> String {
    acceptance(policy)
        .map(|one| at(one, "/status"))
        .unwrap_or_else(|| "Unknown".to_owned())
}

/// Why a policy is accepted or not.
pub(crate) fn accepted_reason(policy: &Value) -> String {
    acceptance(policy)
        .map(|one| at(one, "/reason"))
        .unwrap_or_default()
}

fn acceptance(policy: &Value) -> Option<&Value> {
    let ancestors = list(policy, "/status/ancestors")
        .iter()
        .flat_map(|one| list(one, "/conditions"));
    let mut accepted = list(policy, "/status/conditions")
        .iter()
        .chain(ancestors)
        .filter(|one| text(one, "/type") == Some("Accepted"));
    let first = accepted.next()?;
    // One ancestor that refuses says more than others that accept.
    Some(
        accepted
            .find(|one| text(one, "/status") != Some("True"))
            .filter(|_| text(first, "/status") == Some("True"))
            .unwrap_or(first),
    )
}

/// Nodes, for the end of `up`.
pub(crate) fn node_table(nodes: &[Value]) -> Table {
    let mut table = Table::new(["NODE", "STATUS", "ADDRESSES"]);
    for node in nodes {
        table.row([name(node).to_owned(), node_status(node), node_address(node)]);
    }
    table
}

/// The trust domain of a mesh on one machine.
const TRUST_DOMAIN: &str = "cluster.local";

/// Who a pod is in the mesh; empty when its account has no identity.
pub(crate) fn identity(pod: &Value) -> String {
    let account = text(pod, "/spec/serviceAccountName").unwrap_or("default");
    let domain = TRUST_DOMAIN.parse::<TrustDomain>().ok();
    let identity = domain.and_then(|domain| Identity::new(&domain, namespace(pod), account).ok());
    identity
        .map(|identity| identity.to_string())
        .unwrap_or_default()
}

/// Where every pod is and who it is, for the end of `up`.
pub(crate) fn placement_table(pods: &[Value], mesh: bool) -> Table {
    let mut table = Table::new([
        "NAMESPACE",
        "POD",
        "STATUS",
        "NODE",
        "ADDRESSES",
        "IDENTITY",
        "ENROLLED",
    ]);
    for pod in pods {
        let identity = identity(pod);
        table.row([
            namespace(pod).to_owned(),
            name(pod).to_owned(),
            pod_status(pod),
            at(pod, "/spec/nodeName"),
            pod_address(pod),
            identity,
            if mesh {
                yes_no(is_enrolled(pod))
            } else {
                "no mesh".to_owned()
            },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_as_kubectl_shows_them() {
        let pod = json!({"metadata": {"name": "web", "namespace": "shop"},
            "spec": {"nodeName": "node-1", "containers": [{}, {}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.2"}, {"ip": "fd00::2"}],
                "containerStatuses": [{"ready": true, "restartCount": 2}, {"ready": false, "restartCount": 1}]}});
        let text = table("Pod", &[pod], true, true).to_string();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[0],
            [
                "NAMESPACE",
                "NAME",
                "READY",
                "STATUS",
                "RESTARTS",
                "AGE",
                "IP",
                "NODE",
                "ENROLLED"
            ]
        );
        assert_eq!(
            rows[1],
            [
                "shop",
                "web",
                "1/2",
                "Running",
                "3",
                "<none>",
                "10.244.1.2,fd00::2",
                "node-1",
                "no"
            ]
        );
    }

    #[test]
    fn a_refusing_ancestor_wins() {
        let policy = json!({"status": {"ancestors": [
            {"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted"}]},
            {"conditions": [{"type": "Accepted", "status": "False", "reason": "RequiresWaypoint"}]}]}});
        assert_eq!(
            (accepted(&policy), accepted_reason(&policy)),
            ("False".to_owned(), "RequiresWaypoint".to_owned())
        );
        assert_eq!(accepted(&json!({})), "Unknown");
    }

    #[test]
    fn status_words() {
        let check = |status: Value, expect: &str| {
            assert_eq!(pod_status(&json!({"status": status})), expect)
        };
        check(json!({"phase": "Running"}), "Running");
        check(
            json!({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
            "CrashLoopBackOff",
        );
        check(
            json!({"initContainerStatuses": [{"state": {"running": {}}}]}),
            "Init:0/1",
        );
        check(
            json!({"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}]}),
            "Completed",
        );
    }
}
