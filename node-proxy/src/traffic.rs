//! Metrics of the data path.
//!
//! The series of connections are kept by what they say (two workloads, a
//! service, who reports), not by connection: a worker looks its series up once
//! for each connection, in a cache of its own, and then only adds. Labels come
//! from the snapshot alone, so that no peer can create a series, and series of
//! workloads that are gone are dropped.

mod encode;
mod labels;
mod totals;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use culvert_model::{Snapshot, WorkloadUid};

pub use labels::{Flag, Reporter};
pub(crate) use labels::{Labels, Security, Subject};
pub use totals::Shed;
pub(crate) use totals::Totals;

/// Counters of one pair of workloads.
#[derive(Debug)]
pub(crate) struct Series {
    labels: Labels,
    /// Workloads without which the series is of no interest any more.
    workloads: Vec<WorkloadUid>,
    opened: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    closed: [AtomicU64; Flag::ALL.len()],
    /// Connections that will still add something.
    open: AtomicI64,
}

/// A denial as it is counted: the policy and both identities.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DenialLabels {
    pub(crate) reporter: Reporter,
    /// `namespace/name`, or the kind of reason where no policy matched.
    pub(crate) policy: Arc<str>,
    pub(crate) rule: String,
    pub(crate) source_principal: Arc<str>,
    pub(crate) destination_principal: Arc<str>,
    pub(crate) destination_workload: Arc<str>,
    pub(crate) destination_namespace: Arc<str>,
}

/// All metrics of the data path. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct TrafficMetrics {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    series: Mutex<HashMap<Labels, Arc<Series>>>,
    denials: Mutex<HashMap<DenialLabels, Denials>>,
    /// Rises whenever a series is dropped: cached ones are stale then.
    generation: AtomicU64,
    totals: Totals,
}

#[derive(Debug)]
struct Denials {
    count: u64,
    workloads: Vec<WorkloadUid>,
}

impl Series {
    /// A connection starts.
    pub(crate) fn open(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// The client's bytes.
    pub(crate) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The server's bytes.
    pub(crate) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A connection ends.
    pub(crate) fn close(&self, flag: Flag) {
        self.closed[flag as usize].fetch_add(1, Ordering::Relaxed);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

// The locks below are held for one map operation, never across an await, and
// only when a pair of workloads is new to a worker, on a denial and on a scrape.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TrafficMetrics {
    /// Registers the metrics with the process's registry.
    #[must_use]
    pub fn register(metrics: &culvert_runtime::Metrics) -> Self {
        let traffic = Self::default();
        metrics.register(|registry| {
            registry.register_collector(Box::new(traffic.clone()));
        });
        traffic
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.inner.totals
    }

    pub(crate) fn generation(&self) -> u64 {
        self.inner.generation.load(Ordering::Acquire)
    }

    /// The series of that subject, new or known.
    pub(crate) fn series(&self, subject: &Subject<'_>) -> Arc<Series> {
        let labels = Labels::of(subject);
        let mut all = lock(&self.inner.series);
        let series = all.entry(labels).or_insert_with_key(|labels| {
            Arc::new(Series {
                labels: labels.clone(),
                workloads: subject.workloads(),
                opened: AtomicU64::new(0),
                sent: AtomicU64::new(0),
                received: AtomicU64::new(0),
                closed: Default::default(),
                open: AtomicI64::new(0),
            })
        });
        Arc::clone(series)
    }

    pub(crate) fn denied(&self, labels: DenialLabels, workloads: Vec<WorkloadUid>) {
        let mut denials = lock(&self.inner.denials);
        let denial = denials.entry(labels).or_insert(Denials {
            count: 0,
            workloads,
        });
        denial.count += 1;
    }

    /// Drops the series of workloads that are not in the snapshot, once no
    /// connection adds to them.
    pub fn sweep(&self, snapshot: &Snapshot) {
        let known = |workloads: &[WorkloadUid]| {
            workloads.iter().all(|uid| snapshot.workload(uid).is_some())
        };
        let mut dropped = false;
        lock(&self.inner.series).retain(|_, series| {
            let keep = known(&series.workloads) || series.open.load(Ordering::Relaxed) > 0;
            dropped |= !keep;
            keep
        });
        lock(&self.inner.denials).retain(|_, denial| known(&denial.workloads));
        if dropped {
            self.inner.generation.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
