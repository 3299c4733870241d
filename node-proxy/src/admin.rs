//! What the admin port shows of this program: `/config_dump`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State as Shared;
use axum::response::Json;
use axum::routing::get;
use culvert_runtime::Clock;
use culvert_tls::IssuedCertificate;
use serde::Serialize;
use tokio::sync::watch;

use crate::certs::Certificates;
use crate::connections::ConnectionView;
use crate::document::MeshDocument;
use crate::pods::PodView;
use crate::state::State;
use crate::workers::Workers;

/// Where the dump takes its parts from.
#[derive(Debug, Clone)]
pub struct Dump {
    /// The version of this program.
    pub version: &'static str,
    /// The static configuration in force.
    pub config: serde_json::Value,
    /// The mesh.
    pub state: State,
    /// Certificates.
    pub certificates: Certificates,
    /// Pods.
    pub pods: watch::Receiver<Arc<[PodView]>>,
    /// Connections.
    pub workers: Arc<Workers>,
    /// For the states of certificates.
    pub clock: Arc<dyn Clock>,
}

/// The routes of the admin port that only this program has.
pub fn routes(dump: Dump) -> Router {
    Router::new()
        .route("/config_dump", get(config_dump))
        .with_state(dump)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DumpView {
    version: &'static str,
    config: serde_json::Value,
    #[serde(flatten)]
    mesh: MeshDocument,
    certificates: Vec<CertificateView>,
    pods: Arc<[PodView]>,
    connections: Vec<ConnectionView>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CertificateView {
    identity: String,
    /// `Available`, `Expired`, `NotYetValid` or `Unavailable`.
    state: &'static str,
    /// The last failure of a request, if the last one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    /// Seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<u64>,
    /// Leaf first.
    chain: Vec<LinkView>,
    roots: Vec<LinkView>,
}

/// One certificate of a chain or bundle.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LinkView {
    subject: String,
    serial: String,
    not_after: u64,
}

async fn config_dump(Shared(dump): Shared<Dump>) -> Json<serde_json::Value> {
    let connections = dump.workers.connections().await;
    let pods = Arc::clone(&dump.pods.borrow());
    let view = DumpView {
        version: dump.version,
        config: dump.config.clone(),
        mesh: MeshDocument::of(&dump.state.snapshot()),
        certificates: certificates(&dump.certificates, dump.clock.now()),
        pods,
        connections,
    };
    // Everything in it is a plain value with text keys.
    Json(serde_json::to_value(view).unwrap_or_default())
}

fn certificates(certificates: &Certificates, now: SystemTime) -> Vec<CertificateView> {
    let mut views: Vec<_> = certificates
        .store()
        .all()
        .iter()
        .map(|issued| issued_view(issued, certificates, now))
        .collect();
    for (identity, reason) in certificates.failures() {
        if certificates.store().current(&identity).is_none() {
            views.push(missing_view(identity.to_string(), reason));
        }
    }
    views.sort_by(|a, b| a.identity.cmp(&b.identity));
    views
}

fn issued_view(
    issued: &IssuedCertificate,
    certificates: &Certificates,
    now: SystemTime,
) -> CertificateView {
    let certificate = issued.certificate();
    let state = if certificate.is_valid_at(now) {
        "Available"
    } else if now < certificate.not_before() {
        "NotYetValid"
    } else {
        "Expired"
    };
    CertificateView {
        identity: issued.identity().to_string(),
        state,
        reason: certificates.failure(issued.identity()),
        serial: Some(certificate.serial().to_owned()),
        not_before: Some(seconds(certificate.not_before())),
        not_after: Some(seconds(certificate.not_after())),
        chain: issued.chain().filter_map(link).collect(),
        roots: issued.trust().current().der().filter_map(link).collect(),
    }
}

fn missing_view(identity: String, reason: Arc<str>) -> CertificateView {
    CertificateView {
        identity,
        state: "Unavailable",
        reason: Some(reason),
        serial: None,
        not_before: None,
        not_after: None,
        chain: Vec::new(),
        roots: Vec::new(),
    }
}

fn link(der: &[u8]) -> Option<LinkView> {
    let summary = culvert_tls::ca::Summary::of(der)?;
    Some(LinkView {
        subject: summary.subject,
        serial: summary.serial,
        not_after: seconds(summary.not_after),
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
