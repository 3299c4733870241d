//! Starts discovery.

use anyhow::Context as _;
use culvert_discovery::{app, config};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = config::Config::read(std::env::vars_os())?;
    app::run(config).await.context("culvert-discovery failed")
}
