//! Watches what crosses the interfaces of a network namespace.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_netns::Netns;
use socket2::{Domain, Protocol, Socket, Type};

/// ETH_P_ALL in network byte order: every packet, both directions.
const ALL_PACKETS: i32 = 0x0003_u16.to_be() as i32;
/// Larger than any packet that segmentation offload makes.
const PACKET_BYTES_MAX: usize = 256 * 1024;

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<Result<Seen>>,
}

/// What a capture saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Packets in which the marker stood.
    pub with_marker: u64,
}

impl Capture {
    /// Starts to look for `marker` in every packet of a named namespace.
    ///
    /// # Errors
    /// When the namespace or the socket cannot be opened.
    pub fn start(namespace: &str, marker: &[u8]) -> Result<Self> {
        let netns = Netns::open_named(namespace).with_context(|| namespace.to_owned())?;
        let socket = netns
            .run(|| Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(ALL_PACKETS))))?
            .context("packet socket (needs CAP_NET_RAW)")?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        // The kernel doubles it; a full-speed download must fit between reads.
        socket.set_recv_buffer_size(32 << 20)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (told, marker) = (Arc::clone(&stop), marker.to_vec());
        let reader = thread::spawn(move || read(&socket, &marker, &told));
        Ok(Self { stop, reader })
    }

    /// Ends the capture, after what is already queued was read.
    ///
    /// # Errors
    /// When reading failed.
    pub fn finish(self) -> Result<Seen> {
        self.stop.store(true, Ordering::SeqCst);
        self.reader
            .join()
            .map_err(|_| anyhow::anyhow!("the capture panicked"))?
    }
}

fn read(mut socket: &Socket, marker: &[u8], stop: &AtomicBool) -> Result<Seen> {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let mut seen = Seen::default();
    loop {
        match socket.read(&mut buffer) {
            Ok(length) => {
                seen.packets += 1;
                seen.bytes += length as u64;
                if contains(&buffer[..length], marker) {
                    seen.with_marker += 1;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if stop.load(Ordering::SeqCst) {
                    return Ok(seen);
                }
            }
            Err(error) => return Err(error).context("read packets"),
        }
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}
