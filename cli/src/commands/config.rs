//! `culvert config`: what a program of the mesh works with.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::target::Target;
use crate::args::{self, Simple};
use crate::engine::object::{list, number, text};
use crate::output::{Table, human, print, print_json};
use crate::state::StateDir;

/// Runs the command.
pub(crate) async fn run(args: &args::Target, state: &StateDir) -> Result<ExitCode> {
    let dump = Target::parse(&args.target, state)?.dump().await?;
    let is_view_of_mesh = dump.get("workloads").is_some();
    if args.output == Simple::Json || !is_view_of_mesh {
        print_json(&dump);
        return Ok(ExitCode::SUCCESS);
    }
    for (title, table) in [
        ("WORKLOADS", workloads(&dump)),
        ("SERVICES", services(&dump)),
        ("POLICIES", policies(&dump)),
        ("CERTIFICATES", super::certs::table_of(&dump, None)),
        ("PODS", pods(&dump)),
        ("CONNECTIONS", connections(&dump)),
    ] {
        print(format!("{title}\n{table}\n"));
    }
    Ok(ExitCode::SUCCESS)
}

fn at(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn strings(value: &Value, pointer: &str) -> String {
    let words = list(value, pointer).iter().map(|one| match one {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    words.collect::<Vec<_>>().join(",")
}

fn workloads(dump: &Value) -> Table {
    let mut table = Table::new([
        "NAMESPACE",
        "NAME",
        "ADDRESSES",
        "NODE",
        "PROTOCOL",
        "STATUS",
        "WAYPOINT",
    ]);
    for one in list(dump, "/workloads") {
        table.row([
            at(one, "/namespace"),
            at(one, "/name"),
            strings(one, "/workloadIps"),
            at(one, "/node"),
            at(one, "/protocol"),
            at(one, "/status"),
            at(one, "/waypoint/destination"),
        ]);
    }
    table
}

fn services(dump: &Value) -> Table {
    let mut table = Table::new(["NAMESPACE", "NAME", "VIPS", "PORTS", "ENDPOINTS"]);
    for one in list(dump, "/services") {
        let key = format!("{}/{}", at(one, "/namespace"), at(one, "/hostname"));
        let endpoints = list(dump, "/workloads")
            .iter()
            .filter(|workload| {
                workload
                    .get("services")
                    .and_then(|all| all.get(&key))
                    .is_some()
            })
            .count();
        table.row([
            at(one, "/namespace"),
            at(one, "/name"),
            strings(one, "/vips"),
            at(one, "/ports"),
            endpoints.to_string(),
        ]);
    }
    table
}

fn policies(dump: &Value) -> Table {
    let mut table = Table::new(["NAMESPACE", "NAME", "SCOPE", "ACTION", "DRY-RUN", "AT"]);
    for (pointer, place) in [("/policies", "destination"), ("/egressPolicies", "source")] {
        for one in list(dump, pointer) {
            let fields = ["/namespace", "/name", "/scope", "/action", "/dryRun"];
            table.row(
                fields
                    .map(|field| at(one, field))
                    .into_iter()
                    .chain([place.to_owned()]),
            );
        }
    }
    table
}

fn pods(dump: &Value) -> Table {
    let mut table = Table::new([
        "NAMESPACE",
        "NAME",
        "STATE",
        "SERVICE-ACCOUNT",
        "NETNS",
        "REASON",
    ]);
    for one in list(dump, "/pods") {
        let fields = [
            "/namespace",
            "/name",
            "/state",
            "/serviceAccount",
            "/netns",
            "/reason",
        ];
        table.row(fields.map(|field| at(one, field)));
    }
    table
}

fn connections(dump: &Value) -> Table {
    let mut table = Table::new([
        "DIRECTION",
        "SECURITY",
        "SOURCE",
        "DESTINATION",
        "IDENTITY",
        "SERVICE",
        "SENT",
        "RECEIVED",
        "AGE",
    ]);
    for one in list(dump, "/connections") {
        let age = number(one, "/ageMs")
            .map(|age| human(Duration::from_millis(age)))
            .unwrap_or_default();
        let target = text(one, "/authority")
            .or_else(|| text(one, "/destination"))
            .unwrap_or_default();
        table.row([
            at(one, "/direction"),
            at(one, "/security"),
            at(one, "/source"),
            target.to_owned(),
            at(one, "/sourceIdentity"),
            at(one, "/service"),
            at(one, "/bytesSent"),
            at(one, "/bytesReceived"),
            age,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_of_a_dump() {
        let dump = json!({
            "workloads": [{"name": "web", "namespace": "shop", "workloadIps": ["10.244.1.2"],
                           "protocol": "HBONE", "services": {"shop/web.shop.svc.cluster.local": {"80": 8080}}}],
            "services": [{"name": "web", "namespace": "shop", "hostname": "web.shop.svc.cluster.local",
                          "vips": ["/10.96.0.7"], "ports": {"80": 8080}}],
            "connections": [{"direction": "inbound", "ageMs": 61_000, "authority": "10.244.1.2:80"}],
        });
        let text = services(&dump).to_string();
        assert!(
            text.lines().nth(1).is_some_and(|line| line.ends_with(" 1")),
            "{text}"
        );
        assert!(workloads(&dump).to_string().contains("HBONE"));
        assert!(connections(&dump).to_string().contains("61s"));
    }
}
