//! The engine's API: JSON over a Unix socket, for the command line of the same
//! person (the socket is for root alone).

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::components::Statuses;
use super::kubelet::Context;
use super::object::{Key, Object, is_terminating, set, uid};
use super::source::Findings;
use super::summary::{Mesh, Missing, missing};
use super::world::Action;

/// What the API answers from.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    /// The kubelet's context.
    pub context: Arc<Context>,
    /// States of the mesh's programs.
    pub statuses: watch::Receiver<Statuses>,
    /// What was found in the directory.
    pub findings: watch::Receiver<Findings>,
}

/// The engine's state as a whole.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Overview {
    /// Name of the mesh.
    pub mesh: String,
    /// What was asked for.
    pub settings: super::settings::Settings,
    /// The mesh's programs.
    pub components: Statuses,
    /// What was found in the directory.
    pub findings: Findings,
    /// What is not up yet.
    pub missing: Vec<Missing>,
    /// How many pods there are and are ready.
    pub pods: (usize, usize),
}

/// Which objects to list.
#[derive(Debug, Deserialize)]
pub(crate) struct Filter {
    kind: String,
    namespace: Option<String>,
}

/// How to delete.
#[derive(Debug, Deserialize)]
pub(crate) struct Deletion {
    grace: Option<u64>,
}

/// How many replicas.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Scale {
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Wanted replicas.
    pub replicas: u64,
}

/// The routes.
pub(crate) fn router(api: Api) -> Router {
    Router::new()
        .route("/status", get(overview))
        .route("/kinds", get(kinds))
        .route("/objects", get(objects))
        .route("/objects/{kind}/{namespace}/{name}", delete(remove))
        .route("/scale", post(scale))
        .with_state(api)
}

async fn overview(State(api): State<Api>) -> Json<Overview> {
    let world = api.context.store.snapshot();
    let pods: Vec<_> = world
        .of_kind("Pod")
        .filter(|pod| !is_terminating(pod))
        .collect();
    let good = |pod: &&&Object| {
        super::object::is_pod_ready(pod) || super::object::phase(pod) == "Succeeded"
    };
    let mesh = if api.context.settings.mesh_enabled {
        Mesh::Enabled
    } else {
        Mesh::Absent
    };
    Json(Overview {
        mesh: api.context.state.mesh().to_owned(),
        settings: api.context.settings.clone(),
        components: api.statuses.borrow().clone(),
        findings: api.findings.borrow().clone(),
        missing: missing(&world, mesh, SystemTime::now()),
        pods: (pods.len(), pods.iter().filter(good).count()),
    })
}

/// Kinds of which there is an object.
async fn kinds(State(api): State<Api>) -> Json<Vec<String>> {
    let world = api.context.store.snapshot();
    let mut kinds: Vec<_> = world.iter().map(|(key, _)| key.kind.clone()).collect();
    kinds.dedup();
    Json(kinds)
}

async fn objects(State(api): State<Api>, Query(filter): Query<Filter>) -> Json<Vec<Value>> {
    let world = api.context.store.snapshot();
    let inside = |object: &&Object| {
        filter
            .namespace
            .as_deref()
            .is_none_or(|wanted| super::object::namespace(object) == wanted)
    };
    let all = world.of_kind(&filter.kind).filter(inside);
    Json(all.map(|object| with_status(&api, object)).collect())
}

/// An object with the status that discovery wrote about it.
fn with_status(api: &Api, object: &Object) -> Value {
    let mut merged = Value::clone(object);
    let file = api.context.state.status().join(Key::of(object).file());
    let written = std::fs::read(file)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    if let Some(Value::Object(fields)) = written.as_ref().and_then(|patch| patch.get("status")) {
        for (key, value) in fields {
            set(&mut merged, &["status", key], value.clone());
        }
    }
    merged
}

async fn remove(
    State(api): State<Api>,
    Path((kind, namespace, name)): Path<(String, String, String)>,
    Query(deletion): Query<Deletion>,
) -> Response {
    let namespace = if namespace == "_" {
        String::new()
    } else {
        namespace
    };
    let key = Key {
        kind,
        namespace,
        name,
    };
    let store = &api.context.store;
    let Some(object) = store.object(&key) else {
        return not_found(&key);
    };
    if let Some(grace) = deletion.grace {
        store.modify(&key, |object| {
            set(
                object,
                &["metadata", "deletionGracePeriodSeconds"],
                json!(grace),
            );
        });
    }
    store.apply([Action::Delete(key.clone())]);
    Json(json!({"deleted": key.to_string(), "uid": uid(&object)})).into_response()
}

async fn scale(State(api): State<Api>, Json(scale): Json<Scale>) -> Response {
    let key = Key::new(&scale.kind, &scale.namespace, &scale.name);
    if !matches!(
        scale.kind.as_str(),
        "Deployment" | "StatefulSet" | "ReplicaSet"
    ) {
        let message =
            format!("{key} cannot be scaled; expected a Deployment, StatefulSet or ReplicaSet");
        return (StatusCode::BAD_REQUEST, Json(json!({"error": message}))).into_response();
    }
    if api.context.store.object(&key).is_none() {
        return not_found(&key);
    }
    api.context.store.modify(&key, |object| {
        set(object, &["spec", "replicas"], json!(scale.replicas))
    });
    tracing::info!(object = %key, replicas = scale.replicas, at = ?SystemTime::now(), "scaled");
    Json(json!({"scaled": key.to_string()})).into_response()
}

fn not_found(key: &Key) -> Response {
    (
        StatusCode::NOT_FOUND,
        Json(json!({"error": format!("{key} not found")})),
    )
        .into_response()
}
