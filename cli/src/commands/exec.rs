//! `culvert exec`: this process enters the container and becomes the command, so
//! that terminal, signals and exit code are the command's own.

use anyhow::{Context as _, Result, bail};

use super::names;
use crate::args::Exec;
use crate::client::Client;
use crate::engine::object::{is_finished, name, uid};
use crate::run::RunSpec;
use crate::state::StateDir;

/// What to become.
pub(crate) async fn specification(state: &StateDir, args: &Exec) -> Result<RunSpec> {
    let client = Client::new(state);
    let pod = names::pod(&client, &args.pod, args.namespace.as_deref()).await?;
    let container = names::container(&pod, args.container.as_deref())?;
    if is_finished(&pod) {
        bail!(
            "pod {} has ended; a command needs a running one",
            name(&pod)
        );
    }
    let file = state
        .pod(uid(&pod))
        .join("run")
        .join(format!("{container}.json"));
    let mut spec = RunSpec::read(&file).with_context(|| {
        format!(
            "container {container} of pod {} has not started",
            name(&pod)
        )
    })?;
    spec.command.clone_from(&args.command);
    if args.tty && !spec.environment.iter().any(|(key, _)| key == "TERM") {
        spec.environment
            .push(("TERM".to_owned(), "xterm".to_owned()));
    }
    Ok(spec)
}
