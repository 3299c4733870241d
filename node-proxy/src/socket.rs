//! Sockets of the data path: how they are connected in a pod's namespace, and
//! how they end.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use culvert_netns::{ConnectError, ConnectOptions, Keepalive, Netns, NetnsError};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Keepalive of every socket that faces an application or a plain destination.
/// One that is gone without a word is noticed after two minutes, and mappings
/// of address translators on the way are refreshed in time for the usual
/// shortest limits.
pub(crate) const KEEPALIVE: Keepalive = Keepalive {
    enabled: true,
    idle: Duration::from_secs(45),
    interval: Duration::from_secs(15),
    probes: 5,
};

/// A socket that closes with a RST unless it was finished: whatever drops it
/// (an error, a drain's deadline, a panic), the peer never takes an abort for
/// the end of the data.
#[derive(Debug)]
pub(crate) struct AbortOnDrop {
    stream: TcpStream,
    finished: bool,
}

impl AbortOnDrop {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            finished: false,
        }
    }

    /// Both directions have ended in order: close without a RST.
    pub(crate) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if !self.finished {
            // Fails only for what is no socket.
            let _ = culvert_netns::abort_on_close(&self.stream);
        }
    }
}

impl Deref for AbortOnDrop {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl DerefMut for AbortOnDrop {
    fn deref_mut(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

/// No TCP connection could be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The pod's namespace could not be entered.
    #[error("cannot enter the pod's network namespace")]
    Netns(#[source] NetnsError),
    /// The socket could not be prepared.
    #[error("cannot prepare a socket")]
    Socket(#[source] ConnectError),
    /// The destination refused or cannot be reached.
    #[error("cannot connect to {to}")]
    Connect {
        /// The destination.
        to: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No answer.
    #[error("no answer from {to} within {limit:?}")]
    TimedOut {
        /// The destination.
        to: SocketAddr,
        /// How long was waited.
        limit: Duration,
    },
}

impl DialError {
    /// Whether the process is out of descriptors.
    pub(crate) fn is_exhausted(&self) -> bool {
        matches!(self, Self::Socket(error) if error.is_exhausted())
    }
}

/// Connects from inside `netns`; the calling thread is back in `home` before
/// anything is awaited, since a socket stays in the namespace of its making.
///
/// # Cancel safety
/// The socket is closed when the future is dropped.
pub(crate) async fn dial(
    home: &Netns,
    netns: &Netns,
    to: SocketAddr,
    options: &ConnectOptions,
    limit: Duration,
) -> Result<TcpStream, DialError> {
    let socket = netns
        .run_here(home, || culvert_netns::tcp_socket(to, options))
        .map_err(DialError::Netns)?
        .map_err(DialError::Socket)?;
    match timeout(limit, socket.connect(to)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(DialError::Connect { to, source }),
        Err(_) => Err(DialError::TimedOut { to, limit }),
    }
}
