//! HTTP/1.1 requests at a steady rate over kept connections. A latency counts
//! from the moment at which the request was due, not from when it could be sent:
//! a stalled way shows as long latencies, not as fewer requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::socket;
use super::statistics::Latencies;

/// What to do.
#[derive(Debug, Clone, clap::Args)]
pub struct RateOptions {
    /// Server as host:port.
    pub target: String,
    /// Path to ask for.
    #[arg(long, default_value = "/")]
    pub path: String,
    /// Requests a second, over all connections.
    #[arg(long, default_value_t = 2000)]
    pub rate: u32,
    /// Connections.
    #[arg(long, default_value_t = 20)]
    pub connections: u32,
    /// Duration in seconds.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct RateReport {
    /// Answered requests a second.
    pub rps: f64,
    /// Answered requests.
    pub requests: u64,
    /// Latencies from the due time.
    pub latencies: Latencies,
}

/// Runs and reports.
///
/// # Errors
/// When a connection cannot be made or breaks, or an answer is not a 200.
pub fn run(options: &RateOptions) -> Result<RateReport> {
    let begin = Instant::now() + Duration::from_millis(200);
    let pause = Duration::from_secs(1) * options.connections / options.rate.max(1);
    let clients: Vec<_> = (0..options.connections)
        .map(|number| {
            let options = options.clone();
            // Spread evenly, so that the requests do not come in bursts.
            let first = begin + pause * number / options.connections;
            thread::spawn(move || client(&options, first, pause))
        })
        .collect();
    let mut samples = Vec::new();
    for client in clients {
        samples.extend(
            client
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))??,
        );
    }
    let requests = samples.len() as u64;
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rps = requests as f64 / seconds;
    Ok(RateReport {
        rps,
        requests,
        latencies: Latencies::of(samples),
    })
}

fn client(options: &RateOptions, first: Instant, pause: Duration) -> Result<Vec<Duration>> {
    let stream = socket::connect(&options.target, Duration::from_secs(30)).context("connect")?;
    let mut reader = BufReader::with_capacity(16 * 1024, stream.try_clone().context("clone")?);
    let mut writer = stream;
    let request = format!("GET {} HTTP/1.1\r\nhost: bench\r\n\r\n", options.path);
    let mut samples = Vec::new();
    let end = first + Duration::from_secs(options.seconds);
    let mut due = first;
    while due < end {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        writer.write_all(request.as_bytes()).context("request")?;
        read_answer(&mut reader)?;
        samples.push(due.elapsed());
        due += pause;
    }
    Ok(samples)
}

fn read_answer(reader: &mut BufReader<TcpStream>) -> Result<()> {
    let mut line = String::new();
    reader.read_line(&mut line).context("status line")?;
    ensure!(line.starts_with("HTTP/1.1 200"), "answer {line:?}");
    let mut length = 0_u64;
    loop {
        line.clear();
        reader.read_line(&mut line).context("header")?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().context("content-length")?;
        }
    }
    let copied = std::io::copy(&mut reader.take(length), &mut std::io::sink()).context("body")?;
    ensure!(
        copied == length,
        "body of {copied} instead of {length} bytes"
    );
    Ok(())
}
