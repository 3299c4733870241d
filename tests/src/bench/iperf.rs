//! Runs iperf3 and reads what it reports.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::harness::mesh::Mesh;
use crate::harness::wait::wait_for;

/// What iperf3 says while the server is not done with the run before.
const BUSY: &str = "the server is busy";
/// How long the server may take to be done with the run before.
const FREE_LIMIT: Duration = Duration::from_secs(20);

/// What moves and which way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    pub(crate) count: u32,
    /// From the server to the client.
    pub(crate) down: bool,
}

/// 10⁹ bits a second that arrived, over all streams.
pub(crate) fn run(
    mesh: &Mesh,
    client: &str,
    (host, port): (&str, u16),
    streams: Streams,
    time: Duration,
) -> Result<f64> {
    let (port, count, seconds) = (
        port.to_string(),
        streams.count.to_string(),
        time.as_secs().to_string(),
    );
    let mut words = vec![
        "iperf3",
        "--client",
        host,
        "--port",
        &port,
        "--parallel",
        &count,
        "--time",
        &seconds,
        "--json",
    ];
    if streams.down {
        words.push("--reverse");
    }
    let limit = time + Duration::from_secs(60);
    // Only a busy server is asked again: a run that broke is a finding.
    let said = wait_for("a server that is not busy", FREE_LIMIT, || {
        let said = mesh.exec_within(client, &words, limit);
        Ok(match said {
            Ok(said) if said.text().contains(BUSY) => None,
            said => Some(said),
        })
    })??;
    let report: serde_json::Value = said.json()?;
    gbps(&report).with_context(|| report.to_string())
}

fn gbps(report: &serde_json::Value) -> Option<f64> {
    Some(report["end"]["sum_received"]["bits_per_second"].as_f64()? / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_arrived() {
        let report = serde_json::json!({"end": {
            "sum_sent": {"bits_per_second": 3.1e9},
            "sum_received": {"bits_per_second": 3.0e9},
        }});
        assert!(gbps(&report).is_some_and(|gbps| (gbps - 3.0).abs() < 1e-9));
        let busy = serde_json::json!({"error": "the server is busy running a test"});
        assert!(gbps(&busy).is_none());
    }
}
