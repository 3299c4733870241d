//! Runs iperf3 and reads what it reports.

use std::time::Duration;

use anyhow::{Context, Result};

use super::subjects::{BULK_PORT, Places, Subject};
use crate::harness::mesh::Mesh;
use crate::harness::wait::wait_for;

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
    places: &Places,
    subject: Subject,
    streams: Streams,
    time: Duration,
) -> Result<f64> {
    let (host, port) = places.target(subject, BULK_PORT)?;
    let (port, count, seconds) = (
        port.to_string(),
        streams.count.to_string(),
        time.as_secs().to_string(),
    );
    let mut words = vec![
        "iperf3",
        "--client",
        &host,
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
    wait_for("a run of iperf3", FREE_LIMIT, || {
        let report: serde_json::Value =
            mesh.exec_within(subject.client(), &words, limit)?.json()?;
        gbps(&report).with_context(|| report.to_string()).map(Some)
    })
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
