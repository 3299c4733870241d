//! What can go wrong with a tunnel and with the opening of a stream.

use crate::head::HeadError;
use std::io;

/// Why a whole tunnel ended.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The HTTP/2 preface or settings failed.
    #[error("HTTP/2 handshake failed")]
    Handshake(#[source] h2::Error),
    /// The HTTP/2 connection failed later.
    #[error("HTTP/2 connection failed")]
    Connection(#[source] h2::Error),
    /// Bytes could not be written.
    #[error("tunnel could not be written")]
    Write(#[source] io::Error),
    /// No byte came back within the time that a PING may take.
    #[error("peer of the tunnel does not answer PING")]
    Unresponsive,
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The destination answered with another status than 200.
    #[error("destination refused CONNECT with status {status}")]
    Refused {
        /// The status.
        status: u16,
        /// Our reason header, when the destination is one of ours.
        reason: Option<String>,
    },
    /// The destination did not look at the request: trying again is safe.
    #[error("tunnel was closing and did not process the request")]
    NotProcessed(#[source] h2::Error),
    /// The stream was reset before an answer.
    #[error("stream was reset before an answer")]
    Reset(#[source] h2::Error),
    /// The tunnel failed before an answer.
    #[error("tunnel failed before an answer")]
    Tunnel(#[source] h2::Error),
    /// The tunnel takes no more streams.
    #[error("tunnel takes no more streams")]
    Closed,
    /// The head cannot be encoded.
    #[error("head of the CONNECT request is not valid")]
    Head(#[source] HeadError),
}

impl OpenError {
    pub(crate) fn from_h2(error: h2::Error) -> Self {
        if error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM) {
            Self::NotProcessed(error)
        } else if error.is_reset() {
            Self::Reset(error)
        } else {
            Self::Tunnel(error)
        }
    }

    /// Whether the request certainly had no effect.
    pub fn is_retry_safe(&self) -> bool {
        matches!(self, Self::NotProcessed(_) | Self::Closed)
    }
}
