//! What discovery holds, on the admin port.

use std::sync::Arc;

use axum::{Json, Router, extract::State, routing::get};
use serde_json::{Value, json};

use crate::{engine::Overview, publish::ViewPublisher};

/// What the pages are made from.
#[derive(Clone, Debug)]
pub struct Pages {
    /// What is published and to whom.
    pub publisher: Arc<ViewPublisher>,
    /// What was compiled last.
    pub overview: tokio::sync::watch::Receiver<Arc<Overview>>,
}

/// `GET /config_dump`: objects, resources, statuses and faults; `GET /nodes`:
/// who is connected and what they refused.
pub fn routes(pages: Pages) -> Router {
    Router::new()
        .route("/config_dump", get(config_dump))
        .route("/nodes", get(nodes))
        .with_state(pages)
}

async fn config_dump(State(pages): State<Pages>) -> Json<Value> {
    let overview = pages.overview.borrow().clone();
    Json(overview.to_json())
}

async fn nodes(State(pages): State<Pages>) -> Json<Value> {
    let connected = pages.publisher.connected_nodes().into_iter();
    let connected: Vec<_> = connected
        .map(|(id, node)| json!({"id": id, "node": node}))
        .collect();
    let rejections = pages.publisher.rejections().into_iter();
    let rejections: Vec<_> = rejections
        .map(|((node, resource), reason)| json!({"node": node, "resource": resource, "reason": reason}))
        .collect();
    Json(json!({"connected": connected, "rejections": rejections}))
}
