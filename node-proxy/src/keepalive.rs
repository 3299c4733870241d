//! The keepalive of the application's socket, mirrored to the far leg: the
//! application's own probes end at the proxy.

use std::net::SocketAddr;
use std::time::Duration;

use culvert_netns::{Keepalive, SocketDiag, set_keepalive};
use culvert_runtime::chain;
use tokio::net::TcpStream;

use crate::pods::Pod;
use crate::socket::KEEPALIVE;
use crate::workers::Worker;

/// How long the socket of a pod's program may be silent before it is probed;
/// none when it has no keepalive, or a longer one than every leg has anyway.
/// Two system calls of about a microsecond each.
pub(crate) fn of_application(
    worker: &Worker,
    pod: &Pod,
    client: SocketAddr,
    destination: SocketAddr,
) -> Option<Duration> {
    let diag = pod.diag.get_or_open(|| {
        let opened = pod.netns.run_here(&worker.shared.home, SocketDiag::open);
        let error = match opened {
            Ok(Ok(diag)) => return Some(diag),
            Ok(Err(error)) => chain(&error).to_string(),
            Err(error) => chain(&error).to_string(),
        };
        tracing::warn!(?pod, error, "keepalive of applications is not mirrored");
        None
    })?;
    match diag.keepalive_in(client, destination) {
        Ok(idle) => idle.filter(|idle| *idle < KEEPALIVE.idle),
        Err(error) => {
            tracing::debug!(?pod, error = chain(&error).to_string(), "keepalive unknown");
            None
        }
    }
}

/// What a leg has whose application is probed after this much silence: never
/// less often than every other leg.
fn mirrored(idle: Duration) -> Keepalive {
    // The kernel counts whole seconds, and what it told was already running.
    let seconds = idle.as_secs() + u64::from(idle.subsec_nanos() > 0);
    let idle = Duration::from_secs(seconds.max(1)).min(KEEPALIVE.idle);
    Keepalive {
        idle,
        interval: idle.min(KEEPALIVE.interval),
        ..KEEPALIVE
    }
}

/// Gives a far leg the application's keepalive.
pub(crate) fn mirror(far: &TcpStream, idle: Option<Duration>) {
    if let Some(idle) = idle
        && let Err(error) = set_keepalive(far, &mirrored(idle))
    {
        tracing::debug!(%error, "a connection has not the application's keepalive");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_is_never_probed_less_often_than_every_other() {
        for (millis, idle, interval) in [
            (0, 1, 1),
            (200, 1, 1),
            (4_992, 5, 5),
            (30_000, 30, 15),
            (44_999, 45, 15),
            (7_200_000, 45, 15),
        ] {
            let keepalive = mirrored(Duration::from_millis(millis));
            assert!(keepalive.enabled);
            assert_eq!(keepalive.idle, Duration::from_secs(idle), "{millis}");
            assert_eq!(keepalive.interval, Duration::from_secs(interval));
            assert_eq!(keepalive.probes, KEEPALIVE.probes);
        }
    }
}
