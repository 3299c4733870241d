//! What the agent knows, on its admin port.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::{Router, routing::get};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::agent::{Inbox, Message};

#[derive(Debug, Clone)]
struct Pages {
    inbox: Inbox,
    config: Value,
}

/// `GET /config_dump`: the configuration, and every pod of the node with what was
/// done for it and why it is not enrolled.
pub fn routes(inbox: Inbox, config: Value) -> Router {
    Router::new()
        .route("/config_dump", get(config_dump))
        .with_state(Pages { inbox, config })
}

async fn config_dump(State(pages): State<Pages>) -> Response {
    let (sender, view) = oneshot::channel();
    pages.inbox.send(Message::View(sender)).await;
    match view.await {
        Ok(view) => Json(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "config": pages.config,
            "agent": view,
        }))
        .into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping\n").into_response(),
    }
}
