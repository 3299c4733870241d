//! culvert-node-proxy: reads the environment and runs the process.

use std::process::ExitCode;

use culvert_node_proxy::app;
use culvert_node_proxy::config::Config;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut raw = Config::raw(std::env::vars_os());
    let config = Config::read(&mut raw);
    let effective = raw.effective();
    let config = match raw.finish(|| config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("culvert-node-proxy: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(config, effective) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not have started yet.
            eprintln!("culvert-node-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config, effective: serde_json::Value) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async { app::build(config, effective).await?.run().await })
}
