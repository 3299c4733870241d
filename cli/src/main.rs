//! The `culvert` command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let environment = culvert::Environment {
        path: std::env::var_os("PATH").map(|path| path.to_string_lossy().into_owned()),
    };
    culvert::main(culvert::args::Arguments::parse(), environment)
}
