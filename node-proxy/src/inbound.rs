//! A connection to a pod: through a tunnel from an authenticated peer, or plain.
//! Judged by the pod's policies, then connected to its application with the
//! client's address as the source.

mod plain;
mod proxy_header;
mod stream;
mod target;
mod tunnel;

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_model::{Denial, DryRunMatch, Snapshot};
use culvert_netns::{ConnectOptions, set_keepalive};
use culvert_runtime::chain;
use http::StatusCode;
use tokio::net::TcpStream;

use crate::connections::{Check, Connections, End, Facts, OpenConnection};
use crate::pods::{PROXY_MARK, Pod};
use crate::refusal::{Category, Refusal};
use crate::socket::{DialError, KEEPALIVE, dial};
use crate::traffic::Flag;
use crate::workers::Worker;

pub(crate) use plain::serve as serve_plain;
pub(crate) use tunnel::serve as serve_tunnel;

/// For the connection to an application of this very machine.
const APPLICATION_LIMIT: Duration = Duration::from_secs(5);
/// On the sockets that carry a client's address: the application's answers are
/// turned back by it (see the redirect rules of the CNI agent).
const SPOOFED_MARK: u32 = 0x111;

/// Why a connection to a pod is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// It is not a CONNECT that can be served.
    #[error("bad request")]
    BadRequest(#[source] culvert_hbone::head::HeadError),
    /// The authority is of somebody else.
    #[error("authority {0} is not of this pod")]
    NotOurs(SocketAddr),
    /// A port of the proxy itself.
    #[error("the port is one of the proxy's own")]
    OwnPort,
    /// The host name or its port is not known.
    #[error("authority {0} is not known")]
    UnknownHost(String),
    /// Discovery has not said anything of the pod.
    #[error("the pod's own record is not known")]
    UnknownWorkload,
    /// A policy.
    #[error("{0}")]
    Denied(Box<Denial>),
    /// The application.
    #[error("the application cannot be reached")]
    Application(#[source] DialError),
}

impl Refused {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::NotOurs(_) => StatusCode::BAD_REQUEST,
            Self::Denied(_) => StatusCode::UNAUTHORIZED,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn flag(&self) -> Flag {
        match self {
            Self::Denied(_) => Flag::Deny,
            Self::Application(error) if error.is_exhausted() => Flag::Overload,
            Self::Application(_) => Flag::Connect,
            _ => Flag::NoRoute,
        }
    }

    pub(crate) fn category(&self) -> Category {
        match self {
            Self::Denied(_) => Category::Policy,
            _ => Category::Unavailable,
        }
    }
}

/// Closes the books of a connection that is refused: log, metrics, and what
/// the peer is told.
pub(crate) fn refuse(worker: &Worker, facts: &Facts, why: &Refused) -> (StatusCode, Refusal) {
    let refusal = Refusal {
        category: why.category(),
        id: worker.random_id(),
    };
    if let Refused::Denied(denial) = why {
        worker.connections.denied(facts, denial);
    }
    let text = chain(why).to_string();
    worker
        .connections
        .failed(facts, &End::refused(why.flag(), refusal.id, text));
    (why.status(), refusal)
}

/// Opens the books of an admitted connection, judging once more when the
/// snapshot it was admitted on has been replaced meanwhile.
pub(crate) fn open(
    worker: &Worker,
    decided_on: &Arc<Snapshot>,
    facts: Facts,
    check: Check,
) -> Result<OpenConnection, Box<(Facts, Denial)>> {
    let now = worker.shared.parts.state.snapshot();
    if !Arc::ptr_eq(&now, decided_on)
        && let Some(denial) = check.denial(&now)
    {
        return Err(Box::new((facts, denial)));
    }
    Ok(Connections::open(&worker.connections, facts, check))
}

/// Connects to a pod's application. It sees the client's address, unless client
/// and server are one pod, or the families differ, or the kernel does not let us.
///
/// # Cancel safety
/// The socket is closed when the future is dropped.
pub(crate) async fn dial_application(
    worker: &Rc<Worker>,
    pod: &Pod,
    to: SocketAddr,
    client: IpAddr,
) -> Result<TcpStream, DialError> {
    let home = &worker.shared.home;
    let own = ConnectOptions {
        source: None,
        mark: Some(PROXY_MARK),
    };
    let spoofed = ConnectOptions {
        source: Some(client),
        mark: Some(SPOOFED_MARK),
    };
    let spoof = client != to.ip() && client.is_ipv4() == to.is_ipv4() && !client.is_loopback();
    let first = if spoof { &spoofed } else { &own };
    let connected = match dial(home, &pod.netns, to, first, APPLICATION_LIMIT).await {
        Err(DialError::Socket(error)) if spoof && !error.is_exhausted() => {
            tracing::warn!(
                ?pod,
                error = chain(&error).to_string(),
                "client address not kept"
            );
            worker.shared.parts.traffic.totals().unspoofed();
            dial(home, &pod.netns, to, &own, APPLICATION_LIMIT).await?
        }
        connected => connected?,
    };
    if let Err(error) = set_keepalive(&connected, &KEEPALIVE) {
        tracing::debug!(%error, "a connection has no keepalive");
    }
    Ok(connected)
}

/// Says what policies would have done if they were enforced.
pub(crate) fn note_dry_run(facts: &Facts, matches: &[DryRunMatch]) {
    for one in matches {
        tracing::info!(
            policy = %one.policy,
            action = ?one.action,
            rule = one.rule,
            audit = one.origin.as_ref().is_some_and(|origin| origin.audit),
            source = %facts.client,
            source_identity = facts.source_identity.as_ref().map(tracing::field::display),
            destination = %facts.target(),
            "a policy in dry run matched"
        );
    }
}

#[cfg(test)]
pub(crate) fn stream_bytes() -> usize {
    fn bytes<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }
    bytes(stream::serve)
}
