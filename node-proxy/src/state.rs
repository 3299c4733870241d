//! The mesh as this node knows it: one immutable snapshot, replaced as a whole.
//!
//! Readers take a pointer and decide on it without a lock. The last snapshot stays
//! in force while discovery is away.

mod discovery;
mod workload;

use std::sync::Arc;

use arc_swap::ArcSwap;
use culvert_model::{Change, Snapshot};
use tokio::sync::watch;

pub use discovery::{Discovery, DiscoveryConfig};
pub use workload::{UnknownWorkload, workload_in};

/// The current snapshot. Clones share it.
#[derive(Debug, Clone)]
pub struct State {
    snapshot: Arc<ArcSwap<Snapshot>>,
    version: Arc<watch::Sender<u64>>,
}

impl State {
    /// An empty mesh, seen from a network (empty for the default one).
    #[must_use]
    pub fn new(network: &str) -> Self {
        Self {
            snapshot: Arc::new(ArcSwap::from_pointee(Snapshot::for_network(network))),
            version: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The snapshot in force: one pointer, to be held for one decision.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Says when the snapshot was replaced. Level-triggered: read the snapshot after
    /// each change and never count changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Waits until a snapshot was taken into force for the first time.
    ///
    /// # Cancel safety
    /// Safe: the state is level-triggered.
    pub async fn known(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.subscribe().wait_for(|version| *version > 0).await;
    }

    /// Takes another snapshot into force. Control side only, from one task.
    pub fn replace(&self, snapshot: Arc<Snapshot>) {
        self.snapshot.store(snapshot);
        self.version.send_modify(|version| *version += 1);
    }

    /// Takes changes into force.
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        self.replace(Arc::new(self.snapshot.load().apply(changes)));
    }
}
