//! The open connections of one worker: what is known of each, its counters,
//! its access-log records, and how it is told to close.

mod check;
mod record;
mod signal;
mod view;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_model::{Denial, Snapshot};
use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::access_log::{Event, LogBuffer};
use crate::pods::Pod;
use crate::traffic::{Flag, Series, Subject, TrafficMetrics};

pub(crate) use check::{Check, Egress, Ingress};
pub(crate) use record::{Direction, End, Facts, Record};
pub(crate) use signal::{CloseReason, Signal};
pub use view::ConnectionView;

/// How long a connection lasts before it is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(300);
/// Pairs of workloads that a worker's cache of series may hold; a miss costs a
/// lock and some text.
const SERIES_CACHED_MAX: usize = 4096;

/// The open connections of a worker.
#[derive(Debug)]
pub(crate) struct Connections {
    open: RefCell<HashMap<u64, Rc<Record>, RandomState>>,
    next_id: Cell<u64>,
    metrics: TrafficMetrics,
    series: RefCell<SeriesCache>,
    pub(crate) log: LogBuffer,
}

/// Series by the snapshot's objects that they are made of. The facts are kept
/// with them, so that an address means one object as long as it is a key.
#[derive(Debug, Default)]
struct SeriesCache {
    generation: u64,
    known: HashMap<SeriesKey, (Arc<Series>, Facts), RandomState>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct SeriesKey {
    outbound: bool,
    security: crate::traffic::Security,
    source: usize,
    destination: usize,
    service: usize,
}

fn address<T>(object: Option<&Arc<T>>) -> usize {
    object.map_or(0, |object| Arc::as_ptr(object) as usize)
}

impl Connections {
    pub(crate) fn new(metrics: TrafficMetrics, log: LogBuffer) -> Self {
        Self {
            open: RefCell::default(),
            next_id: Cell::new(1),
            metrics,
            series: RefCell::default(),
            log,
        }
    }

    /// A connection is open from here until the answer is dropped.
    pub(crate) fn open(self: &Rc<Self>, facts: Facts, check: Check) -> OpenConnection {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let series = self.series(&facts);
        series.open();
        let record = Rc::new(Record::new(id, facts, check, series));
        self.metrics
            .totals()
            .socket_opened(record.facts.direction.reporter());
        self.open.borrow_mut().insert(id, Rc::clone(&record));
        if self.log.is_on() {
            self.log.record(Event::Opened, &record.fields(None));
        }
        OpenConnection {
            connections: Rc::clone(self),
            record,
            end: End::default(),
        }
    }

    /// A connection failed before it was open.
    pub(crate) fn failed(&self, facts: &Facts, end: &End) {
        let series = self.series(facts);
        series.open();
        series.close(end.flag);
        if self.log.is_on() {
            self.log.record(Event::Failed, &facts.fields(Some(end)));
        }
    }

    /// Counts a denial and says it in the log, with policy, rule and both
    /// identities.
    pub(crate) fn denied(&self, facts: &Facts, denial: &Denial) {
        let reporter = facts.direction.reporter();
        let workloads = facts.subject().workloads();
        self.metrics
            .denied(check::denial_labels(reporter, facts, denial), workloads);
    }

    fn series(&self, facts: &Facts) -> Arc<Series> {
        let key = SeriesKey {
            outbound: facts.direction == Direction::Outbound,
            security: facts.security,
            source: address(facts.source.as_ref()),
            destination: address(facts.destination.as_ref()),
            service: address(facts.service.as_ref()),
        };
        let mut cache = self.series.borrow_mut();
        let generation = self.metrics.generation();
        if cache.generation != generation || cache.known.len() >= SERIES_CACHED_MAX {
            cache.known.clear();
            cache.generation = generation;
        }
        if let Some((series, _)) = cache.known.get(&key) {
            return Arc::clone(series);
        }
        let subject: Subject<'_> = facts.subject();
        let series = self.metrics.series(&subject);
        cache
            .known
            .insert(key, (Arc::clone(&series), facts.clone()));
        series
    }

    /// Judges every connection again and closes those that are denied now.
    pub(crate) fn judge_again(&self, snapshot: &Snapshot) {
        // What is denied is closed outside of the loop: it changes the map.
        let open = self.open.borrow();
        let denied: Vec<_> = open
            .values()
            .filter_map(|record| Some((Rc::clone(record), record.denial(snapshot)?)))
            .collect();
        drop(open);
        for (record, denial) in denied {
            self.denied(&record.facts, &denial);
            tracing::info!(
                source = %record.facts.client,
                destination = %record.facts.target(),
                policy = %denial,
                "connection closed: a policy denies it now"
            );
            record.signal.close(CloseReason::Denied(denial));
        }
    }

    /// Closes the connections of a pod.
    pub(crate) fn close_pod(&self, uid: &str, reason: &CloseReason) {
        for record in self.open.borrow().values() {
            if *record.facts.pod.uid == *uid {
                record.signal.close(reason.clone());
            }
        }
    }

    /// Logs connections that last long.
    pub(crate) fn log_lasting(&self) {
        if !self.log.is_on() {
            return;
        }
        let now = Instant::now();
        for record in self.open.borrow().values() {
            if now - record.logged_at.get() >= LOG_INTERVAL {
                record.logged_at.set(now);
                self.log.record(Event::Lasting, &record.fields(None));
            }
        }
    }

    /// All of them, for people.
    pub(crate) fn view(&self) -> Vec<ConnectionView> {
        self.open
            .borrow()
            .values()
            .map(|record| ConnectionView::of(record))
            .collect()
    }
}

/// A connection that is open. Dropping it closes its books: as aborted unless
/// it was told otherwise.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    connections: Rc<Connections>,
    pub(crate) record: Rc<Record>,
    end: End,
}

impl OpenConnection {
    /// Says how the connection ended.
    pub(crate) fn end(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let record = &self.record;
        self.connections.open.borrow_mut().remove(&record.id);
        record.series.close(self.end.flag);
        self.connections
            .metrics
            .totals()
            .socket_closed(record.facts.direction.reporter());
        if self.connections.log.is_on() {
            self.connections
                .log
                .record(Event::Closed, &record.fields(Some(&self.end)));
        }
    }
}

impl Default for End {
    fn default() -> Self {
        Self {
            flag: Flag::None,
            refusal: None,
            error: Some("aborted".into()),
        }
    }
}

/// The pod that a connection belongs to.
pub(crate) type ConnectionPod = Arc<Pod>;

#[cfg(test)]
mod tests;
