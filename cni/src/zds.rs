//! ZDS: node proxies connect, say hello, and get one request at a time.

use std::path::Path;
use std::time::Duration;

use culvert_netns::{
    AsyncSeqPacket, AsyncSeqPacketListener, Netns, SeqPacketError, SeqPacketListener,
};
use culvert_runtime::{ConnectionTracker, DrainWatch, chain};
use tokio::sync::mpsc;
use tokio::time::timeout;

use std::os::fd::AsFd;

use crate::agent::{Inbox, Message};
use crate::packet::{PACKET_BYTES_MAX, PacketError, decode_acknowledgement, decode_hello};
use crate::state::{ConnectionId, Event};

/// For writing a request, and for its answer: a proxy that takes longer is stuck,
/// and starts over with a new connection.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// At most five connections a second: a proxy that crashes in a loop must not keep
/// the agent busy sending snapshots.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(200);
/// An old and a new proxy overlap; more is a fault of somebody's.
const CONNECTIONS_MAX: usize = 8;

/// One request on its way to a proxy.
#[derive(Debug)]
pub struct Command {
    /// To be given back with the answer.
    pub sequence: u64,
    /// The packet.
    pub bytes: Vec<u8>,
    /// The namespace that goes along.
    pub netns: Option<Netns>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum ZdsError {
    #[error("cannot talk to the node proxy")]
    Socket(#[from] SeqPacketError),
    #[error("the node proxy does not keep to the protocol")]
    Packet(#[from] PacketError),
    #[error("the node proxy has not {0} within {ANSWER_DEADLINE:?}")]
    Deadline(&'static str),
    #[error("the node proxy sent a packet that nobody asked for")]
    Unasked,
}

/// Opens the socket.
///
/// # Errors
/// When the path cannot be used.
pub fn listen(path: &Path) -> Result<AsyncSeqPacketListener, SeqPacketError> {
    SeqPacketListener::bind(path)?.into_async()
}

/// Serves connections until the agent stops.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: AsyncSeqPacketListener,
    inbox: Inbox,
    drain: DrainWatch,
) -> Result<(), SeqPacketError> {
    let connections = ConnectionTracker::new(CONNECTIONS_MAX);
    let mut pace = tokio::time::interval(ACCEPT_INTERVAL);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last: ConnectionId = 0;
    loop {
        pace.tick().await;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = drain.started() => break,
        };
        let connection = match accepted {
            Ok(connection) => connection,
            Err(error) => {
                tracing::warn!(error = chain(&error), "ZDS connection not accepted");
                continue;
            }
        };
        last += 1;
        let id = last;
        let inbox = inbox.clone();
        let served = connections.spawn(async move {
            if let Err(error) = serve_one(&connection, id, &inbox).await {
                tracing::warn!(
                    connection = id,
                    error = chain(&error),
                    "ZDS connection ended"
                );
            }
            inbox.send(Message::Event(Event::Disconnected(id))).await;
        });
        if served.is_err() {
            tracing::warn!(max = CONNECTIONS_MAX, "too many ZDS connections");
        }
    }
    connections.abort_all();
    Ok(())
}

async fn serve_one(
    connection: &AsyncSeqPacket,
    id: ConnectionId,
    inbox: &Inbox,
) -> Result<(), ZdsError> {
    let hello = timeout(ANSWER_DEADLINE, connection.receive(PACKET_BYTES_MAX))
        .await
        .map_err(|_| ZdsError::Deadline("said hello"))??;
    let Some(hello) = hello else {
        return Ok(());
    };
    decode_hello(&hello.bytes)?;
    tracing::info!(connection = id, peer = ?connection.peer().ok(), "node proxy connected");
    // Requests go one at a time, so one place is enough.
    let (sender, mut commands) = mpsc::channel(1);
    inbox.send(Message::ProxyConnected(id, sender)).await;
    loop {
        let command = tokio::select! {
            command = commands.recv() => command,
            packet = connection.receive(PACKET_BYTES_MAX) => {
                return match packet? {
                    None => Ok(()),
                    Some(_) => Err(ZdsError::Unasked),
                };
            }
        };
        // The state machine has dropped the connection.
        let Some(command) = command else {
            return Ok(());
        };
        let sequence = command.sequence;
        let Some(error) = exchange(connection, &command).await? else {
            return Ok(());
        };
        let event = Event::Acknowledged {
            connection: id,
            sequence,
            error,
        };
        inbox.send(Message::Event(event)).await;
    }
}

/// The answer; none when the proxy closed instead.
async fn exchange(
    connection: &AsyncSeqPacket,
    command: &Command,
) -> Result<Option<String>, ZdsError> {
    let fds: Vec<_> = command.netns.iter().map(AsFd::as_fd).collect();
    timeout(ANSWER_DEADLINE, connection.send(&command.bytes, &fds))
        .await
        .map_err(|_| ZdsError::Deadline("taken a request"))??;
    let answer = timeout(ANSWER_DEADLINE, connection.receive(PACKET_BYTES_MAX))
        .await
        .map_err(|_| ZdsError::Deadline("answered a request"))??;
    match answer {
        None => Ok(None),
        Some(packet) => Ok(Some(decode_acknowledgement(&packet.bytes)?)),
    }
}
