//! Which worker gets a connection.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Connections that a move must save at least: moving costs two system calls
/// and the wake-up of a thread, and small differences even out by themselves.
const ADVANTAGE_MIN: usize = 8;

/// Connections of each worker. A hint: read and written without order.
#[derive(Debug)]
pub(crate) struct Loads(Box<[Padded]>);

/// Alone on its cache line, so that workers do not slow each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Padded(AtomicUsize);

impl Loads {
    pub(crate) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Padded::default()).collect())
    }

    pub(crate) fn enter(&self, worker: usize) {
        self.0[worker].0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, worker: usize) {
        self.0[worker].0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The worker to serve a connection that `here` has accepted: another one
    /// only if it has clearly less to do.
    pub(crate) fn best(&self, here: usize) -> usize {
        if self.0.len() == 1 {
            return here;
        }
        let load = |worker: usize| self.0[worker].0.load(Ordering::Relaxed);
        let own = load(here);
        let other = (0..self.0.len())
            .min_by_key(|worker| load(*worker))
            .unwrap_or(here);
        let least = load(other);
        if own >= least + ADVANTAGE_MIN + least / 4 {
            other
        } else {
            here
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_moves_only_to_a_worker_with_clearly_less_to_do() {
        let loads = Loads::new(3);
        let mut moved = [0; 3];
        for _ in 0..300 {
            let worker = loads.best(1);
            moved[worker] += 1;
            loads.enter(worker);
        }
        assert_eq!(moved.iter().sum::<usize>(), 300);
        assert!(moved.iter().all(|n| (80..=130).contains(n)), "{moved:?}");
        for _ in 0..moved[1] {
            loads.leave(1);
        }
        assert_eq!(loads.best(1), 1);
        assert_eq!(Loads::new(1).best(0), 0);
    }
}
