//! `culvert down`.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::args::Down;
use crate::output::print;
use crate::state::StateDir;
use crate::teardown::teardown;

/// Runs the command.
pub(crate) async fn run(args: &Down, state: &StateDir) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("culvert down needs root: it removes network namespaces");
    }
    let found = teardown(state, args.grace).await?;
    if found.is_empty() {
        print(format!(
            "nothing of mesh {} is on this machine\n",
            state.mesh()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    for (what, all) in [
        ("process", &found.processes),
        ("namespace", &found.namespaces),
        ("network", &found.network),
        ("file", &found.files),
    ] {
        for one in all {
            print(format!("removed {what} {one}\n"));
        }
    }
    print(format!(
        "removed {} processes, {} namespaces, {} network objects, {} files; nothing is left\n",
        found.processes.len(),
        found.namespaces.len(),
        found.network.len(),
        found.files.len()
    ));
    Ok(ExitCode::SUCCESS)
}
