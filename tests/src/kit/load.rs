//! New connections at a steady rate, each a short conversation that proves it
//! reached the right server.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::conversation;
use super::socket;
use super::statistics::Latencies;

/// What to do.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadOptions {
    /// Servers as name:port, taken in turn.
    #[arg(required = true)]
    pub targets: Vec<String>,
    /// New connections a second.
    #[arg(long, default_value_t = 200)]
    pub rate: u32,
    /// Longest duration in seconds.
    #[arg(long, default_value_t = 600)]
    pub seconds: u64,
    /// Ends when this file appears.
    #[arg(long)]
    pub stop: Option<PathBuf>,
    /// Limit of one conversation in seconds.
    #[arg(long, default_value_t = 30)]
    pub limit: u64,
    /// The server's name must begin with this.
    #[arg(long, default_value = "")]
    pub server: String,
}

/// What came of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Conversations begun.
    pub attempted: u64,
    /// Conversations that went well.
    pub succeeded: u64,
    /// Connections that could not be made.
    pub not_connected: u64,
    /// Connections that were made and then broke.
    pub broken: u64,
    /// Conversations with a server of another name.
    pub wrong_server: u64,
    /// Errors by text, the first 20.
    pub errors: BTreeMap<String, u64>,
    /// Duration of the conversations that went well.
    pub latencies: Latencies,
}

struct Tally {
    report: LoadReport,
    samples: Vec<Duration>,
}

/// Runs until the time is over or the stop file appears, waits for what is open
/// and reports.
///
/// # Errors
/// When a thread cannot be started.
pub fn run(options: &LoadOptions) -> Result<LoadReport> {
    let tally = Arc::new(Mutex::new(Tally {
        report: LoadReport::default(),
        samples: Vec::new(),
    }));
    let pause = Duration::from_secs(1) / options.rate.max(1);
    let begin = Instant::now();
    let end = begin + Duration::from_secs(options.seconds);
    let mut open = Vec::new();
    let mut number = 0_u32;
    while Instant::now() < end && !socket::told_to_stop(options.stop.as_deref()) {
        let due = begin + pause * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let target = options.targets[number as usize % options.targets.len()].clone();
        let (tally, options) = (Arc::clone(&tally), options.clone());
        let one = move || converse(&target, &options, &tally);
        open.push(thread::Builder::new().stack_size(128 * 1024).spawn(one)?);
        open.retain(|thread| !thread.is_finished());
        number += 1;
    }
    for thread in open {
        let _ = thread.join();
    }
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    tally.report.attempted = u64::from(number);
    tally.report.latencies = Latencies::of(std::mem::take(&mut tally.samples));
    Ok(std::mem::take(&mut tally.report))
}

fn converse(target: &str, options: &LoadOptions, tally: &Mutex<Tally>) {
    let begin = Instant::now();
    let outcome = conversation::talk(target, Duration::from_secs(options.limit));
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    match outcome {
        Ok(greeting) if greeting.server.starts_with(&options.server) => {
            tally.report.succeeded += 1;
            tally.samples.push(begin.elapsed());
        }
        Ok(greeting) => {
            tally.report.wrong_server += 1;
            note(&mut tally.report, format!("server {}", greeting.server));
        }
        Err(error) => {
            let text = format!("{error:#}");
            if refused(&error) || text.starts_with("connect") {
                tally.report.not_connected += 1;
            } else {
                tally.report.broken += 1;
            }
            note(&mut tally.report, text);
        }
    }
}

fn refused(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn note(report: &mut LoadReport, text: String) {
    if report.errors.len() < 20 || report.errors.contains_key(&text) {
        *report.errors.entry(text).or_default() += 1;
    }
}
