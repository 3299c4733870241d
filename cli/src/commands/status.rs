//! `culvert status`: nodes, programs, enrolled pods, policies, recent refusals.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::metrics::samples;
use super::printers::{accepted, accepted_reason, identity, is_enrolled, node_table};
use super::target::{Target, nodes};
use crate::args::{Format, Simple};
use crate::client::Client;
use crate::engine::api::Overview;
use crate::engine::object::{is_pod_ready, name, namespace, phase, text};
use crate::output::{Table, print, print_json};
use crate::state::StateDir;

/// Kinds of policy.
const POLICIES: [&str; 3] = ["AuthorizationPolicy", "PeerAuthentication", "NetworkPolicy"];
/// Metric of refusals by policy.
const DENIALS: &str = "culvert_policy_denials_total";

/// A connection that a policy refused, counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
struct Denial {
    policy: String,
    rule: String,
    source: String,
    destination: String,
    workload: String,
    node: String,
    count: u64,
}

/// Everything that is shown.
#[derive(Debug)]
struct Status {
    overview: Overview,
    nodes: Vec<Value>,
    pods: Vec<Value>,
    policies: Vec<Value>,
    denials: Vec<Denial>,
    errors: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(args: &Format, state: &StateDir) -> Result<ExitCode> {
    let status = gather(state).await?;
    match args.output {
        Simple::Json => print_json(&status.to_json()),
        Simple::Table => status.print(),
    }
    Ok(ExitCode::SUCCESS)
}

async fn gather(state: &StateDir) -> Result<Status> {
    let client = Client::new(state);
    let overview = client.overview().await?;
    let mut policies = Vec::new();
    for kind in POLICIES {
        policies.extend(client.objects(kind, None).await?);
    }
    let mut denials = Vec::new();
    let mut errors = Vec::new();
    if overview.settings.mesh_enabled {
        for node in nodes(&client).await? {
            match Target::node_proxy(&node, state).metrics().await {
                Ok(text) => denials.extend(denials_of(&text, &node)),
                Err(error) => errors.push(format!("{node}: {}", culvert_runtime::chain(&*error))),
            }
        }
    }
    denials.sort();
    Ok(Status {
        nodes: client.objects("Node", None).await?,
        pods: client.objects("Pod", None).await?,
        overview,
        policies,
        denials,
        errors,
    })
}

fn denials_of(metrics: &str, node: &str) -> Vec<Denial> {
    samples(metrics, DENIALS)
        .into_iter()
        .map(|sample| {
            let label = |key: &str| sample.labels.get(key).cloned().unwrap_or_default();
            Denial {
                policy: label("policy"),
                rule: label("rule"),
                source: label("source_principal"),
                destination: label("destination_principal"),
                workload: format!(
                    "{}/{}",
                    label("destination_workload_namespace"),
                    label("destination_workload")
                ),
                node: node.to_owned(),
                count: whole(sample.value),
            }
        })
        .filter(|denial| denial.count > 0)
        .collect()
}

/// A counter as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a counter of connections is whole, positive and far below 2^53"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

impl Status {
    fn to_json(&self) -> Value {
        let pods: Vec<_> = self.pods.iter().map(pod_json).collect();
        let policies: Vec<_> = self
            .policies
            .iter()
            .map(|one| {
                json!({
                    "kind": text(one, "/kind"), "namespace": namespace(one), "name": name(one),
                    "accepted": accepted(one), "reason": accepted_reason(one),
                    "status": one.get("status"),
                })
            })
            .collect();
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|one| json!({"name": name(one), "ready": crate::engine::object::condition(one, "Ready") == Some("True")}))
            .collect();
        json!({
            "mesh": self.overview.mesh,
            "directory": self.overview.settings.directory,
            "meshEnabled": self.overview.settings.mesh_enabled,
            "nodes": nodes,
            "components": self.overview.components,
            "pods": pods,
            "policies": policies,
            "denials": self.denials,
            "missing": self.overview.missing,
            "findings": self.overview.findings,
            "errors": self.errors,
        })
    }

    fn print(&self) {
        let enrolled = self.pods.iter().filter(|pod| is_enrolled(pod)).count();
        print(format!(
            "mesh {}: {}\npods: {} of {} ready, {enrolled} enrolled\n\n",
            self.overview.mesh,
            self.overview.settings.directory.display(),
            self.overview.pods.1,
            self.overview.pods.0,
        ));
        print(format!("{}\n", node_table(&self.nodes)));
        let mut components = Table::new(["PROGRAM", "STATE", "PID", "RESTARTS", "REASON"]);
        for (program, one) in &self.overview.components {
            let pid = one.pid.map(|pid| pid.to_string()).unwrap_or_default();
            let restarts = one.restarts.to_string();
            components.row([
                program.clone(),
                one.state.clone(),
                pid,
                restarts,
                one.reason.clone(),
            ]);
        }
        print(format!("{components}\n"));
        if !self.policies.is_empty() {
            print(format!("{}\n", policy_table(&self.policies)));
        }
        if !self.denials.is_empty() {
            print(format!("{}\n", denial_table(&self.denials)));
        }
        if !self.overview.missing.is_empty() {
            let mut missing = Table::new(["NOT READY", "REASON"]);
            for one in &self.overview.missing {
                missing.row([one.object.clone(), one.reason.clone()]);
            }
            print(missing);
        }
        for error in &self.errors {
            eprintln!("error: {error}");
        }
        for error in &self.overview.findings.errors {
            eprintln!("error: {error}");
        }
    }
}

fn pod_json(pod: &Value) -> Value {
    json!({
        "namespace": namespace(pod), "name": name(pod), "node": text(pod, "/spec/nodeName"),
        "addresses": crate::engine::object::pod_ips(pod),
        "identity": identity(pod),
        "phase": phase(pod), "ready": is_pod_ready(pod), "enrolled": is_enrolled(pod),
    })
}

fn policy_table(policies: &[Value]) -> Table {
    let mut table = Table::new(["POLICY", "NAMESPACE", "NAME", "ACCEPTED", "REASON"]);
    for one in policies {
        table.row([
            text(one, "/kind").unwrap_or_default().to_owned(),
            namespace(one).to_owned(),
            name(one).to_owned(),
            accepted(one),
            accepted_reason(one),
        ]);
    }
    table
}

fn denial_table(denials: &[Denial]) -> Table {
    let mut table = Table::new([
        "REFUSED BY",
        "RULE",
        "SOURCE",
        "DESTINATION",
        "WORKLOAD",
        "NODE",
        "COUNT",
    ]);
    for one in denials {
        table.row([
            one.policy.clone(),
            one.rule.clone(),
            one.source.clone(),
            one.destination.clone(),
            one.workload.clone(),
            one.node.clone(),
            one.count.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_come_from_the_metric() {
        let text = "culvert_policy_denials_total{reporter=\"destination\",policy=\"shop/readers-only\",\
                    rule=\"no rule matched\",source_principal=\"spiffe://td/ns/a/sa/b\",\
                    destination_principal=\"spiffe://td/ns/shop/sa/web\",destination_workload=\"web\",\
                    destination_workload_namespace=\"shop\"} 4\n";
        let all = denials_of(text, "node-1");
        assert_eq!(all.len(), 1);
        assert_eq!(
            (all[0].policy.as_str(), all[0].count),
            ("shop/readers-only", 4)
        );
        assert_eq!(all[0].workload, "shop/web");
    }
}
