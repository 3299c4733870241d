//! What is known of one connection.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use culvert_identity::Identity;
use culvert_model::{Denial, Service, Snapshot, Workload};
use tokio::time::Instant;

use super::{Check, ConnectionPod, Signal};
use crate::access_log::Fields;
use crate::traffic::{Flag, Reporter, Security, Series, Subject};

/// Seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Inbound,
    Outbound,
}

impl Direction {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }

    pub(crate) fn reporter(self) -> Reporter {
        match self {
            Self::Inbound => Reporter::Destination,
            Self::Outbound => Reporter::Source,
        }
    }
}

/// What is known of a connection when it opens or fails.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) direction: Direction,
    /// Whose connection it is here.
    pub(crate) pod: ConnectionPod,
    pub(crate) security: Security,
    pub(crate) client: SocketAddr,
    /// The next hop.
    pub(crate) hop: SocketAddr,
    /// What is asked for through a tunnel.
    pub(crate) authority: Option<SocketAddr>,
    pub(crate) source: Option<Arc<Workload>>,
    pub(crate) destination: Option<Arc<Workload>>,
    pub(crate) service: Option<Arc<Service>>,
    /// Who the client has proven to be.
    pub(crate) source_identity: Option<Identity>,
    pub(crate) started: Instant,
    pub(crate) trace: Option<u128>,
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) flag: Flag,
    /// Joins the records of a refusal.
    pub(crate) refusal: Option<u64>,
    pub(crate) error: Option<Cow<'static, str>>,
}

impl End {
    pub(crate) fn complete() -> Self {
        Self {
            flag: Flag::None,
            refusal: None,
            error: None,
        }
    }

    pub(crate) fn failed(flag: Flag, error: impl Into<Cow<'static, str>>) -> Self {
        Self {
            flag,
            refusal: None,
            error: Some(error.into()),
        }
    }

    pub(crate) fn refused(flag: Flag, refusal: u64, error: impl Into<Cow<'static, str>>) -> Self {
        Self {
            refusal: Some(refusal),
            ..Self::failed(flag, error)
        }
    }
}

impl Facts {
    /// Where the client wants to go in the end.
    pub(crate) fn target(&self) -> SocketAddr {
        self.authority.unwrap_or(self.hop)
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            reporter: self.direction.reporter(),
            security: self.security,
            source: self.source.as_ref(),
            destination: self.destination.as_ref(),
            service: self.service.as_ref(),
        }
    }

    pub(crate) fn fields<'a>(&'a self, end: Option<&'a End>) -> Fields<'a> {
        let proven = self.security.is_proven();
        let destination = self.destination.as_deref();
        let known = proven || self.direction == Direction::Inbound;
        Fields {
            at: SystemTime::now(),
            direction: self.direction.as_str(),
            security: self.security.as_str(),
            source: self.client,
            source_workload: self.source.as_deref(),
            source_identity: self.source_identity.as_ref(),
            destination: self.hop,
            authority: self.authority,
            service: self.service.as_deref(),
            destination_workload: destination,
            destination_identity: destination.filter(|_| known).map(|w| &w.identity),
            bytes_sent: 0,
            bytes_received: 0,
            duration: self.started.elapsed(),
            trace: self.trace,
            flag: end.map_or(Flag::None, |end| end.flag).as_str(),
            refusal: end.and_then(|end| end.refusal),
            error: end.and_then(|end| end.error.as_deref()),
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: u64,
    pub(crate) facts: Facts,
    pub(crate) check: Check,
    pub(crate) signal: Signal,
    pub(crate) series: Arc<Series>,
    pub(crate) logged_at: Cell<Instant>,
    /// From client to server.
    to_server: Cell<u64>,
    to_client: Cell<u64>,
}

impl Record {
    pub(super) fn new(id: u64, facts: Facts, check: Check, series: Arc<Series>) -> Self {
        Self {
            id,
            logged_at: Cell::new(facts.started),
            facts,
            check,
            signal: Signal::default(),
            series,
            to_server: Cell::new(0),
            to_client: Cell::new(0),
        }
    }

    pub(super) fn denial(&self, snapshot: &Snapshot) -> Option<Arc<Denial>> {
        self.check.denial(snapshot).map(Arc::new)
    }

    /// Bytes as this side sees them: outbound, what the client sent is sent.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        match self.facts.direction {
            Direction::Outbound => (self.to_server.get(), self.to_client.get()),
            Direction::Inbound => (self.to_client.get(), self.to_server.get()),
        }
    }

    pub(crate) fn age(&self) -> Duration {
        self.facts.started.elapsed()
    }

    pub(super) fn fields<'a>(&'a self, end: Option<&'a End>) -> Fields<'a> {
        let (bytes_sent, bytes_received) = self.bytes();
        Fields {
            bytes_sent,
            bytes_received,
            ..self.facts.fields(end)
        }
    }

    fn count_to_server(&self, bytes: usize) {
        self.to_server.set(self.to_server.get() + bytes as u64);
        self.series.add_received(bytes);
    }

    fn count_to_client(&self, bytes: usize) {
        self.to_client.set(self.to_client.get() + bytes as u64);
        self.series.add_sent(bytes);
    }
}

/// The relay's socket is the client's on the way out and the server's on the
/// way in.
impl culvert_hbone::relay::Meter for Record {
    fn sent(&self, bytes: usize) {
        match self.facts.direction {
            Direction::Outbound => self.count_to_server(bytes),
            Direction::Inbound => self.count_to_client(bytes),
        }
    }

    fn received(&self, bytes: usize) {
        match self.facts.direction {
            Direction::Outbound => self.count_to_client(bytes),
            Direction::Inbound => self.count_to_server(bytes),
        }
    }
}
