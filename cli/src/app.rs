//! From the command line to the command, and from its result to the exit code.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;

use crate::args::{Arguments, Command};
use crate::engine::network::addresses::{CONTROL_V4, CONTROL_V6};
use crate::state::StateDir;
use crate::{commands, dns, engine, run, testserver};

/// What the environment says; only `main` reads it.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// PATH.
    pub path: Option<String>,
}

/// Runs the command.
#[must_use]
pub fn main(arguments: Arguments, environment: Environment) -> ExitCode {
    match dispatch(arguments, environment) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", culvert_runtime::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: Arguments, environment: Environment) -> Result<ExitCode> {
    let state = StateDir::new(&arguments.state_root, &arguments.mesh)?;
    match arguments.command {
        // These become another program and must have one thread.
        Command::Run(args) => {
            let mut spec = run::RunSpec::read(&args.spec)?;
            if !args.command.is_empty() {
                spec.command = args.command;
            }
            match spec.become_it()? {}
        }
        Command::RunAs { user, command } => match run::run_as(&user, &command)? {},
        Command::Exec(args) => {
            let spec = blocking(commands::exec::specification(&state, &args))?;
            match spec.become_in_session()? {}
        }
        Command::Completion { shell } => {
            clap_complete::generate(
                shell,
                &mut Arguments::command(),
                "culvert",
                &mut std::io::stdout(),
            );
            Ok(ExitCode::SUCCESS)
        }
        Command::Version => {
            println!("culvert {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Engine { directory } => serving(engine::run(StateDir::at(&directory)?)),
        Command::Dns(args) => {
            let listen = vec![(CONTROL_V4, 53).into(), (CONTROL_V6, 53).into()];
            serving(dns::run(dns::DnsOptions {
                objects: args.objects,
                listen,
                ready: args.ready,
                forward: args.forward,
            }))
        }
        Command::Testserver(args) => serving(testserver::run(args)),
        command => blocking(commands::run(command, state, environment)),
    }
}

fn blocking<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

fn serving(work: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(work)?;
    // Blocking work in a namespace must not keep the process.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}
