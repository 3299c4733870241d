//! Why the far leg of an outbound connection could not be made, and what the
//! client and the metrics are told.

use std::io;

use culvert_hbone::{OpenError, TunnelError};

use crate::certs::CertificateUnavailable;
use crate::refusal::Category;
use crate::socket::DialError;
use crate::traffic::Flag;

/// The far leg could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LegError {
    /// We have nothing to show.
    #[error("no certificate for the tunnel")]
    Certificate(#[source] CertificateUnavailable),
    /// No TCP connection.
    #[error("no connection to the next hop")]
    Dial(#[source] DialError),
    /// The handshake failed at our end.
    #[error("handshake with the next hop failed: {0}")]
    Handshake(culvert_tls::Fault, #[source] io::Error),
    /// The other end ended the handshake.
    #[error("the next hop refused the handshake")]
    Alert(#[source] h2::Error),
    /// No HTTP/2.
    #[error("the next hop does not speak HTTP/2")]
    Http2(#[source] TunnelError),
    /// The stream failed.
    #[error("no stream through the tunnel")]
    Open(#[source] OpenError),
    /// The destination refused.
    #[error("the destination refused with status {status}{}", .reason.as_deref().map(|r| format!(" ({r})")).unwrap_or_default())]
    Refused {
        /// The status.
        status: u16,
        /// Category and id, from one of ours.
        reason: Option<String>,
    },
    /// No answer.
    #[error("the next hop did not answer in time")]
    AnswerTimedOut,
    /// We have no room.
    #[error("too many tunnels")]
    Overload,
}

impl LegError {
    /// Whether the destination said no by policy.
    pub(crate) fn is_denial(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: 401 | 403,
                ..
            }
        )
    }

    /// Whether another endpoint may do better.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status >= 500,
            other => other.blames_endpoint(),
        }
    }

    /// Whether nobody took the connection: over another way to the same
    /// application somebody may.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Dial(_) | Self::Refused { status: 503, .. })
    }

    pub(crate) fn flag(&self) -> Flag {
        match self {
            Self::Certificate(_) => Flag::IdentityError,
            Self::Dial(DialError::TimedOut { .. }) => Flag::NetworkPolicy,
            Self::Handshake(..) | Self::Alert(_) => Flag::TlsFailure,
            Self::Http2(_) => Flag::H2HandshakeFailure,
            Self::Overload => Flag::Overload,
            error if error.is_denial() => Flag::Deny,
            _ => Flag::Connect,
        }
    }

    pub(crate) fn category(&self) -> Category {
        if self.is_denial() {
            Category::Policy
        } else {
            Category::Unavailable
        }
    }

    /// The id that the destination gave its refusal.
    pub(crate) fn refusal_id(&self) -> Option<u64> {
        let Self::Refused {
            reason: Some(reason),
            ..
        } = self
        else {
            return None;
        };
        let (_, id) = reason.split_once("id=")?;
        u64::from_str_radix(id.trim(), 16).ok()
    }
}
