//! A tunnel that a peer opens to a pod of ours: authenticated, then one task for
//! each stream.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_hbone::{ReadAhead, Settings, TunnelError, server};
use culvert_identity::Identity;
use culvert_netns::canonical;
use culvert_tls::{fault::classify_io, server_config, verified_peer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::stream::{self, Peer};
use crate::pods::Pod;
use crate::pods::session::StopMode;
use crate::redirect::Accepted;
use crate::traffic::{Reporter, Shed};
use crate::workers::Worker;

/// For a handshake: a peer has all that it needs at hand.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Plaintext that TLS takes before it is written: two full frames.
const TLS_BUFFER_BYTES: usize = 160 * 1024;

/// Serves a tunnel from its acceptance to its end.
pub(crate) async fn serve(worker: Rc<Worker>, pod: Arc<Pod>, accepted: Accepted) {
    let client = accepted.client;
    let Ok(local) = accepted.stream.local_addr().map(canonical) else {
        return;
    };
    let Some((tls, identity)) = Box::pin(authenticate(&worker, &pod, accepted)).await else {
        return;
    };
    let settings = Settings::server();
    let starting = server::start(tls, &settings, &worker.windows);
    let tunnel = match timeout(HANDSHAKE_LIMIT, starting).await {
        Ok(Ok(tunnel)) => tunnel,
        Ok(Err(error)) => {
            tracing::info!(%client, peer = %identity, error = chain(&error), "no HTTP/2 on a tunnel");
            return;
        }
        Err(_) => {
            tracing::info!(%client, peer = %identity, "no HTTP/2 on a tunnel in time");
            return;
        }
    };
    let peer = Rc::new(Peer {
        pod,
        identity,
        client,
        local,
    });
    let counted = Rc::clone(&worker);
    let _counted = counted
        .shared
        .parts
        .traffic
        .totals()
        .tunnel(Reporter::Destination);
    if let Err(error) = streams(&worker, &peer, tunnel).await {
        tracing::debug!(%client, peer = %peer.identity, error = chain(&error), "tunnel ended");
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    culvert_runtime::chain(error).to_string()
}

async fn authenticate(
    worker: &Rc<Worker>,
    pod: &Arc<Pod>,
    accepted: Accepted,
) -> Option<(TlsStream<ReadAhead<TcpStream>>, Identity)> {
    let client = accepted.client;
    let failed = |fault: culvert_tls::Fault, error: String| {
        worker
            .shared
            .parts
            .traffic
            .totals()
            .handshake_failed(Reporter::Destination, fault);
        tracing::info!(?pod, %client, reason = fault.reason(), error, "tunnel refused");
    };
    let certificates = &worker.shared.parts.certificates;
    let certificate = match certificates.certificate(&pod.identity).await {
        Ok(certificate) => certificate,
        Err(error) => {
            tracing::warn!(?pod, %client, error = chain(&error), "tunnel refused");
            return None;
        }
    };
    let acceptor = TlsAcceptor::from(server_config(&certificate));
    let accepting = acceptor.accept_with(ReadAhead::new(accepted.stream), |tls| {
        tls.set_buffer_limit(Some(TLS_BUFFER_BYTES));
    });
    let tls = match timeout(HANDSHAKE_LIMIT, accepting).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => {
            failed(classify_io(&error), chain(&error));
            return None;
        }
        Err(_) => {
            failed(
                culvert_tls::Fault::TimedOut,
                "no handshake in time".to_owned(),
            );
            return None;
        }
    };
    match verified_peer(tls.get_ref().1) {
        Ok(identity) => Some((tls, identity)),
        Err(fault) => {
            failed(fault, fault.to_string());
            None
        }
    }
}

async fn streams(
    worker: &Rc<Worker>,
    peer: &Rc<Peer>,
    mut tunnel: server::Tunnel<TlsStream<ReadAhead<TcpStream>>>,
) -> Result<(), TunnelError> {
    let noted = worker.tunnels.accepted(&peer.pod.uid);
    let mut order = worker.is_draining().then_some(StopMode::Drain);
    if order.is_some() {
        tunnel.drain();
    }
    loop {
        let next = tokio::select! {
            biased;
            next = tunnel.next() => next,
            mode = noted.ordered(order) => {
                if mode == StopMode::Now {
                    return Ok(());
                }
                order = Some(mode);
                tunnel.drain();
                continue;
            }
        };
        let Some(incoming) = next else { return Ok(()) };
        let incoming = incoming?;
        let (owner, of) = (Rc::clone(worker), Rc::clone(peer));
        let serving = async move { stream::serve(owner, of, incoming).await };
        if worker.tracker.spawn_local(serving).is_err() {
            // The dropped request resets its stream.
            worker.shared.parts.traffic.totals().shed(Shed::Connections);
        }
    }
}
