//! One stream of a tunnel: one connection to the pod's application.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use culvert_hbone::headers::{Forwarded, TraceParent, decode_keepalive};
use culvert_hbone::server::Incoming;
use culvert_hbone::{TunnelStream, relay};
use culvert_identity::Identity;
use culvert_model::{Snapshot, Verdict, Workload};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::{Refused, dial_application, note_dry_run, open, proxy_header, refuse, target};
use crate::connections::{Check, Direction, End, Facts, Ingress, OpenConnection};
use crate::keepalive;
use crate::outbound::{closed_end, relay_end};
use crate::pods::Pod;
use crate::socket::AbortOnDrop;
use crate::state::workload_in;
use crate::traffic::{Flag, Security};
use crate::workers::Worker;

/// The other end of a tunnel.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) pod: Arc<Pod>,
    pub(super) identity: Identity,
    pub(super) client: SocketAddr,
    /// The pod's own address, to which the tunnel came.
    pub(super) local: SocketAddr,
}

/// An application that is connected, and the peer's request that waits.
struct Admitted {
    socket: AbortOnDrop,
    open: OpenConnection,
}

pub(super) async fn serve(worker: Rc<Worker>, peer: Rc<Peer>, mut incoming: Incoming) {
    // Boxed, so that what only the set-up needs is gone while bytes flow.
    let admitted = Box::pin(admit(&worker, &peer, &incoming)).await;
    let Admitted { mut socket, open } = match admitted {
        Ok(admitted) => admitted,
        Err((facts, why)) => {
            let (status, refusal) = refuse(&worker, &facts, &why);
            incoming.refuse(status, Some(refusal.header()));
            return;
        }
    };
    if poll_fn(|cx| Poll::Ready(incoming.poll_abandoned(cx).is_ready())).await {
        open.end(End::failed(Flag::None, "the client gave up"));
        return;
    }
    let baggage = open.record.facts.destination.as_deref();
    let baggage = baggage.and_then(|workload| crate::baggage::of(workload).encode());
    let end = match incoming.accept(baggage) {
        Ok(stream) => carry(&mut socket, stream, &open).await,
        Err(error) => End::failed(Flag::None, error.to_string()),
    };
    if end.error.is_none() {
        socket.finish();
    }
    open.end(end);
}

async fn carry(socket: &mut AbortOnDrop, stream: TunnelStream, open: &OpenConnection) -> End {
    let record = &*open.record;
    tokio::select! {
        biased;
        reason = record.signal.closed() => closed_end(&reason),
        outcome = relay::tunnel(&mut **socket, stream, record) => relay_end(outcome),
    }
}

fn facts(peer: &Peer, incoming: &Incoming) -> Facts {
    Facts {
        direction: Direction::Inbound,
        pod: Arc::clone(&peer.pod),
        security: Security::MutualTls,
        client: peer.client,
        hop: peer.local,
        authority: None,
        source: None,
        destination: None,
        service: None,
        source_identity: Some(peer.identity.clone()),
        started: Instant::now(),
        trace: TraceParent::decode(incoming.headers()).map(|parent| parent.trace),
    }
}

async fn admit(
    worker: &Rc<Worker>,
    peer: &Peer,
    incoming: &Incoming,
) -> Result<Admitted, (Facts, Refused)> {
    let mut facts = facts(peer, incoming);
    let state = &worker.shared.parts.state;
    let authority = match incoming.authority() {
        Ok(authority) => authority,
        Err(error) => return Err((facts, Refused::BadRequest(error))),
    };
    let waited = state.wait_workload(&peer.pod).await;
    let snapshot = state.snapshot();
    let Some(workload) = workload_in(&snapshot, &peer.pod).filter(|_| waited.is_ok()) else {
        return Err((facts, Refused::UnknownWorkload));
    };
    know(&mut facts, &snapshot, workload, peer);
    let target = match target::resolve(&snapshot, workload, peer.local.ip(), &authority) {
        Ok(target) => target,
        Err(refused) => return Err((facts, refused)),
    };
    facts.authority = Some(target.named.unwrap_or(target.address));
    let forwarded = Forwarded::decode(incoming.headers());
    facts.service = target::service(
        &snapshot,
        workload,
        forwarded.host.as_deref(),
        target.address.port(),
    );
    let ingress = Ingress {
        pod: Arc::clone(&peer.pod),
        source_ip: peer.client.ip(),
        source_identity: Some(peer.identity.clone()),
        destination: target.address,
    };
    match ingress.verdict(&snapshot, workload) {
        Verdict::Allow { dry_run, .. } => note_dry_run(&facts, &dry_run),
        Verdict::Deny(denial) => return Err((facts, Refused::Denied(Box::new(denial)))),
    }
    let to = target.connect_to();
    let stream = match dial_application(worker, &peer.pod, to, peer.client.ip()).await {
        Ok(stream) => stream,
        Err(error) => return Err((facts, Refused::Application(error))),
    };
    keepalive::mirror(&stream, decode_keepalive(incoming.headers()));
    let mut socket = AbortOnDrop::new(stream);
    if let Some(header) = target.proxy_header(peer.client, &peer.identity) {
        let written = socket.write_all(&proxy_header::encode(&header)).await;
        if let Err(source) = written {
            let error = crate::socket::DialError::Connect { to, source };
            return Err((facts, Refused::Application(error)));
        }
    }
    let check = Check {
        ingress: Some(ingress),
        egress: None,
    };
    match open(worker, &snapshot, facts, check) {
        Ok(open) => Ok(Admitted { socket, open }),
        Err(denied) => {
            let (facts, denial) = *denied;
            Err((facts, Refused::Denied(Box::new(denial))))
        }
    }
}

/// Adds what the snapshot knows of both ends. The source counts only if its
/// record has the identity that the handshake has proven.
fn know(facts: &mut Facts, snapshot: &Snapshot, workload: &Arc<Workload>, peer: &Peer) {
    facts.destination = Some(Arc::clone(workload));
    let at_address = snapshot.workloads_at(peer.client.ip());
    facts.source = at_address
        .iter()
        .find(|one| one.identity == peer.identity)
        .cloned();
}
