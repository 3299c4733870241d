//! What a worker is told.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::connections::ConnectionView;
use crate::pods::session::StopMode;
use crate::pods::{Pod, PodListeners};

/// Through which listener a connection came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The pod's own program connects.
    Outbound,
    /// A plain connection to the pod.
    Inbound,
    /// A tunnel to the pod.
    Tunnel,
}

/// A connection that another worker has accepted.
#[derive(Debug)]
pub(crate) struct Dealt {
    pub(crate) pod: Arc<Pod>,
    pub(crate) entry: Entry,
    pub(crate) stream: std::net::TcpStream,
    pub(crate) client: SocketAddr,
}

/// A command to one worker.
#[derive(Debug)]
pub(crate) enum Command {
    Add {
        pod: Arc<Pod>,
        listeners: PodListeners,
        done: oneshot::Sender<()>,
    },
    Remove {
        uid: Arc<str>,
        mode: StopMode,
        done: oneshot::Sender<()>,
    },
    Connection(Dealt),
    Drain {
        deadline: Instant,
        /// How many connections had to be closed.
        done: oneshot::Sender<usize>,
    },
    View(oneshot::Sender<Vec<ConnectionView>>),
    Stop,
}
