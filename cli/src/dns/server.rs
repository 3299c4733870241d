//! Queries over UDP and TCP.

use std::net::SocketAddr;
use std::time::Duration;

use culvert_runtime::ConnectionTracker;
use hickory_proto::op::{Message, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

use super::zone::{Outcome, Zone, no_such_name};

/// Largest message over UDP without EDNS.
const PLAIN_BYTES: u16 = 512;
/// Largest answer over UDP: beyond it fragments get lost.
const UDP_BYTES_MAX: u16 = 1232;
/// Time for a server outside.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(3);
/// An idle TCP connection is closed.
const IDLE: Duration = Duration::from_secs(10);
/// TCP connections and forwarded queries at a time: more than a machine's pods make.
const OPEN_MAX: usize = 1024;

/// Answers queries.
#[derive(Debug, Clone)]
pub(super) struct Server {
    /// The zone as it is now.
    pub zone: watch::Receiver<Zone>,
    /// Name servers outside.
    pub forward: Vec<SocketAddr>,
}

/// How the query came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

impl Server {
    /// Serves datagrams for good.
    pub(super) async fn serve_udp(self, socket: UdpSocket) -> std::io::Result<()> {
        let socket = std::sync::Arc::new(socket);
        let tracker = ConnectionTracker::new(OPEN_MAX);
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            // An error belongs to an earlier answer that nobody took.
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                continue;
            };
            let query = buffer[..length].to_vec();
            let (server, socket) = (self.clone(), std::sync::Arc::clone(&socket));
            // Full: the client asks again.
            let _ = tracker.spawn(async move {
                if let Some(answer) = server.answer(&query, Transport::Udp).await {
                    let _ = socket.send_to(&answer, from).await;
                }
            });
        }
    }

    /// Serves streams for good.
    pub(super) async fn serve_tcp(self, listener: TcpListener) -> std::io::Result<()> {
        let tracker = ConnectionTracker::new(OPEN_MAX);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let server = self.clone();
                    let _ = tracker.spawn(async move { server.serve_stream(stream).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn serve_stream(&self, mut stream: TcpStream) {
        let exchange = async |stream: &mut TcpStream| -> Option<()> {
            let length = stream.read_u16().await.ok()?;
            let mut query = vec![0; usize::from(length)];
            stream.read_exact(&mut query).await.ok()?;
            let answer = self.answer(&query, Transport::Tcp).await?;
            stream
                .write_u16(u16::try_from(answer.len()).ok()?)
                .await
                .ok()?;
            stream.write_all(&answer).await.ok()
        };
        while let Ok(Some(())) = timeout(IDLE, exchange(&mut stream)).await {}
    }

    async fn answer(&self, bytes: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let query = Message::from_vec(bytes).ok()?;
        let outcome = self.zone.borrow().answer(&query);
        let reply = match outcome {
            Outcome::Reply(reply) => *reply,
            Outcome::Outside if self.forward.is_empty() => {
                no_such_name(&query, ResponseCode::NXDomain)
            }
            Outcome::Outside => match self.ask_outside(bytes, transport).await {
                Some(answer) => return Some(answer),
                None => no_such_name(&query, ResponseCode::ServFail),
            },
        };
        encode(&query, reply, transport)
    }

    async fn ask_outside(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        for server in &self.forward {
            let asked = match transport {
                Transport::Udp => timeout(FORWARD_TIMEOUT, ask_udp(*server, query)).await,
                Transport::Tcp => timeout(FORWARD_TIMEOUT, ask_tcp(*server, query)).await,
            };
            if let Ok(Ok(answer)) = asked {
                return Some(answer);
            }
        }
        None
    }
}

fn encode(query: &Message, mut reply: Message, transport: Transport) -> Option<Vec<u8>> {
    let bytes = reply.to_vec().ok()?;
    let room = match (transport, &query.edns) {
        (Transport::Tcp, _) => u16::MAX,
        (Transport::Udp, Some(edns)) => edns.max_payload().clamp(PLAIN_BYTES, UDP_BYTES_MAX),
        (Transport::Udp, None) => PLAIN_BYTES,
    };
    if bytes.len() <= usize::from(room) {
        return Some(bytes);
    }
    reply.additionals.clear();
    let bytes = reply.to_vec().ok()?;
    if bytes.len() <= usize::from(room) {
        return Some(bytes);
    }
    reply.truncate().to_vec().ok()
}

async fn ask_udp(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: SocketAddr = if server.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; usize::from(u16::MAX)];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

async fn ask_tcp(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream
        .write_u16(u16::try_from(query.len()).unwrap_or(u16::MAX))
        .await?;
    stream.write_all(query).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}
