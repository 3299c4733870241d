//! Rotation on the admin port: look, and act.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Query, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use culvert_runtime::chain;
use culvert_tls::ca::{Authority, Summary};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::Ca;
use crate::issue::AuthorityFault;
use crate::rotate::{RotateError, State, Wish};
use crate::store::seconds;

/// `GET /config_dump`: the configuration and what signs; `GET /rotation` and
/// `POST /rotate?what=intermediate|root[&advance=true]`.
pub fn routes(ca: Arc<Ca>, config: Value) -> Router {
    let dumped = Arc::clone(&ca);
    let dump = move || {
        let rotation = Rotation::of(&dumped.issuer().state());
        let version = env!("CARGO_PKG_VERSION");
        let dump = json!({"version": version, "config": config, "rotation": rotation});
        std::future::ready(Json(dump))
    };
    Router::new()
        .route("/config_dump", get(dump))
        .route("/rotation", get(rotation))
        .route("/rotate", post(rotate))
        .with_state(ca)
}

#[derive(Debug, Deserialize)]
struct Asked {
    what: What,
    #[serde(default)]
    advance: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Intermediate,
    Root,
}

impl Asked {
    fn wish(&self) -> Wish {
        match (self.what, self.advance) {
            (What::Intermediate, _) => Wish::Intermediate,
            (What::Root, false) => Wish::Root,
            (What::Root, true) => Wish::Advance,
        }
    }
}

async fn rotation(Extract(ca): Extract<Arc<Ca>>) -> Json<Rotation> {
    Json(Rotation::of(&ca.issuer().state()))
}

async fn rotate(Extract(ca): Extract<Arc<Ca>>, Query(asked): Query<Asked>) -> Response {
    tracing::info!(?asked, "rotation asked for");
    match ca.fulfil(asked.wish()) {
        Ok(()) => Json(Rotation::of(&ca.issuer().state())).into_response(),
        Err(error) => {
            let status = match &error {
                AuthorityFault::Rotate(
                    RotateError::InProgress
                    | RotateError::TooManyRoots
                    | RotateError::OutOfOrder { .. },
                ) => StatusCode::CONFLICT,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            tracing::warn!(error = chain(&error), "rotation refused");
            (status, format!("{}\n", chain(&error))).into_response()
        }
    }
}

/// The progress of a rotation, as it is shown.
#[derive(Debug, Serialize)]
struct Rotation {
    trust_domain: String,
    /// `steady`, `waiting` (a new root is trusted and does not sign yet) or
    /// `overlap` (the new root signs, the old one is still trusted).
    step: &'static str,
    /// When the step ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    until_seconds: Option<u64>,
    root: Shown,
    intermediate: Shown,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_root: Option<Shown>,
    retired_roots: Vec<ShownRetired>,
    bundle_pem: String,
}

#[derive(Debug, Serialize)]
struct Shown {
    subject: String,
    serial: String,
    not_before_seconds: u64,
    not_after_seconds: u64,
}

#[derive(Debug, Serialize)]
struct ShownRetired {
    #[serde(flatten)]
    root: Option<Shown>,
    prune_at_seconds: u64,
}

impl Rotation {
    fn of(state: &State) -> Self {
        let (step, until) = progress(state);
        Self {
            trust_domain: state.trust_domain.to_string(),
            step,
            until_seconds: until.map(seconds),
            root: Shown::of(&state.active.root),
            intermediate: Shown::of(&state.active.intermediate),
            next_root: state
                .next
                .as_ref()
                .map(|next| Shown::of(&next.hierarchy.root)),
            retired_roots: state
                .retired
                .iter()
                .map(|retired| ShownRetired {
                    root: Summary::of_pem(&retired.certificate_pem)
                        .as_ref()
                        .map(Shown::from),
                    prune_at_seconds: seconds(retired.prune_at),
                })
                .collect(),
            bundle_pem: state.bundle_pem(),
        }
    }
}

fn progress(state: &State) -> (&'static str, Option<SystemTime>) {
    match (&state.next, state.retired.first()) {
        (Some(next), _) => ("waiting", next.switch_at),
        (None, Some(oldest)) => ("overlap", Some(oldest.prune_at)),
        (None, None) => ("steady", None),
    }
}

impl Shown {
    fn of(authority: &Authority) -> Self {
        Self::from(authority.summary())
    }
}

impl From<&Summary> for Shown {
    fn from(summary: &Summary) -> Self {
        Self {
            subject: summary.subject.clone(),
            serial: summary.serial.clone(),
            not_before_seconds: seconds(summary.not_before),
            not_after_seconds: seconds(summary.not_after),
        }
    }
}
