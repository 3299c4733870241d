//! How every Culvert program starts, supervises its tasks, drains, logs, serves
//! its admin, metrics and readiness ports, and stops.
//!
//! This is the only crate that calls `tokio::spawn`: a task started here is
//! either *critical* ([`Tasks`]: its unexpected end or panic drains and ends the
//! process) or a *connection* ([`ConnectionTracker`]: its panic is counted and
//! ends that connection alone).
//!
//! The paved road of a program's `app` module:
//!
//! ```no_run
//! use culvert_runtime::{ProcessConfig, Process, config::{PROCESS, RawConfig, Variable}};
//!
//! const VARIABLES: &[Variable] = &[Variable::with_default(
//!     "CULVERT_EXAMPLE_LISTEN", "address:port", "[::]:9000", "where the example listens",
//! )];
//! struct Config { process: ProcessConfig, listen: std::net::SocketAddr }
//!
//! // main.rs: `read(std::env::vars_os())` is the only place that sees the environment.
//! let mut raw = RawConfig::read(&[PROCESS, VARIABLES], std::env::vars_os());
//! let process = ProcessConfig::read(&mut raw);
//! let listen = raw.value("CULVERT_EXAMPLE_LISTEN");
//! let effective = raw.effective();
//! let config = raw.finish(|| Some(Config { process: process?, listen: listen? }));
//! # async fn run(config: Config, effective: serde_json::Value) -> Result<(), Box<dyn std::error::Error>> {
//! let mut process = Process::start("example", env!("CARGO_PKG_VERSION"), &config.process)?;
//! let listening = process.readiness.condition("listener");
//! process.tasks.critical("accept", async move { /* … */ });
//! listening.set_ready();
//! process.serve_admin(&config.process, effective, axum::Router::new()).await?;
//! process.wait().await?;
//! # Ok(()) }
//! ```
//!
//! It knows none of our other crates and must never take a traffic decision.

pub mod config;

mod admin;
mod backoff;
mod chain;
mod clock;
mod connections;
mod drain;
mod limits;
mod logging;
mod metrics;
mod process;
mod readiness;
mod tasks;
mod worker;

pub use admin::{Admin, AdminConfig, AdminError, AdminListeners, BoundAddresses, serve_admin};
pub use backoff::Backoff;
pub use chain::chain;
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{ConfigError, ProcessConfig, RawConfig, Variable};
pub use connections::{AtCapacity, ConnectionPermit, ConnectionTracker};
pub use drain::{Drain, DrainWatch};
pub use limits::{FileLimit, LimitError, raise_file_limit};
pub use logging::{LogFormat, LogHandle, LogLevelError, init_logging};
pub use metrics::Metrics;
pub use process::{Process, ProcessError};
pub use readiness::{ConditionHandle, Readiness};
pub use tasks::{TaskError, TaskOutput, Tasks};
pub use worker::{WorkerError, WorkerHandle, spawn_worker};
