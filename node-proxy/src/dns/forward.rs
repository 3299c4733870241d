//! Asking the machine's servers with the very bytes of the client, and giving back the
//! very bytes of the server.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_netns::{ConnectError, ConnectOptions, Netns, NetnsError, tcp_socket, udp_socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use super::answer::Transport;
use super::metrics::DnsMetrics;
use super::resolv::ResolvFile;
use crate::pods::PROXY_MARK;

/// After this the client has given up, or asked again.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The largest message.
pub(super) const MESSAGE_BYTES_MAX: usize = u16::MAX as usize;
/// The answer's code, in the low bits of the fourth byte.
const CODE_MASK: u8 = 0x0f;
/// SERVFAIL, NOTIMP, REFUSED: another server may know better.
const TRY_NEXT: [u8; 3] = [2, 4, 5];

/// One buffer for all datagrams of the thread: a datagram can have 64 KiB and hardly
/// ever has, and no wait happens while it is in use.
pub(super) type Scratch = Rc<RefCell<Vec<u8>>>;

/// Asks the servers of the machine's resolv.conf, from inside a pod's namespace.
#[derive(Debug)]
pub(super) struct Forwarder {
    pub(super) file: RefCell<ResolvFile>,
    pub(super) home: Netns,
    pub(super) metrics: DnsMetrics,
    pub(super) scratch: Scratch,
}

/// Why a server gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("no DNS server is configured")]
    NoServer,
    #[error("cannot enter the pod's network namespace")]
    Netns(#[source] NetnsError),
    #[error("cannot ask {server}")]
    Socket {
        server: SocketAddr,
        #[source]
        source: ConnectError,
    },
    #[error("cannot ask {server}")]
    Exchange {
        server: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("{server} has not answered in time")]
    Timeout { server: SocketAddr },
}

impl Forwarder {
    /// The answer to a query: the first server's, or the next one's when that fails.
    ///
    /// # Errors
    /// When no server answers; the last failure.
    pub(super) async fn ask(
        &self,
        netns: &Netns,
        query: &[u8],
        transport: Transport,
    ) -> Result<Vec<u8>, ForwardError> {
        let conf = self.file.borrow_mut().current();
        let give_up = Instant::now() + ANSWER_DEADLINE;
        let mut last = Err(ForwardError::NoServer);
        for _ in 0..conf.attempts {
            for server in conf.servers.iter().copied() {
                let began = Instant::now();
                let deadline = (began + conf.timeout).min(give_up);
                if deadline <= began {
                    return last;
                }
                let tried = self.try_server(netns, server, query, transport);
                let result = timeout_at(deadline, tried)
                    .await
                    .unwrap_or(Err(ForwardError::Timeout { server }));
                self.metrics.asked(began.elapsed(), result.is_ok());
                match result {
                    Ok(answer) if is_final(&answer) => return Ok(answer),
                    // A refusal is still an answer, if no better one comes.
                    Ok(answer) => last = Ok(answer),
                    Err(error) if last.is_err() => last = Err(error),
                    Err(_) => {}
                }
            }
            // Servers that said no say it again; only silence is worth another round.
            if last.is_ok() {
                break;
            }
        }
        last
    }

    async fn try_server(
        &self,
        netns: &Netns,
        server: SocketAddr,
        query: &[u8],
        transport: Transport,
    ) -> Result<Vec<u8>, ForwardError> {
        let options = ConnectOptions {
            source: None,
            mark: Some(PROXY_MARK),
        };
        let socket = |source| ForwardError::Socket { server, source };
        let exchange = |source| ForwardError::Exchange { server, source };
        match transport {
            Transport::Udp => {
                let opened = netns
                    .run_here(&self.home, || udp_socket(server, &options))
                    .map_err(ForwardError::Netns)?
                    .map_err(socket)?;
                self.ask_udp(opened, server, query).await.map_err(exchange)
            }
            Transport::Tcp => {
                let opened = netns
                    .run_here(&self.home, || tcp_socket(server, &options))
                    .map_err(ForwardError::Netns)?
                    .map_err(socket)?;
                ask_tcp(opened, server, query).await.map_err(exchange)
            }
        }
    }

    async fn ask_udp(
        &self,
        socket: std::net::UdpSocket,
        server: SocketAddr,
        query: &[u8],
    ) -> io::Result<Vec<u8>> {
        let socket = UdpSocket::from_std(socket)?;
        // The kernel drops what others send.
        socket.connect(server).await?;
        socket.send(query).await?;
        loop {
            socket.readable().await?;
            let mut scratch = self.scratch.borrow_mut();
            match socket.try_recv(&mut scratch) {
                Ok(length) if answers(query, &scratch[..length]) => {
                    return Ok(scratch[..length].to_vec());
                }
                // A late answer to somebody who had this port before.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

async fn ask_tcp(
    socket: tokio::net::TcpSocket,
    server: SocketAddr,
    query: &[u8],
) -> io::Result<Vec<u8>> {
    let mut stream = socket.connect(server).await?;
    stream.write_all(&framed(query)).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    if answers(query, &answer) {
        Ok(answer)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// A message with its length in front, as on a stream.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(message.len() + 2);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&message[..usize::from(length)]);
    bytes
}

/// Whether the bytes are an answer with the query's number.
fn answers(query: &[u8], answer: &[u8]) -> bool {
    answer.len() >= 12 && answer[..2] == query[..2] && answer[2] & 0x80 != 0
}

fn is_final(answer: &[u8]) -> bool {
    answer
        .get(3)
        .is_some_and(|byte| !TRY_NEXT.contains(&(byte & CODE_MASK)))
}

/// What [`Forwarder`] is shared as on its thread.
pub(super) type SharedForwarder = Rc<Forwarder>;

/// The search domains in force.
pub(super) fn search(forwarder: &Forwarder) -> Arc<super::resolv::ResolvConf> {
    forwarder.file.borrow_mut().current()
}
