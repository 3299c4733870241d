//! Where connections enter: the accept loops of a pod's listeners, and where a
//! redirected connection was meant to go.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_netns::{canonical, original_destination, set_keepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::pods::{INBOUND_PORT, OUTBOUND_PORT, Pod, PodListeners, TUNNEL_PORT};
use crate::socket::{AbortOnDrop, KEEPALIVE};
use crate::workers::{Command, Dealt, Entry, Worker};

/// Ports of ours inside a pod: never a destination, or a peer could make the
/// proxy call itself.
const OWN_PORTS: [u16; 3] = [OUTBOUND_PORT, INBOUND_PORT, TUNNEL_PORT];
/// After an error that accepting again will meet again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Whether no connection may be made to this port of a pod.
pub(crate) fn is_own_port(port: u16) -> bool {
    OWN_PORTS.contains(&port)
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) client: SocketAddr,
}

impl Accepted {
    pub(crate) fn abort(self) {
        drop(AbortOnDrop::new(self.stream));
    }
}

/// A pod that is served; dropping it ends its accept loops. The listening
/// sockets themselves may live on with the agent.
#[derive(Debug)]
pub(crate) struct Serving {
    _stop: Vec<oneshot::Sender<()>>,
}

/// Starts the accept loops of a pod.
///
/// # Errors
/// When a listener cannot be registered with the worker's runtime.
pub(crate) fn start(
    worker: &Rc<Worker>,
    pod: &Arc<Pod>,
    listeners: PodListeners,
) -> io::Result<Serving> {
    let mut stop = Vec::with_capacity(3);
    for (entry, listener) in [
        (Entry::Outbound, listeners.outbound),
        (Entry::Inbound, listeners.inbound),
        (Entry::Tunnel, listeners.tunnel),
    ] {
        listener.set_nonblocking(true)?;
        // Accepted sockets inherit it.
        if let Err(error) = set_keepalive(&listener, &KEEPALIVE) {
            tracing::warn!(%error, "a listener has no keepalive");
        }
        let listener = TcpListener::from_std(listener)?;
        let (sender, stopped) = oneshot::channel();
        let accepting = accept(Rc::clone(worker), Arc::clone(pod), entry, listener);
        let spawned = worker.tunnel_tracker.spawn_local(async move {
            tokio::select! {
                _ = stopped => {}
                () = accepting => {}
            }
        });
        spawned.map_err(io::Error::other)?;
        stop.push(sender);
    }
    Ok(Serving { _stop: stop })
}

async fn accept(worker: Rc<Worker>, pod: Arc<Pod>, entry: Entry, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let client = canonical(client);
                deal(&worker, &pod, entry, Accepted { stream, client });
            }
            Err(error) if is_exhausted(&error) => {
                worker.shed_one(|| refuse_one(&listener));
                sleep(ACCEPT_PAUSE).await;
            }
            // The client has given up meanwhile.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(?pod, %error, "cannot accept");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// EMFILE and ENFILE.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

fn refuse_one(listener: &TcpListener) -> bool {
    let Ok((socket, _)) = socket2::SockRef::from(listener).accept() else {
        return false;
    };
    let _ = culvert_netns::abort_on_close(&socket);
    true
}

fn deal(worker: &Rc<Worker>, pod: &Arc<Pod>, entry: Entry, accepted: Accepted) {
    let best = worker.shared.loads.best(worker.index);
    if best == worker.index {
        worker.serve(Arc::clone(pod), entry, accepted);
        return;
    }
    let Ok(permit) = worker.shared.senders[best].try_reserve() else {
        worker.serve(Arc::clone(pod), entry, accepted);
        return;
    };
    match accepted.stream.into_std() {
        Ok(stream) => permit.send(Command::Connection(Dealt {
            pod: Arc::clone(pod),
            entry,
            stream,
            client: accepted.client,
        })),
        Err(error) => tracing::warn!(%error, "a connection cannot be dealt"),
    }
}

/// Where the client of a redirected connection wanted to go: a transparent
/// listener's socket has it as its own address; behind a NAT rule the kernel
/// is asked.
///
/// # Errors
/// When the socket has no address any more.
pub(crate) fn destination(stream: &TcpStream, listener_port: u16) -> io::Result<SocketAddr> {
    let local = canonical(stream.local_addr()?);
    if local.port() != listener_port {
        return Ok(local);
    }
    let original = original_destination(stream).map_err(io::Error::other)?;
    Ok(original.unwrap_or(local))
}
