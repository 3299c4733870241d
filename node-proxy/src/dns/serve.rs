//! The loops that take a pod's queries.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_runtime::{ConnectionTracker, chain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::answer::{Outcome, Transport, answer, server_failure};
use super::forward::{SharedForwarder, framed, search};
use super::names::NameScope;
use crate::pods::Pod;
use crate::state::State;

/// A client that asks one question after another keeps its connection; RFC 7766 leaves
/// the time to the server.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// After an error that may last, such as having no descriptors left.
const PAUSE: Duration = Duration::from_millis(10);
/// Queries wait this long for the first snapshot of a process: as long as a resolver
/// waits for an answer. Discovery answers a restarted node proxy within milliseconds.
const KNOWN_LIMIT: Duration = Duration::from_secs(5);

/// What a pod's queries are answered with.
#[derive(Debug)]
pub(super) struct Resolver {
    pub(super) pod: Arc<Pod>,
    pub(super) state: State,
    pub(super) domain: Arc<str>,
    pub(super) forwarder: SharedForwarder,
    pub(super) tracker: ConnectionTracker,
}

impl Resolver {
    /// What the mesh knows, or that it is not ours to know.
    fn local(&self, query: &[u8], transport: Transport) -> Outcome {
        let conf = search(&self.forwarder);
        let scope = NameScope {
            namespace: &self.pod.namespace,
            domain: &self.domain,
            search: &conf.search,
        };
        answer(query, &self.state.snapshot(), &scope, transport)
    }

    async fn forward(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        match self.forwarder.ask(&self.pod.netns, query, transport).await {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::debug!(pod = ?self.pod, error = chain(&error), "DNS query failed");
                server_failure(query)
            }
        }
    }

    /// Takes datagrams until the pod goes.
    /// Waits until the mesh is known. A process that has just started would send the
    /// mesh's own names on, while one that it takes over from answers the other half
    /// of the same question: to a resolver that is a name that does not exist.
    async fn known(&self) {
        // Without discovery other names must still be answered.
        let _ = timeout(KNOWN_LIMIT, self.state.known()).await;
    }

    pub(super) async fn serve_udp(self: Rc<Self>, socket: UdpSocket) {
        self.known().await;
        let socket = Rc::new(socket);
        loop {
            match self.receive(&socket).await {
                Ok((query, from)) => self.datagram(&socket, query, from),
                // Such as the ICMP answer to a client that did not wait.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => {
                    tracing::warn!(pod = ?self.pod, %error, "cannot receive DNS queries");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn receive(&self, socket: &UdpSocket) -> io::Result<(Vec<u8>, SocketAddr)> {
        loop {
            socket.readable().await?;
            let mut scratch = self.forwarder.scratch.borrow_mut();
            match socket.try_recv_from(&mut scratch) {
                Ok((length, from)) => return Ok((scratch[..length].to_vec(), from)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn datagram(self: &Rc<Self>, socket: &Rc<UdpSocket>, query: Vec<u8>, from: SocketAddr) {
        self.forwarder.metrics.requests.inc();
        match self.local(&query, Transport::Udp) {
            // The buffer is full only when the pod does not read: it asks again.
            Outcome::Reply(bytes) => drop(socket.try_send_to(&bytes, from)),
            Outcome::Drop => {}
            Outcome::Forward => {
                let (own, socket) = (Rc::clone(self), Rc::clone(socket));
                let forwarding = async move {
                    if let Some(bytes) = own.forward(&query, Transport::Udp).await {
                        // As above.
                        let _ = socket.send_to(&bytes, from).await;
                    }
                };
                if self.tracker.spawn_local(forwarding).is_err() {
                    self.forwarder.metrics.dropped.inc();
                }
            }
        }
    }

    /// Takes connections until the pod goes.
    pub(super) async fn serve_tcp(self: Rc<Self>, listener: TcpListener) {
        self.known().await;
        loop {
            let permit = self.tracker.reserve().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    let own = Rc::clone(&self);
                    permit.spawn_local(async move {
                        if let Err(error) = own.stream(stream).await {
                            tracing::debug!(pod = ?own.pod, %error, "DNS connection failed");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(pod = ?self.pod, %error, "cannot accept DNS connections");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn stream(&self, mut stream: TcpStream) -> io::Result<()> {
        while let Some(query) = timeout(TCP_IDLE, read_message(&mut stream)).await?? {
            self.forwarder.metrics.requests.inc();
            let reply = match self.local(&query, Transport::Tcp) {
                Outcome::Reply(bytes) => Some(bytes),
                Outcome::Forward => self.forward(&query, Transport::Tcp).await,
                Outcome::Drop => return Ok(()),
            };
            if let Some(bytes) = reply {
                timeout(TCP_IDLE, stream.write_all(&framed(&bytes))).await??;
            }
        }
        Ok(())
    }
}

/// The next message of a stream; none at its end.
async fn read_message(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(Some(message))
}
