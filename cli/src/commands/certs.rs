//! `culvert certs`: every certificate that a node proxy holds, and the authority's.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use super::target::{Target, nodes};
use crate::args::{Format, Simple};
use crate::client::Client;
use crate::engine::object::{list, number, text, timestamp};
use crate::output::{Table, human, print, print_json};
use crate::state::StateDir;

/// Runs the command.
pub(crate) async fn run(args: &Format, state: &StateDir) -> Result<ExitCode> {
    let client = Client::new(state);
    let rotation = Target::parse("ca", state)?
        .admin(Method::GET, "/rotation")
        .await;
    let rotation: Result<Value> =
        rotation.and_then(|answer| Ok(serde_json::from_slice(&answer.body)?));
    let mut all = Vec::new();
    let mut failed = Vec::new();
    for node in nodes(&client).await? {
        match Target::node_proxy(&node, state).dump().await {
            Ok(dump) => all.push((node, dump)),
            Err(error) => failed.push(format!("{node}: {}", culvert_runtime::chain(&*error))),
        }
    }
    let authority = rotation.as_ref().ok();
    if args.output == Simple::Json {
        let by_node: Vec<_> = all
            .iter()
            .map(|(node, dump)| json!({"node": node, "certificates": dump.get("certificates")}))
            .collect();
        print_json(&json!({"authority": authority, "nodes": by_node, "errors": failed}));
    } else {
        if let Some(authority) = authority {
            print(format!("{}\n", authority_table(authority)));
        }
        let mut table = heading(true);
        for (node, dump) in &all {
            add(&mut table, dump, Some(node));
        }
        print(table);
    }
    if let Err(error) = &rotation {
        eprintln!("error: {}", culvert_runtime::chain(&**error));
    }
    for one in &failed {
        eprintln!("error: {one}");
    }
    let good = rotation.is_ok() && failed.is_empty();
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The certificates in a node proxy's dump.
pub(crate) fn table_of(dump: &Value, node: Option<&str>) -> Table {
    let mut table = heading(node.is_some());
    add(&mut table, dump, node);
    table
}

fn heading(with_node: bool) -> Table {
    let columns = ["IDENTITY", "STATE", "SERIAL", "EXPIRES", "IN", "REASON"];
    Table::new(with_node.then_some("NODE").into_iter().chain(columns))
}

fn add(table: &mut Table, dump: &Value, node: Option<&str>) {
    for one in list(dump, "/certificates") {
        let (expires, left) = expiry(number(one, "/notAfter"));
        let word = |pointer: &str| text(one, pointer).unwrap_or_default().to_owned();
        let cells = [
            word("/identity"),
            word("/state"),
            word("/serial"),
            expires,
            left,
            word("/reason"),
        ];
        table.row(node.map(str::to_owned).into_iter().chain(cells));
    }
}

/// When, and how long from now.
pub(crate) fn expiry(seconds: Option<u64>) -> (String, String) {
    let Some(seconds) = seconds else {
        return (String::new(), String::new());
    };
    let at = UNIX_EPOCH + Duration::from_secs(seconds);
    let left = at
        .duration_since(SystemTime::now())
        .map_or_else(|_| "expired".to_owned(), human);
    (timestamp(at), left)
}

/// The authority's certificates and the step of a rotation.
pub(crate) fn authority_table(rotation: &Value) -> Table {
    let mut table = Table::new(["AUTHORITY", "SUBJECT", "SERIAL", "EXPIRES", "IN"]);
    let mut row = |what: &str, one: &Value| {
        let (expires, left) = expiry(number(one, "/not_after_seconds"));
        let word = |pointer: &str| text(one, pointer).unwrap_or_default().to_owned();
        table.row([
            what.to_owned(),
            word("/subject"),
            word("/serial"),
            expires,
            left,
        ]);
    };
    for (field, what) in [
        ("root", "root"),
        ("intermediate", "intermediate"),
        ("next_root", "next root"),
    ] {
        if let Some(one) = rotation.get(field).filter(|one| !one.is_null()) {
            row(what, one);
        }
    }
    for retired in list(rotation, "/retired_roots") {
        row("retired root", retired);
    }
    table
}
