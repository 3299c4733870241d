//! The connection to the agent, opened again whenever it is lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_netns::{AsyncSeqPacket, Packet, SeqPacketError};
use culvert_runtime::{Backoff, chain};
use tokio::time::{Instant, sleep_until, timeout};

use crate::pods::packet::{PACKET_BYTES_MAX, acknowledgement, hello};

/// The agent may come back at any time; looking is cheap.
const RECONNECT_MIN: Duration = Duration::from_millis(10);
const RECONNECT_MAX: Duration = Duration::from_secs(15);
const RECONNECT_JITTER: f64 = 0.2;
/// A packet fits the socket's buffer unless the agent does not read at all.
const SEND_DEADLINE: Duration = Duration::from_secs(5);

/// What happened on the connection.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// It stands and the greeting is sent.
    Connected,
    /// It is gone.
    Lost(String),
    /// It could not be opened; it is tried again.
    Unreachable(String),
    /// A packet came.
    Packet(Packet),
    /// A packet came that was cut.
    Unreadable(String),
}

#[derive(Debug)]
enum State {
    Waiting { until: Instant },
    Open(AsyncSeqPacket),
}

#[derive(Debug)]
pub(super) struct Link {
    path: PathBuf,
    state: State,
    backoff: Backoff,
}

impl Link {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            state: State::Waiting {
                until: Instant::now(),
            },
            backoff: Backoff::new(RECONNECT_MIN, RECONNECT_MAX, RECONNECT_JITTER),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// The agent is understood, so that the next loss is followed by a quick try.
    pub(super) fn is_good(&mut self) {
        self.backoff.reset();
    }

    /// Gives the connection up.
    pub(super) fn reconnect(&mut self) {
        self.state = State::Waiting {
            until: Instant::now() + self.backoff.next_delay(),
        };
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    /// No packet is lost; an opening that is cut short begins anew.
    pub(super) async fn next(&mut self) -> LinkEvent {
        match &self.state {
            State::Waiting { until } => {
                sleep_until(*until).await;
                match open(&self.path).await {
                    Ok(connection) => {
                        self.state = State::Open(connection);
                        LinkEvent::Connected
                    }
                    Err(reason) => {
                        self.reconnect();
                        LinkEvent::Unreachable(reason)
                    }
                }
            }
            State::Open(connection) => match connection.receive(PACKET_BYTES_MAX).await {
                Ok(Some(packet)) => LinkEvent::Packet(packet),
                Ok(None) => {
                    self.reconnect();
                    LinkEvent::Lost("closed by the agent".to_owned())
                }
                Err(
                    error @ (SeqPacketError::Truncated(_) | SeqPacketError::DescriptorsTruncated),
                ) => LinkEvent::Unreadable(chain(&error)),
                Err(error) => {
                    self.reconnect();
                    LinkEvent::Lost(chain(&error))
                }
            },
        }
    }

    /// Answers a request; on failure the connection is given up.
    pub(super) async fn acknowledge(&mut self, error: &str) -> Result<(), String> {
        let State::Open(connection) = &self.state else {
            return Ok(());
        };
        let sent = send(connection, &acknowledgement(error)).await;
        if sent.is_err() {
            self.reconnect();
        }
        sent
    }
}

async fn open(path: &Path) -> Result<AsyncSeqPacket, String> {
    let connection = AsyncSeqPacket::connect(path).map_err(|error| chain(&error))?;
    send(&connection, &hello()).await?;
    Ok(connection)
}

async fn send(connection: &AsyncSeqPacket, bytes: &[u8]) -> Result<(), String> {
    match timeout(SEND_DEADLINE, connection.send(bytes, &[])).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("the agent has not read for {SEND_DEADLINE:?}")),
    }
}
