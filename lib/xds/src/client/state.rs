//! What outlives a single stream: the session, the snapshot, and what is not
//! published yet.

use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use culvert_model::{Change, Snapshot};
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::kind::ResourceType;
use crate::session::ClientSession;

use super::{ClientConfig, Observer};

pub(super) struct State {
    pub(super) session: ClientSession,
    /// Responses taken in, in all streams.
    pub(super) responses: u64,
    snapshot: Snapshot,
    pending: Vec<Change>,
    burst: Option<Burst>,
    /// When the types that every server has were complete.
    complete_since: Option<Instant>,
    is_published: bool,
    snapshots: watch::Sender<Arc<Snapshot>>,
    timing: Timing,
}

struct Timing {
    burst_quiet: Duration,
    burst_max: Duration,
    optional_grace: Duration,
}

#[derive(Clone, Copy)]
struct Burst {
    first: Instant,
    last: Instant,
}

impl State {
    pub(super) fn new(config: &ClientConfig, snapshots: watch::Sender<Arc<Snapshot>>) -> Self {
        Self {
            session: ClientSession::new(&config.node),
            responses: 0,
            snapshot: Snapshot::for_network(config.network.clone()),
            pending: Vec::new(),
            burst: None,
            complete_since: None,
            is_published: false,
            snapshots,
            timing: Timing {
                burst_quiet: config.burst_quiet,
                burst_max: config.burst_max,
                optional_grace: config.optional_grace,
            },
        }
    }

    /// Takes in a response and gives the reply.
    pub(super) fn receive(
        &mut self,
        response: &DeltaDiscoveryResponse,
        observer: &impl Observer,
    ) -> DeltaDiscoveryRequest {
        observer.received(&response.type_url, response.encoded_len());
        let was_answered = ResourceType::ALL.map(|kind| self.session.is_answered(kind));
        let received = self.session.receive(response);
        self.responses += 1;
        if let Some(kind) = received.kind {
            for rejection in &received.rejected {
                tracing::warn!(
                    resource = rejection.resource,
                    reason = rejection.reason,
                    "refusing a resource"
                );
                observer.rejected(kind, rejection);
            }
        }
        for (kind, was_answered) in ResourceType::ALL.into_iter().zip(was_answered) {
            if !was_answered && self.session.is_answered(kind) {
                observer.answered(kind);
            }
        }
        let now = Instant::now();
        if self.complete_since.is_none() && self.session.is_complete() {
            self.complete_since = Some(now);
        }
        let first_publication = !self.is_published && self.complete_since.is_some();
        if !received.changes.is_empty() || first_publication {
            let first = self.burst.map_or(now, |burst| burst.first);
            self.burst = Some(Burst { first, last: now });
        }
        self.pending.extend(received.changes);
        received.reply
    }

    /// Returns when the burst of changes is over.
    ///
    /// # Cancel safety
    /// It only waits.
    pub(super) fn burst_over(&self) -> impl Future<Output = ()> + use<> {
        let at = self.publish_at();
        async move {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        }
    }

    fn publish_at(&self) -> Option<Instant> {
        let burst = self.burst?;
        let settled =
            (burst.last + self.timing.burst_quiet).min(burst.first + self.timing.burst_max);
        if self.is_published {
            return Some(settled);
        }
        // Before the first publication, wait until the view is complete.
        let complete = self.complete_since?;
        let optional = ResourceType::ALL
            .into_iter()
            .filter(|kind| kind.is_optional());
        if optional
            .into_iter()
            .all(|kind| self.session.is_answered(kind))
        {
            return Some(settled.max(complete));
        }
        Some(settled.max(complete + self.timing.optional_grace))
    }

    /// Publishes what came at the end of a stream: nothing more is to be expected.
    pub(super) fn flush_at_end(&mut self, observer: &impl Observer) {
        if self.burst.is_some() {
            self.flush(observer);
        }
    }

    /// Takes the changes into the snapshot, and publishes it if it is complete.
    pub(super) fn flush(&mut self, observer: &impl Observer) {
        self.burst = None;
        self.snapshot = self.snapshot.apply(self.pending.drain(..));
        if self.complete_since.is_none() {
            return;
        }
        self.snapshots.send_replace(Arc::new(self.snapshot.clone()));
        if !self.is_published {
            self.is_published = true;
            observer.ready();
        }
    }
}
