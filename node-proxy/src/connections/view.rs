//! A connection as the admin port shows it.

use std::net::SocketAddr;

use serde::Serialize;

use super::Record;

/// One open connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionView {
    /// Number of the worker.
    pub worker: usize,
    /// Number within the worker.
    pub id: u64,
    /// Kubernetes UID of the pod that it belongs to.
    pub pod: String,
    /// `inbound` or `outbound`.
    pub direction: &'static str,
    /// `mutual_tls`, `local` or `unknown`.
    pub security: &'static str,
    /// The client.
    pub source: SocketAddr,
    /// The client's workload, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_workload: Option<String>,
    /// Who the client has proven to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_identity: Option<String>,
    /// The next hop.
    pub destination: SocketAddr,
    /// What is asked for through the tunnel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<SocketAddr>,
    /// The service's host name, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The server's workload, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_workload: Option<String>,
    /// Bytes sent, as this side sees it.
    pub bytes_sent: u64,
    /// Bytes received, as this side sees it.
    pub bytes_received: u64,
    /// Age in milliseconds.
    pub age_ms: u64,
}

impl ConnectionView {
    pub(super) fn of(record: &Record) -> Self {
        let facts = &record.facts;
        let (bytes_sent, bytes_received) = record.bytes();
        Self {
            worker: 0,
            id: record.id,
            pod: facts.pod.uid.to_string(),
            direction: facts.direction.as_str(),
            security: facts.security.as_str(),
            source: facts.client,
            source_workload: facts.source.as_ref().map(|w| w.uid.to_string()),
            source_identity: facts.source_identity.as_ref().map(ToString::to_string),
            destination: facts.hop,
            authority: facts.authority,
            service: facts.service.as_ref().map(|s| s.name.hostname.to_string()),
            destination_workload: facts.destination.as_ref().map(|w| w.uid.to_string()),
            bytes_sent,
            bytes_received,
            age_ms: u64::try_from(record.age().as_millis()).unwrap_or(u64::MAX),
        }
    }
}
