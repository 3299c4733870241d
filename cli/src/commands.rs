//! One module for each command.

mod ca;
mod certs;
mod change;
mod check;
mod config;
mod down;
pub(crate) mod exec;
mod get;
mod logs;
mod metrics;
mod names;
mod printers;
mod status;
mod target;
mod up;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::app::Environment;
use crate::args::Command;
use crate::state::StateDir;

/// Runs a command that does not become another program.
pub(crate) async fn run(
    command: Command,
    state: StateDir,
    environment: Environment,
) -> Result<ExitCode> {
    match command {
        Command::Up(args) => up::run(args, state, environment).await,
        Command::Down(args) => down::run(&args, &state).await,
        Command::Get(args) => get::run(&args, &state).await,
        Command::Logs(args) => logs::run(&args, &state).await,
        Command::Delete(args) => change::delete(&args, &state).await,
        Command::Scale(args) => change::scale(&args, &state).await,
        Command::Status(args) => status::run(&args, &state).await,
        Command::Config(args) => config::run(&args, &state).await,
        Command::Certs(args) => certs::run(&args, &state).await,
        Command::Ca(args) => ca::run(&args, &state).await,
        Command::Metrics(args) => metrics::run(&args, &state).await,
        Command::Check(args) => check::run(&args, &state).await,
        other => bail!("{other:?} is not a command for here"),
    }
}
