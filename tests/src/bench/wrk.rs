//! Runs wrk and reads what it prints.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::command::Said;
use crate::harness::mesh::Mesh;
use crate::kit::statistics::Latencies;

/// What one run of wrk found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrkResult {
    pub(crate) requests: f64,
    pub(crate) rps: f64,
    pub(crate) latencies: Latencies,
}

/// How wrk connects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connections {
    pub(crate) count: u32,
    /// Kept for many requests, or a new one for each.
    pub(crate) kept: bool,
}

pub(crate) fn run(
    mesh: &Mesh,
    client: &str,
    url: &str,
    connections: Connections,
    time: Duration,
) -> Result<WrkResult> {
    let kept = connections.kept;
    let (connections, time_text) = (
        connections.count.to_string(),
        format!("{}s", time.as_secs()),
    );
    let mut words = vec![
        "wrk",
        "-t",
        "1",
        "-c",
        &connections,
        "-d",
        &time_text,
        "--timeout",
        "10",
        "--latency",
    ];
    if !kept {
        words.extend(["-H", "Connection: close"]);
    }
    words.push(url);
    let said = mesh
        .exec_within(client, &words, time + Duration::from_secs(60))?
        .succeeded()?;
    read(&said)
}

fn read(said: &Said) -> Result<WrkResult> {
    let text = said.text();
    ensure!(!text.contains("Non-2xx"), "answers that are no 200: {said}");
    ensure!(!text.contains("Socket errors"), "socket errors: {said}");
    parse(&text).with_context(|| said.to_string())
}

fn parse(text: &str) -> Option<WrkResult> {
    let after = |mark: &str| {
        let line = text
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with(mark))?;
        line.split_whitespace().last()
    };
    let total = text.lines().find(|line| line.contains("requests in"))?;
    Some(WrkResult {
        requests: total.split_whitespace().next()?.parse().ok()?,
        rps: after("Requests/sec:")?.parse().ok()?,
        latencies: Latencies {
            p50_ms: milliseconds(after("50%")?)?,
            p99_ms: milliseconds(after("99%")?)?,
            max_ms: 0.0,
        },
    })
}

fn milliseconds(text: &str) -> Option<f64> {
    for (unit, factor) in [("us", 0.001), ("ms", 1.0), ("m", 60_000.0), ("s", 1000.0)] {
        if let Some(number) = text.strip_suffix(unit) {
            return Some(number.parse::<f64>().ok()? * factor);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_wrk_prints() {
        let text = "Running 5s test @ http://10.0.0.1:8080/
  1 threads and 50 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.10ms    2.00ms  30.00ms   90.00%
  Latency Distribution
     50%  229.00us
     75%    1.00ms
     90%    2.00ms
     99%   11.03ms
  120345 requests in 5.00s, 140.00MB read
Requests/sec:  24069.12
Transfer/sec:     28.00MB
";
        let result = parse(text).expect("a whole report");
        assert!((result.requests - 120_345.0).abs() < 0.1);
        assert!((result.rps - 24_069.12).abs() < 0.01);
        assert!((result.latencies.p50_ms - 0.229).abs() < 1e-9);
        assert!((result.latencies.p99_ms - 11.03).abs() < 1e-9);
        assert!(parse("unable to connect").is_none());
    }
}
