//! `culvert check`: every precondition and the health of every part, each with a
//! hint where it does not hold.

mod health;
mod machine;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::args::{self, Simple};
use crate::client::Client;
use crate::output::{print, print_json};
use crate::state::StateDir;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// It holds.
    Ok,
    /// It does not hold, and the mesh works all the same.
    Warning,
    /// It does not hold.
    Failed,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    group: &'static str,
    check: String,
    outcome: Outcome,
    #[serde(skip_serializing_if = "String::is_empty")]
    found: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    hint: String,
}

impl Line {
    /// A check that holds if there is no complaint.
    fn new(
        group: &'static str,
        check: impl Into<String>,
        complaint: Option<(String, String)>,
    ) -> Self {
        let outcome = if complaint.is_none() {
            Outcome::Ok
        } else {
            Outcome::Failed
        };
        let (found, hint) = complaint.unwrap_or_default();
        Self {
            group,
            check: check.into(),
            outcome,
            found,
            hint,
        }
    }

    /// Not fatal.
    fn mild(mut self) -> Self {
        if self.outcome == Outcome::Failed {
            self.outcome = Outcome::Warning;
        }
        self
    }

    fn mark(&self) -> &'static str {
        match self.outcome {
            Outcome::Ok => "√",
            Outcome::Warning => "‼",
            Outcome::Failed => "×",
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: &args::Check, state: &StateDir) -> Result<ExitCode> {
    let client = Client::new(state);
    let overview = client.overview().await.ok();
    let running = overview.as_ref().map(|overview| overview.settings.clone());
    let mut lines = machine::lines(args.bin_dir.as_deref(), running.as_ref(), state);
    if !args.pre {
        lines.extend(health::lines(&client, overview.as_ref(), state).await);
    }
    let failed = lines
        .iter()
        .filter(|line| line.outcome == Outcome::Failed)
        .count();
    let warnings = lines
        .iter()
        .filter(|line| line.outcome == Outcome::Warning)
        .count();
    match args.output {
        Simple::Json => print_json(&serde_json::json!({"ok": failed == 0, "checks": lines})),
        Simple::Table => show(&lines, failed, warnings),
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn show(lines: &[Line], failed: usize, warnings: usize) {
    let mut group = "";
    for line in lines {
        if line.group != group {
            let gap = if group.is_empty() { "" } else { "\n" };
            group = line.group;
            print(format!("{gap}{group}\n"));
        }
        print(format!("{} {}\n", line.mark(), line.check));
        if line.outcome != Outcome::Ok {
            print(format!("    {}\n    hint: {}\n", line.found, line.hint));
        }
    }
    print(format!(
        "\n{} checks, {failed} failed, {warnings} warnings\n",
        lines.len()
    ));
}
