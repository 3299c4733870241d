//! Connection tasks: capped, counted, and each failing alone.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Owns the tasks of connections: at most `max` at a time, a panic ends its own
/// connection only and is counted. Clones share the state, across threads too.
#[derive(Debug, Clone)]
pub struct ConnectionTracker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    permits: Arc<Semaphore>,
    // A std lock: held for one map operation at open and at close, never across
    // an await and never on the path of a connection's bytes.
    open: Mutex<HashMap<u64, AbortHandle>>,
    next_id: AtomicU64,
    panics: AtomicU64,
    refused: AtomicU64,
    closed: Notify,
}

/// A place for one connection, taken before its socket is accepted.
#[derive(Debug)]
pub struct ConnectionPermit {
    permit: OwnedSemaphorePermit,
    shared: Arc<Shared>,
}

/// The tracker holds as many connections as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many open connections")]
pub struct AtCapacity;

impl ConnectionTracker {
    /// A tracker for at most `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self {
            shared: Arc::new(Shared {
                permits,
                open: Mutex::default(),
                next_id: AtomicU64::new(0),
                panics: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                closed: Notify::new(),
            }),
        }
    }

    /// Takes a place, or refuses (and counts) when there is none.
    ///
    /// # Errors
    /// [`AtCapacity`] when the tracker is full.
    pub fn try_reserve(&self) -> Result<ConnectionPermit, AtCapacity> {
        match Arc::clone(&self.shared.permits).try_acquire_owned() {
            Ok(permit) => Ok(ConnectionPermit {
                permit,
                shared: Arc::clone(&self.shared),
            }),
            Err(_) => {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                Err(AtCapacity)
            }
        }
    }

    /// Waits for a place: what an accept loop does before it accepts, so that
    /// the kernel's backlog holds what cannot be served yet.
    ///
    /// # Cancel safety
    /// Safe: a cancelled wait holds no place.
    pub async fn reserve(&self) -> ConnectionPermit {
        let permit = Arc::clone(&self.shared.permits)
            .acquire_owned()
            .await
            .expect("invariant: the semaphore is never closed");
        ConnectionPermit {
            permit,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Runs a connection on the current runtime.
    ///
    /// # Errors
    /// [`AtCapacity`] when the tracker is full; the future is dropped.
    pub fn spawn<F>(&self, connection: F) -> Result<(), AtCapacity>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.try_reserve()?.spawn(connection);
        Ok(())
    }

    /// Runs a connection on the current thread's local runtime.
    ///
    /// # Errors
    /// [`AtCapacity`] when the tracker is full; the future is dropped.
    ///
    /// # Panics
    /// Outside a local runtime or `LocalSet`.
    pub fn spawn_local<F>(&self, connection: F) -> Result<(), AtCapacity>
    where
        F: Future<Output = ()> + 'static,
    {
        self.try_reserve()?.spawn_local(connection);
        Ok(())
    }

    /// How many connections are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.lock().len()
    }

    /// How many connections ended in a panic.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// How many connections were refused for want of a place.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Waits until no connection is open, at most until `deadline`; then aborts
    /// the rest. Gives the number of aborted connections.
    ///
    /// # Cancel safety
    /// Safe: a cancelled wait aborts nothing.
    pub async fn wait_drained(&self, deadline: Instant) -> usize {
        let empty = async {
            loop {
                let closed = self.shared.closed.notified();
                tokio::pin!(closed);
                closed.as_mut().enable();
                if self.open() == 0 {
                    return;
                }
                closed.await;
            }
        };
        match tokio::time::timeout_at(deadline, empty).await {
            Ok(()) => 0,
            Err(_) => self.abort_all(),
        }
    }

    /// Ends every open connection now and gives their number.
    pub fn abort_all(&self) -> usize {
        let handles: Vec<AbortHandle> = self.shared.lock().values().cloned().collect();
        for handle in &handles {
            handle.abort();
        }
        handles.len()
    }
}

impl ConnectionPermit {
    /// Runs a connection in this place, on the current runtime.
    #[expect(clippy::disallowed_methods, reason = "this is the supervised spawn")]
    pub fn spawn<F>(self, connection: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (open, shared) = self.open();
        let id = open.id;
        // The lock is held over the spawn: a task that ends at once must find
        // its entry to remove.
        let mut map = shared.lock();
        map.insert(id, tokio::spawn(run(open, connection)).abort_handle());
    }

    /// Runs a connection in this place, on the current thread's local runtime.
    ///
    /// # Panics
    /// Outside a local runtime or `LocalSet`.
    pub fn spawn_local<F>(self, connection: F)
    where
        F: Future<Output = ()> + 'static,
    {
        let (open, shared) = self.open();
        let id = open.id;
        let mut map = shared.lock();
        map.insert(
            id,
            tokio::task::spawn_local(run(open, connection)).abort_handle(),
        );
    }

    fn open(self) -> (Open, Arc<Shared>) {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        (
            Open {
                id,
                permit: Some(self.permit),
                shared: self.shared,
            },
            shared,
        )
    }
}

async fn run<F: Future<Output = ()>>(open: Open, connection: F) {
    if AssertUnwindSafe(connection).catch_unwind().await.is_err() {
        open.shared.panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(connection = open.id, "connection ended in a panic");
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, AbortHandle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lives as long as the connection's future, also when it is aborted.
struct Open {
    id: u64,
    permit: Option<OwnedSemaphorePermit>,
    shared: Arc<Shared>,
}

impl Drop for Open {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.shared.lock().remove(&self.id);
        self.shared.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_panic_is_counted_and_frees_its_place() {
        let tracker = ConnectionTracker::new(1);
        tracker
            .spawn(async { panic!("peer sent nonsense") })
            .expect("one place is free");
        assert_eq!(tracker.spawn(async {}), Err(AtCapacity));
        assert_eq!(tracker.refused(), 1);
        assert_eq!(tracker.wait_drained(Instant::now() + SOON).await, 0);
        assert_eq!(tracker.panics(), 1);
        tracker.spawn(async {}).expect("the place is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_outlives_the_deadline_is_aborted() {
        let tracker = ConnectionTracker::new(10);
        for _ in 0..3 {
            tracker
                .spawn(std::future::pending())
                .expect("places are free");
        }
        assert_eq!(tracker.open(), 3);
        assert_eq!(tracker.wait_drained(Instant::now() + SOON).await, 3);
        assert_eq!(tracker.wait_drained(Instant::now() + SOON).await, 0);
        assert_eq!(tracker.panics(), 0);
    }

    #[tokio::test]
    async fn local_connections_run_on_the_local_set() {
        let local = tokio::task::LocalSet::new();
        let tracker = ConnectionTracker::new(2);
        let not_send = std::rc::Rc::new(7);
        local
            .run_until(async {
                let value = std::rc::Rc::clone(&not_send);
                tracker
                    .spawn_local(async move { assert_eq!(*value, 7) })
                    .expect("free");
                assert_eq!(tracker.wait_drained(Instant::now() + SOON).await, 0);
            })
            .await;
        assert_eq!(tracker.panics(), 0);
    }

    #[tokio::test]
    async fn reserve_waits_for_a_place() {
        let tracker = ConnectionTracker::new(1);
        let held = tracker.reserve().await;
        let waiting = tracker.reserve();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        drop(held);
        waiting.await.spawn(async {});
    }
}
