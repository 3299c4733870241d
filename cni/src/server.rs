//! The agent's HTTP server on `cni.sock`: what the plugin asks.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use culvert_runtime::DrainWatch;
use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch};

use crate::agent::{Inbox, Message};
use crate::state::{Added, Event, Sandbox, Summary};
use crate::wire::{AddRequest, DelRequest, GcRequest, Reply};

/// A list of all sandboxes of a node is the longest request.
const BODY_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone)]
struct Shared {
    inbox: Inbox,
    summary: watch::Receiver<Summary>,
}

/// Opens the socket; a left-over one is replaced.
///
/// # Errors
/// When the path cannot be used.
pub fn listen(path: &Path) -> Result<UnixListener, io::Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the plugin until the agent stops.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: UnixListener,
    inbox: Inbox,
    summary: watch::Receiver<Summary>,
    drain: DrainWatch,
) -> Result<(), io::Error> {
    let router = Router::new()
        .route("/cmdadd", post(add))
        .route("/cmddel", post(del))
        .route("/cmdcheck", post(check))
        .route("/gc", post(gc))
        .route("/status", post(status))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Shared { inbox, summary });
    axum::serve(listener, router)
        .with_graceful_shutdown(async move {
            drain.started().await;
        })
        .await
}

type Answer = (StatusCode, Json<Reply>);

fn good(reply: Reply) -> Answer {
    (StatusCode::OK, Json(reply))
}

fn refused(error: String) -> Answer {
    let reply = Reply {
        error: Some(error),
        ..Reply::default()
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(reply))
}

async fn add(State(shared): State<Shared>, Json(request): Json<AddRequest>) -> Answer {
    let sandbox = Sandbox {
        id: request.container_id,
        uid: request.pod_uid.map(Into::into),
        namespace: request.pod_namespace,
        name: request.pod_name,
        netns: request.netns,
        ips: request.ips.into_iter().map(|ip| ip.address).collect(),
    };
    let (sender, receiver) = oneshot::channel();
    shared.inbox.send(Message::Add(sandbox, sender)).await;
    // The loop answers within its own deadline.
    match receiver.await {
        Ok(Ok(Added::Enrolled)) => good(Reply {
            enrolled: true,
            ..Reply::default()
        }),
        Ok(Ok(Added::NotEnrolled(reason))) => good(Reply {
            reason,
            ..Reply::default()
        }),
        Ok(Err(fault)) => refused(fault.to_string()),
        Err(_) => refused("the agent is stopping".to_owned()),
    }
}

async fn del(State(shared): State<Shared>, Json(request): Json<DelRequest>) -> Answer {
    let event = Event::Removed(request.container_id);
    shared.inbox.send(Message::Event(event)).await;
    good(Reply::default())
}

async fn check(State(shared): State<Shared>, Json(request): Json<DelRequest>) -> Answer {
    let (sender, receiver) = oneshot::channel();
    let message = Message::Check(request.container_id, sender);
    shared.inbox.send(message).await;
    match receiver.await {
        Ok(Ok(())) => good(Reply::default()),
        Ok(Err(error)) => refused(error),
        Err(_) => refused("the agent is stopping".to_owned()),
    }
}

async fn gc(State(shared): State<Shared>, Json(request): Json<GcRequest>) -> Answer {
    let event = Event::Retain(request.valid.into_iter().collect());
    shared.inbox.send(Message::Event(event)).await;
    good(Reply::default())
}

async fn status(State(shared): State<Shared>) -> Answer {
    let synchronized = shared.summary.borrow().synchronized;
    if synchronized {
        good(Reply::default())
    } else {
        refused("no node proxy is connected that knows all pods".to_owned())
    }
}
