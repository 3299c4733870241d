//! What a series says of its connections.

use std::sync::Arc;

use culvert_model::{Service, Workload, WorkloadUid};
use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};

/// Which end of a connection reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reporter {
    /// The proxy of the client.
    Source,
    /// The proxy of the server.
    Destination,
}

impl Reporter {
    /// The label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

/// How a connection ended, as the label `response_flags` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flag {
    /// In order, or by the doing of an application.
    None,
    /// Refused by a policy.
    Deny,
    /// No connection to the next hop.
    Connect,
    /// The handshake failed.
    TlsFailure,
    /// No HTTP/2 on the tunnel.
    H2HandshakeFailure,
    /// The tunnel's port did not answer: mostly a packet filter.
    NetworkPolicy,
    /// We have no certificate to show.
    IdentityError,
    /// There is no safe way to the destination.
    NoRoute,
    /// The proxy had no room or no time left.
    Overload,
}

impl Flag {
    /// Every flag, in the order of its numbers.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Deny,
        Self::Connect,
        Self::TlsFailure,
        Self::H2HandshakeFailure,
        Self::NetworkPolicy,
        Self::IdentityError,
        Self::NoRoute,
        Self::Overload,
    ];

    /// The label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Deny => "DENY",
            Self::Connect => "CONNECT",
            Self::TlsFailure => "TLS_FAILURE",
            Self::H2HandshakeFailure => "H2_HANDSHAKE_FAILURE",
            Self::NetworkPolicy => "NETWORK_POLICY",
            Self::IdentityError => "IDENTITY_ERROR",
            Self::NoRoute => "NO_ROUTE",
            Self::Overload => "OVERLOAD",
        }
    }
}

/// What protected a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Security {
    /// A tunnel.
    MutualTls,
    /// Handed over inside this process, between two proven identities.
    Local,
    /// Nothing.
    Plain,
}

impl Security {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::MutualTls => "mutual_tls",
            Self::Local => "local",
            Self::Plain => "unknown",
        }
    }

    /// Whether both ends have proven who they are.
    pub(crate) fn is_proven(self) -> bool {
        self != Self::Plain
    }
}

/// What the labels are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) reporter: Reporter,
    pub(crate) security: Security,
    pub(crate) source: Option<&'a Arc<Workload>>,
    pub(crate) destination: Option<&'a Arc<Workload>>,
    pub(crate) service: Option<&'a Arc<Service>>,
}

impl Subject<'_> {
    pub(crate) fn workloads(&self) -> Vec<WorkloadUid> {
        let both = [self.source, self.destination];
        both.into_iter().flatten().map(|w| w.uid.clone()).collect()
    }
}

type Label = (&'static str, Arc<str>);

/// The labels of a series, without its flag.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Labels(Arc<[Label]>);

const UNKNOWN: &str = "unknown";

impl Labels {
    pub(super) fn of(subject: &Subject<'_>) -> Self {
        let mut labels = Vec::with_capacity(27);
        labels.push(("reporter", Arc::from(subject.reporter.as_str())));
        let proven = subject.security.is_proven();
        side(&mut labels, &SOURCE, subject.source, proven);
        let service = subject.service;
        let text = |text: Option<&Arc<str>>| known(text.map(|text| &**text));
        labels.push((
            "destination_service",
            text(service.map(|s| &s.name.hostname)),
        ));
        labels.push((
            "destination_service_namespace",
            text(service.map(|s| &s.name.namespace)),
        ));
        labels.push((
            "destination_service_name",
            text(service.map(|s| &s.short_name)),
        ));
        // Our own identity is certain at the destination, proven or not.
        let proven = proven || subject.reporter == Reporter::Destination;
        side(&mut labels, &DESTINATION, subject.destination, proven);
        labels.push(("request_protocol", Arc::from("tcp")));
        labels.push((
            "connection_security_policy",
            Arc::from(subject.security.as_str()),
        ));
        locality(&mut labels, subject);
        Self(labels.into())
    }
}

fn known(text: Option<&str>) -> Arc<str> {
    Arc::from(text.filter(|text| !text.is_empty()).unwrap_or(UNKNOWN))
}

/// Names of one side's labels: workload, canonical service, canonical revision,
/// namespace, principal, app, version, cluster.
type Names = [&'static str; 8];

const SOURCE: Names = [
    "source_workload",
    "source_canonical_service",
    "source_canonical_revision",
    "source_workload_namespace",
    "source_principal",
    "source_app",
    "source_version",
    "source_cluster",
];

const DESTINATION: Names = [
    "destination_workload",
    "destination_canonical_service",
    "destination_canonical_revision",
    "destination_workload_namespace",
    "destination_principal",
    "destination_app",
    "destination_version",
    "destination_cluster",
];

fn side(labels: &mut Vec<Label>, names: &Names, workload: Option<&Arc<Workload>>, proven: bool) {
    let text = |read: fn(&Workload) -> &str| known(workload.map(|workload| read(workload)));
    let principal = workload.filter(|_| proven).map(|w| w.identity.uri());
    let values = [
        text(|w| &w.workload_name),
        text(|w| &w.canonical_name),
        text(|w| &w.canonical_revision),
        text(|w| &w.namespace),
        known(principal),
        text(|w| &w.canonical_name),
        text(|w| &w.canonical_revision),
        text(|w| &w.cluster_id),
    ];
    labels.extend(names.iter().copied().zip(values));
}

/// Region and zone are there when they are known of either side.
fn locality(labels: &mut Vec<Label>, subject: &Subject<'_>) {
    let locality = |workload: Option<&Arc<Workload>>| {
        let locality = workload.map(|workload| workload.locality.clone());
        locality.unwrap_or_default()
    };
    let (source, destination) = (locality(subject.source), locality(subject.destination));
    let values = [
        ("source_region", source.region),
        ("source_zone", source.zone),
        ("destination_region", destination.region),
        ("destination_zone", destination.zone),
    ];
    if values.iter().any(|(_, value)| !value.is_empty()) {
        let values = values.into_iter();
        labels.extend(values.map(|(name, value)| (name, known(Some(&value)))));
    }
}

/// A series' labels with its flag.
#[derive(Debug)]
pub(super) struct Flagged<'a>(pub(super) &'a Labels, pub(super) Flag);

impl EncodeLabelSet for Flagged<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, value) in &*self.0.0 {
            (*name, &**value).encode(encoder.encode_label())?;
        }
        ("response_flags", self.1.as_str()).encode(encoder.encode_label())
    }
}
