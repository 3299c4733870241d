//! Memory: idle, with many open connections, and a minute after they closed.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use super::subjects::{Places, Subject};
use crate::harness::mesh::Mesh;
use crate::harness::processes::Process;
use crate::harness::wait::wait_until;

/// When memory should be back ("within 20 % of idle after a minute").
const AFTER_CLOSE: Duration = Duration::from_secs(60);
/// 5,000 handshakes through two proxies on two cores, and more.
const OPEN_LIMIT: Duration = Duration::from_secs(300);

/// Figures of the larger proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) idle_mib: f64,
    pub(crate) open_mib: f64,
    pub(crate) kib_per_connection: f64,
    pub(crate) after_mib: f64,
}

pub(crate) fn measure(
    mesh: &Mesh,
    places: &Places,
    subject: Subject,
    connections: usize,
) -> Result<Memory> {
    let carriers = places.carriers(subject);
    let idle = resident(&carriers)?;
    let (host, port) = places.target(subject, 9000)?;
    let (target, count) = (format!("{host}:{port}"), connections.to_string());
    let work = mesh.manifests().work()?;
    let stop = work.join(format!("stop-{subject:?}"));
    let held = work.join(format!("held-{subject:?}"));
    let (stop_text, held_text) = (stop.to_string_lossy(), held.to_string_lossy());
    let words = ["hold", &target, &count, &stop_text, "--held", &held_text];
    let mut holder = mesh.start_testkit(subject.client(), &words)?;
    wait_until("all connections open", OPEN_LIMIT, || {
        anyhow::ensure!(!holder.has_ended()?, "the holder ended early");
        Ok(held.exists())
    })?;
    let open = resident(&carriers)?;
    std::fs::write(&stop, "")?;
    holder.wait(OPEN_LIMIT)?.succeeded()?;
    let closed = Instant::now();
    wait_until("a minute", AFTER_CLOSE * 2, || {
        Ok(closed.elapsed() >= AFTER_CLOSE)
    })?;
    let after = resident(&carriers)?;
    // The side that grew most.
    let side = (0..carriers.len())
        .max_by(|a, b| (open[*a] - idle[*a]).total_cmp(&(open[*b] - idle[*b])))
        .unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let kib_per_connection = (open[side] - idle[side]) * 1024.0 / connections as f64;
    Ok(Memory {
        idle_mib: idle[side],
        open_mib: open[side],
        kib_per_connection,
        after_mib: after[side],
    })
}

fn resident(carriers: &[Process]) -> Result<Vec<f64>> {
    carriers.iter().map(Process::resident_mib).collect()
}
