//! The routes of the three ports.

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};

use super::{Admin, profile};
use crate::drain::{Drain, DrainWatch};
use crate::logging::LogHandle;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn admin(admin: &Admin) -> Router {
    let config = admin.config.clone();
    Router::new()
        .route("/config", get(move || std::future::ready(Json(config))))
        .route(
            "/logging",
            get(show_level)
                .post(set_level)
                .with_state(admin.log.clone()),
        )
        .route("/quitquitquit", post(quit).with_state(admin.drain.clone()))
        .route("/debug/pprof/profile", get(profile::processor))
        .route("/debug/pprof/heap", get(profile::memory))
        .merge(metrics(admin.metrics.clone()))
        .merge(ready(admin.readiness.clone(), admin.drain.watch()))
}

pub(super) fn metrics(metrics: Metrics) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .route("/stats/prometheus", get(scrape))
        .with_state(metrics)
}

pub(super) fn ready(readiness: Readiness, drain: DrainWatch) -> Router {
    Router::new()
        .route("/healthz/ready", get(show_ready))
        .with_state((readiness, drain))
}

async fn scrape(State(metrics): State<Metrics>) -> Response {
    match metrics.encode() {
        Ok(body) => ([(header::CONTENT_TYPE, OPEN_METRICS)], body).into_response(),
        Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "a metric could not be written\n",
        )
            .into_response(),
    }
}

async fn show_ready(State((readiness, drain)): State<(Readiness, DrainWatch)>) -> Response {
    let mut unmet = readiness.unmet();
    if drain.is_draining() {
        unmet.push(("drain", "the process is ending".to_owned()));
    }
    if unmet.is_empty() {
        return "ready\n".into_response();
    }
    let lines: String = unmet
        .iter()
        .map(|(name, reason)| format!("{name}: {reason}\n"))
        .collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}

async fn show_level(State(log): State<LogHandle>) -> String {
    format!("{}\n", log.level())
}

async fn set_level(State(log): State<LogHandle>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("reset", _) => log.reset(),
            ("level", level) => {
                let level = level
                    .replace("%2C", ",")
                    .replace("%2c", ",")
                    .replace("%3D", "=");
                if let Err(error) = log.set_level(&level) {
                    return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
                }
                tracing::info!(level, "log level changed");
            }
            (other, _) => {
                let text = format!("unknown parameter `{other}`: expected level=LEVEL or reset\n");
                return (StatusCode::BAD_REQUEST, text).into_response();
            }
        }
    }
    format!("{}\n", log.level()).into_response()
}

async fn quit(State(drain): State<Drain>) -> &'static str {
    drain.start("POST /quitquitquit");
    "draining\n"
}
