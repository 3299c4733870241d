//! The agent's second socket: duplicates of the listening sockets, so that
//! connections wait while no proxy runs. A stock agent has none, and all works then
//! but for that.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use culvert_api::proto::keeper;
use culvert_netns::{AsyncSeqPacket, SeqPacketError};
use prost::Message;
use tokio::time::timeout;

use super::packet::PACKET_BYTES_MAX;
use super::sockets::{KeptSocket, SocketKind};

/// The agent only stores or duplicates descriptors; a pod's start waits for it.
const DEADLINE: Duration = Duration::from_secs(1);

/// A client of the agent's keeper.
#[derive(Debug, Clone)]
pub struct Keeper {
    path: PathBuf,
}

/// Why the keeper did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The socket.
    #[error("cannot talk to the socket keeper")]
    Socket(#[source] SeqPacketError),
    /// It closed the connection.
    #[error("socket keeper closed the connection")]
    Closed,
    /// It took too long.
    #[error("socket keeper has not answered within {DEADLINE:?}")]
    Deadline,
    /// Not an answer.
    #[error("answer of the socket keeper is not readable")]
    Undecodable(#[source] prost::DecodeError),
    /// It refused.
    #[error("socket keeper refused: {0}")]
    Refused(String),
    /// Descriptors and their description differ.
    #[error("socket keeper sent {descriptors} descriptors for {described} sockets")]
    Mismatch {
        /// How many came.
        descriptors: usize,
        /// How many are described.
        described: usize,
    },
}

impl Keeper {
    /// The keeper at a path.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The sockets kept for a pod, none if it is not known. They stay kept.
    ///
    /// # Errors
    /// When the keeper cannot be reached or answers nonsense.
    ///
    /// # Cancel safety
    /// Nothing is lost: the agent keeps its own.
    pub async fn take(&self, uid: &str) -> Result<Vec<KeptSocket>, KeeperError> {
        let take = keeper::Take {
            uid: uid.to_owned(),
        };
        self.ask(keeper::request::Payload::Take(take), &[]).await
    }

    /// Gives duplicates of a pod's sockets; they replace what was kept for it.
    ///
    /// # Errors
    /// When the keeper cannot be reached or refuses.
    pub async fn put(&self, uid: &str, sockets: &[KeptSocket]) -> Result<(), KeeperError> {
        let described = sockets.iter().map(|socket| keeper::Socket {
            port: u32::from(socket.kind.port),
            udp: socket.kind.udp,
            ipv6: socket.kind.ipv6,
        });
        let put = keeper::Put {
            uid: uid.to_owned(),
            sockets: described.collect(),
        };
        self.ask(keeper::request::Payload::Put(put), sockets)
            .await
            .map(drop)
    }

    async fn ask(
        &self,
        payload: keeper::request::Payload,
        sockets: &[KeptSocket],
    ) -> Result<Vec<KeptSocket>, KeeperError> {
        let request = keeper::Request {
            payload: Some(payload),
        }
        .encode_to_vec();
        let exchange = async {
            let connection = AsyncSeqPacket::connect(&self.path).map_err(KeeperError::Socket)?;
            let fds: Vec<_> = sockets.iter().map(|socket| socket.fd.as_fd()).collect();
            connection
                .send(&request, &fds)
                .await
                .map_err(KeeperError::Socket)?;
            connection
                .receive(PACKET_BYTES_MAX)
                .await
                .map_err(KeeperError::Socket)
        };
        let packet = timeout(DEADLINE, exchange)
            .await
            .map_err(|_| KeeperError::Deadline)??
            .ok_or(KeeperError::Closed)?;
        let answer = keeper::Answer::decode(&*packet.bytes).map_err(KeeperError::Undecodable)?;
        if !answer.error.is_empty() {
            return Err(KeeperError::Refused(answer.error));
        }
        let (descriptors, described) = (packet.fds.len(), answer.sockets.len());
        if descriptors != described {
            return Err(KeeperError::Mismatch {
                descriptors,
                described,
            });
        }
        let kind = |socket: &keeper::Socket| SocketKind {
            // 0 is no port of ours, so that nonsense is sorted out later.
            port: u16::try_from(socket.port).unwrap_or_default(),
            udp: socket.udp,
            ipv6: socket.ipv6,
        };
        Ok(answer
            .sockets
            .iter()
            .zip(packet.fds)
            .map(|(socket, fd)| KeptSocket {
                kind: kind(socket),
                fd,
            })
            .collect())
    }
}
