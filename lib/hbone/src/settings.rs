//! Numbers of a tunnel, each with its reason, and the budget of windows.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Largest window of one stream: fills a path of 8 Gbit/s at 1 ms, and is what
/// one reader that stops may cost.
const STREAM_WINDOW_MAX: u32 = 1024 * 1024;
/// Smallest window of one stream: one full frame.
const STREAM_WINDOW_MIN: u32 = 64 * 1024;
/// Part of the remaining budget that one tunnel may promise, so that many
/// tunnels get smaller windows instead of the last one getting none.
const BUDGET_SHARE: u64 = 8;

/// Limits and times of a tunnel.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Streams at once on one tunnel.
    pub streams_max: u32,
    /// Largest frame that we accept: one read of a busy socket.
    pub frame_bytes_max: u32,
    /// Largest head of a request or response.
    pub head_bytes_max: u32,
    /// Bytes that one stream may queue for sending; beyond it its socket is not
    /// read.
    pub send_buffer_bytes_max: usize,
    /// Streams that the peer may open and reset before we take it for abuse.
    /// Peers here are authenticated, and clients that give up are ordinary.
    pub pending_resets_max: usize,
    /// How often a tunnel is looked after.
    pub check_interval: Duration,
    /// A PING is sent at least this often.
    pub ping_interval: Duration,
    /// A PING without an answer (nor any other byte) for this long ends the
    /// tunnel.
    pub ping_timeout: Duration,
    /// A client's tunnel without streams is released after this.
    pub idle_timeout: Duration,
    /// A client's tunnel takes no new stream after this, so that identities and
    /// roots that are gone do not live on in it.
    pub lifetime_max: Duration,
}

impl Settings {
    /// What the source of tunnels uses.
    pub fn client() -> Self {
        Self {
            streams_max: 100,
            frame_bytes_max: 64 * 1024,
            head_bytes_max: 16 * 1024,
            send_buffer_bytes_max: 256 * 1024,
            pending_resets_max: 4096,
            check_interval: Duration::from_secs(1),
            // With the limit for the answer this keeps a dead peer's streams
            // below ten seconds, also when nobody writes.
            ping_interval: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(3),
            idle_timeout: Duration::from_secs(25),
            lifetime_max: Duration::from_secs(3600),
        }
    }

    /// What the destination of tunnels uses.
    pub fn server() -> Self {
        Self {
            streams_max: 200,
            head_bytes_max: 64 * 1024,
            check_interval: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(20),
            ..Self::client()
        }
    }
}

/// Receive windows that one worker may promise over all of its tunnels.
#[derive(Debug, Clone)]
pub struct WindowBudget(Rc<Cell<u64>>);

impl WindowBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self(Rc::new(Cell::new(bytes)))
    }

    /// Windows for one tunnel. The connection's window is the streams' windows
    /// together, so that streams nobody reads never stall the others. When the
    /// budget is spent a tunnel still gets the smallest windows that work.
    pub fn grant(&self, streams_max: u32) -> WindowGrant {
        let share = self.0.get() / BUDGET_SHARE / u64::from(streams_max.max(1));
        let stream = u32::try_from(share)
            .unwrap_or(u32::MAX)
            .clamp(STREAM_WINDOW_MIN, STREAM_WINDOW_MAX);
        // Window sizes end at 2^31 - 1.
        let connection = u64::from(stream) * u64::from(streams_max);
        let connection = u32::try_from(connection.min(i32::MAX as u64)).unwrap_or(u32::MAX);
        let taken = u64::from(connection).min(self.0.get());
        self.0.set(self.0.get() - taken);
        WindowGrant {
            stream,
            connection,
            taken,
            budget: self.clone(),
        }
    }

    /// Bytes that are not promised.
    pub fn remaining(&self) -> u64 {
        self.0.get()
    }
}

/// Windows of one tunnel; dropping it returns them to the budget.
#[derive(Debug)]
pub struct WindowGrant {
    pub(crate) stream: u32,
    pub(crate) connection: u32,
    taken: u64,
    budget: WindowBudget,
}

impl Drop for WindowGrant {
    fn drop(&mut self) {
        self.budget.0.set(self.budget.0.get() + self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_still_gives_the_smallest_windows() {
        let budget = WindowBudget::new(0);
        let grant = budget.grant(200);
        assert_eq!(grant.stream, STREAM_WINDOW_MIN);
        assert_eq!(
            u64::from(grant.connection),
            200 * u64::from(STREAM_WINDOW_MIN)
        );
        drop(grant);
        assert_eq!(budget.remaining(), 0);
    }

    #[test]
    fn grants_shrink_cover_their_streams_and_come_back() {
        let total = 512 << 20;
        let budget = WindowBudget::new(total);
        let grants: Vec<_> = (0..20).map(|_| budget.grant(100)).collect();
        for pair in grants.windows(2) {
            assert!(pair[0].stream >= pair[1].stream);
        }
        for grant in &grants {
            assert!(u64::from(grant.connection) >= u64::from(grant.stream) * 100);
        }
        drop(grants);
        assert_eq!(budget.remaining(), total);
    }
}
