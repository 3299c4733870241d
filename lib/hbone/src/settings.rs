//! Numbers of a tunnel, each with its reason.

use crate::scratch::READ_BYTES_MAX;
use std::time::Duration;

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
            // Whole reads: a part of one would leave as a packet of its own.
            send_buffer_bytes_max: 4 * READ_BYTES_MAX,
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
