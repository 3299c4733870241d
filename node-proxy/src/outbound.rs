//! A connection that a program of a pod makes: decided on a snapshot, then
//! carried through a tunnel, handed over to a pod of this node, or passed on
//! plainly to what is not in the mesh. Never plainly to what is.

mod attempt;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use culvert_hbone::TunnelStream;
use culvert_hbone::relay::{self, DirectError, RelayError};
use culvert_runtime::chain;
use tokio::time::Instant;

use crate::connections::{CloseReason, Direction, End, Facts, OpenConnection};
use crate::endpoints::Outstanding;
use crate::local;
use crate::pods::{OUTBOUND_PORT, Pod};
use crate::redirect::{self, Accepted};
use crate::refusal::{self, Category, Refusal};
use crate::socket::AbortOnDrop;
use crate::traffic::{Flag, Security};
use crate::workers::Worker;

/// The far leg of a connection.
#[derive(Debug)]
pub(crate) enum Leg {
    /// A stream of a tunnel.
    Tunnel(TunnelStream),
    /// A plain connection.
    Direct(AbortOnDrop),
    /// A pod of this node, with the books of its side.
    Local(AbortOnDrop, OpenConnection),
}

/// A connection that is open at both ends.
#[derive(Debug)]
struct Connected {
    leg: Leg,
    open: OpenConnection,
    _outstanding: Option<Outstanding>,
}

/// Serves a redirected connection from its acceptance to its end.
pub(crate) async fn serve(worker: Rc<Worker>, pod: Arc<Pod>, accepted: Accepted) {
    let Accepted { stream, client } = accepted;
    let mut socket = AbortOnDrop::new(stream);
    let destination = match redirect::destination(&socket, OUTBOUND_PORT) {
        Ok(destination) => destination,
        Err(error) => {
            tracing::debug!(?pod, %error, "an outbound connection has no destination");
            return;
        }
    };
    // Boxed, so that what only the set-up needs is gone while bytes flow.
    let connecting = attempt::connect(&worker, &pod, client, destination);
    let Connected {
        leg,
        open,
        _outstanding,
    } = match Box::pin(connecting).await {
        Ok(connected) => connected,
        Err(refusal) => return Box::pin(refusal::answer(socket, refusal)).await,
    };
    match leg {
        Leg::Tunnel(stream) => {
            let end = through_tunnel(&mut socket, stream, &open).await;
            close(socket, open, end);
        }
        Leg::Direct(mut far) => {
            let end = directly(&mut socket, &mut far, &open).await;
            if end.error.is_none() {
                far.finish();
            }
            close(socket, open, end);
        }
        Leg::Local(far, inbound) => local::relay(socket, far, open, inbound).await,
    }
}

fn close(socket: AbortOnDrop, open: OpenConnection, end: End) {
    if end.error.is_none() {
        socket.finish();
    }
    open.end(end);
}

async fn through_tunnel(
    socket: &mut AbortOnDrop,
    stream: TunnelStream,
    open: &OpenConnection,
) -> End {
    let record = &*open.record;
    tokio::select! {
        biased;
        reason = record.signal.closed() => closed_end(&reason),
        outcome = relay::tunnel(&mut **socket, stream, record) => relay_end(outcome),
    }
}

async fn directly(near: &mut AbortOnDrop, far: &mut AbortOnDrop, open: &OpenConnection) -> End {
    let record = &*open.record;
    tokio::select! {
        biased;
        reason = record.signal.closed() => closed_end(&reason),
        outcome = relay::between(&mut **near, &mut **far, record) => direct_end(outcome),
    }
}

pub(crate) fn closed_end(reason: &CloseReason) -> End {
    let flag = match reason {
        CloseReason::Denied(_) => Flag::Deny,
        CloseReason::PodGone => Flag::None,
    };
    End::failed(flag, reason.text())
}

pub(crate) fn relay_end(outcome: Result<(), RelayError>) -> End {
    match outcome {
        Ok(()) => End::complete(),
        Err(error) => End::failed(Flag::None, chain(&error).to_string()),
    }
}

pub(crate) fn direct_end(outcome: Result<(), DirectError>) -> End {
    match outcome {
        Ok(()) => End::complete(),
        Err(error) => End::failed(Flag::None, chain(&error).to_string()),
    }
}

/// Facts of a connection of which nothing but the addresses is known.
fn bare_facts(pod: &Arc<Pod>, client: SocketAddr, destination: SocketAddr) -> Facts {
    Facts {
        direction: Direction::Outbound,
        pod: Arc::clone(pod),
        security: Security::Plain,
        client,
        hop: destination,
        authority: None,
        source: None,
        destination: None,
        service: None,
        source_identity: None,
        started: Instant::now(),
        trace: None,
    }
}

/// Closes the books of a connection that was never open.
fn refuse(worker: &Worker, facts: &Facts, category: Category, end: End) -> Refusal {
    let id = end.refusal.unwrap_or_else(|| worker.random_id());
    let end = End {
        refusal: Some(id),
        ..end
    };
    worker.connections.failed(facts, &end);
    Refusal { category, id }
}
