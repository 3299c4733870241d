//! `culvert-cni`: executed by a container runtime, it is the CNI plugin;
//! `culvert-cni agent` is the node's agent.

use std::io::{Read, stdin, stdout};
use std::process::ExitCode;

use culvert_cni::config::Config;
use culvert_cni::plugin::{self, Environment};

const USAGE: &str = "culvert-cni is a CNI plugin: a container runtime executes it with CNI_COMMAND set and its \
     configuration on standard input.\n\nculvert-cni agent: run the agent of this node (configured by \
     CULVERT_* variables)\nculvert-cni version: print the version";

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    match argument.as_deref() {
        Some("agent") => agent(),
        Some("version" | "--version") => {
            println!("culvert-cni {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Some(_) => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
        None => plugin(),
    }
}

#[expect(clippy::disallowed_methods, reason = "main reads the environment")]
fn plugin() -> ExitCode {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let environment = Environment {
        command: variable("CNI_COMMAND"),
        container: variable("CNI_CONTAINERID"),
        netns: variable("CNI_NETNS"),
        interface: variable("CNI_IFNAME"),
        args: variable("CNI_ARGS"),
    };
    if environment.command.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    }
    let mut input = Vec::new();
    if let Err(error) = stdin().take(8 << 20).read_to_end(&mut input) {
        eprintln!("culvert-cni: cannot read the configuration: {error}");
    }
    ExitCode::from(plugin::run(&environment, &input, &mut stdout()))
}

fn agent() -> ExitCode {
    let (config, effective) = match Config::read(std::env::vars_os()) {
        Ok(read) => read,
        Err(error) => {
            eprintln!("culvert-cni agent: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(culvert_cni::app::run(config, effective)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("culvert-cni agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}
