//! Tunnels that are kept for the next connection to the same peer.
//!
//! One pool for each worker. For one key at most one attempt to connect runs at
//! a time; who comes meanwhile waits for its outcome and shares its failure, so
//! that a dead peer costs every waiter one time limit and not a queue of them.

use crate::client::{Lease, Tunnel};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash, RandomState};
use std::rc::Rc;
use tokio::sync::Notify;

/// Tunnels to one peer opened only because the others carry bulk data. More
/// would only divide the path's bandwidth further.
const BULK_TUNNELS_MAX: usize = 4;

/// Tunnels by key. `K` says who talks to whom, `E` is the failure to connect,
/// shared by those who waited for the same attempt.
pub struct Pool<K, E, S = RandomState> {
    entries: Rc<RefCell<HashMap<K, Entry<E>, S>>>,
}

impl<K, E, S> fmt::Debug for Pool<K, E, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl<K, E, S> Clone for Pool<K, E, S> {
    fn clone(&self) -> Self {
        Self {
            entries: Rc::clone(&self.entries),
        }
    }
}

struct Entry<E> {
    tunnels: Vec<Tunnel>,
    attempt: Option<Rc<Attempt<E>>>,
}

struct Attempt<E> {
    ended: Notify,
    outcome: RefCell<Option<Outcome<E>>>,
}

#[derive(Clone)]
enum Outcome<E> {
    Connected,
    Failed(E),
    /// The one who connected went away; another may try.
    Abandoned,
}

enum Step<E> {
    Leased(Lease),
    Wait(Rc<Attempt<E>>),
    Connect(Rc<Attempt<E>>),
}

impl<K, E, S> Default for Pool<K, E, S>
where
    S: Default,
{
    fn default() -> Self {
        Self {
            entries: Rc::new(RefCell::new(HashMap::default())),
        }
    }
}

impl<K, E, S> Pool<K, E, S>
where
    K: Hash + Eq + Clone,
    E: Clone,
    S: BuildHasher,
{
    /// A place on a tunnel for `key`: on the least busy one that is open, or on
    /// a new one that `connect` opens.
    ///
    /// # Errors
    ///
    /// The failure of the attempt that this call made or waited for. The caller
    /// sets the deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future of the caller that connects lets another caller try.
    pub async fn lease<F, C>(&self, key: &K, connect: C) -> Result<Lease, E>
    where
        C: FnOnce() -> F,
        F: Future<Output = Result<Tunnel, E>>,
    {
        loop {
            match self.step(key) {
                Step::Leased(lease) => return Ok(lease),
                Step::Wait(attempt) => match attempt.wait().await {
                    Outcome::Failed(error) => return Err(error),
                    Outcome::Connected | Outcome::Abandoned => {}
                },
                Step::Connect(attempt) => return self.connect(key, attempt, connect()).await,
            }
        }
    }

    fn step(&self, key: &K) -> Step<E> {
        let mut entries = self.entries.borrow_mut();
        if !entries.contains_key(key) {
            entries.insert(
                key.clone(),
                Entry {
                    tunnels: Vec::new(),
                    attempt: None,
                },
            );
        }
        let entry = entries.get_mut(key).expect("invariant: inserted above");
        entry.tunnels.retain(Tunnel::is_open);
        if let Some(lease) = entry.pick() {
            return Step::Leased(lease);
        }
        if let Some(attempt) = &entry.attempt {
            return Step::Wait(Rc::clone(attempt));
        }
        let attempt = Rc::new(Attempt {
            ended: Notify::new(),
            outcome: RefCell::new(None),
        });
        entry.attempt = Some(Rc::clone(&attempt));
        Step::Connect(attempt)
    }

    async fn connect<F>(&self, key: &K, attempt: Rc<Attempt<E>>, connecting: F) -> Result<Lease, E>
    where
        F: Future<Output = Result<Tunnel, E>>,
    {
        let mut guard = AttemptGuard {
            pool: self,
            key,
            attempt,
            outcome: Outcome::Abandoned,
        };
        match connecting.await {
            Ok(tunnel) => {
                let lease = tunnel.lease();
                if let Some(entry) = self.entries.borrow_mut().get_mut(key) {
                    entry.tunnels.push(tunnel);
                }
                guard.outcome = Outcome::Connected;
                Ok(lease)
            }
            Err(error) => {
                guard.outcome = Outcome::Failed(error.clone());
                drop(guard);
                // A further tunnel was only for more speed: the old ones serve.
                self.fullest_with_room(key).ok_or(error)
            }
        }
    }

    fn fullest_with_room(&self, key: &K) -> Option<Lease> {
        let entries = self.entries.borrow();
        let tunnels = &entries.get(key)?.tunnels;
        tunnels
            .iter()
            .filter(|t| t.has_room())
            .min_by_key(|t| t.streams())
            .map(Tunnel::lease)
    }

    /// Forgets what is closed. Called from time to time, it bounds the pool by
    /// the peers that are in use.
    pub fn sweep(&self) {
        self.entries.borrow_mut().retain(|_, entry| {
            entry.tunnels.retain(Tunnel::is_open);
            !entry.tunnels.is_empty() || entry.attempt.is_some()
        });
    }

    /// Takes tunnels out of use whose key satisfies `matches`; their streams
    /// live on.
    pub fn retire(&self, mut matches: impl FnMut(&K) -> bool) {
        self.entries.borrow_mut().retain(|key, entry| {
            if matches(key) {
                for tunnel in entry.tunnels.drain(..) {
                    tunnel.retire();
                }
            }
            !entry.tunnels.is_empty() || entry.attempt.is_some()
        });
    }

    /// Open tunnels over all keys.
    pub fn tunnels(&self) -> usize {
        self.entries
            .borrow()
            .values()
            .map(|entry| entry.tunnels.len())
            .sum()
    }
}

impl<E> Entry<E> {
    fn pick(&self) -> Option<Lease> {
        let open = self.tunnels.iter().filter(|tunnel| tunnel.has_room());
        let (bulk, _, best) = open
            .map(|t| (t.is_bulk(), t.streams(), t))
            .min_by_key(|t| (t.0, t.1))?;
        let spread = bulk && self.attempt.is_none() && self.tunnels.len() < BULK_TUNNELS_MAX;
        (!spread).then(|| best.lease())
    }
}

impl<E: Clone> Attempt<E> {
    async fn wait(&self) -> Outcome<E> {
        loop {
            let ended = self.ended.notified();
            if let Some(outcome) = &*self.outcome.borrow() {
                return outcome.clone();
            }
            ended.await;
        }
    }
}

/// Ends the attempt however its future ends.
struct AttemptGuard<'a, K, E, S>
where
    K: Hash + Eq,
    S: BuildHasher,
    E: Clone,
{
    pool: &'a Pool<K, E, S>,
    key: &'a K,
    attempt: Rc<Attempt<E>>,
    outcome: Outcome<E>,
}

impl<K, E, S> Drop for AttemptGuard<'_, K, E, S>
where
    K: Hash + Eq,
    S: BuildHasher,
    E: Clone,
{
    fn drop(&mut self) {
        if let Some(entry) = self.pool.entries.borrow_mut().get_mut(self.key) {
            entry.attempt = None;
        }
        *self.attempt.outcome.borrow_mut() = Some(self.outcome.clone());
        self.attempt.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
