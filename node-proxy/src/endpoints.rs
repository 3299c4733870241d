//! What one worker knows of the endpoints it connects to: how many connections
//! it has with each, and which ones have just failed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use culvert_model::{Load, WorkloadUid};
use foldhash::fast::RandomState;
use tokio::time::Instant;

/// How long an endpoint that failed is left out: longer than a connect limit,
/// shorter than the time after which discovery knows of a dead pod.
const EJECTION: Duration = Duration::from_secs(5);
/// Ejections that are remembered; a failure of more endpoints than this at once
/// is a failure of the network, where leaving some out does not help.
const EJECTED_MAX: usize = 1024;

/// Endpoints as one worker sees them.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    outstanding: RefCell<HashMap<WorkloadUid, Rc<Cell<u32>>, RandomState>>,
    ejected: RefCell<Vec<(WorkloadUid, Instant)>>,
}

/// Counts a connection with an endpoint for as long as it lives.
#[derive(Debug)]
pub(crate) struct Outstanding(Rc<Cell<u32>>);

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Endpoints {
    pub(crate) fn enter(&self, workload: &WorkloadUid) -> Outstanding {
        let mut all = self.outstanding.borrow_mut();
        let count = if let Some(count) = all.get(workload) {
            Rc::clone(count)
        } else {
            let count = Rc::new(Cell::new(0));
            all.insert(workload.clone(), Rc::clone(&count));
            count
        };
        count.set(count.get() + 1);
        Outstanding(count)
    }

    /// Leaves an endpoint out for a while.
    pub(crate) fn eject(&self, workload: &WorkloadUid) {
        let until = Instant::now() + EJECTION;
        let mut ejected = self.ejected.borrow_mut();
        ejected.retain(|(uid, _)| uid != workload);
        if ejected.len() < EJECTED_MAX {
            ejected.push((workload.clone(), until));
        }
    }

    /// A connection to it succeeded.
    pub(crate) fn restore(&self, workload: &WorkloadUid) {
        if !self.ejected.borrow().is_empty() {
            self.ejected.borrow_mut().retain(|(uid, _)| uid != workload);
        }
    }

    /// Endpoints that are left out at the moment.
    pub(crate) fn ejected(&self) -> Vec<WorkloadUid> {
        if self.ejected.borrow().is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let mut ejected = self.ejected.borrow_mut();
        ejected.retain(|(_, until)| *until > now);
        ejected.iter().map(|(uid, _)| uid.clone()).collect()
    }

    /// Forgets endpoints without connections.
    pub(crate) fn sweep(&self) {
        self.outstanding
            .borrow_mut()
            .retain(|_, count| count.get() > 0);
    }
}

impl Load for Endpoints {
    fn outstanding(&self, workload: &WorkloadUid) -> u32 {
        self.outstanding
            .borrow()
            .get(workload)
            .map_or(0, |count| count.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_ejection_ends_by_time_or_by_success() {
        let endpoints = Endpoints::default();
        let (a, b) = (WorkloadUid::new("a"), WorkloadUid::new("b"));
        endpoints.eject(&a);
        endpoints.eject(&b);
        endpoints.eject(&b);
        assert_eq!(endpoints.ejected(), [a.clone(), b.clone()]);
        endpoints.restore(&a);
        assert_eq!(endpoints.ejected(), [b]);
        tokio::time::sleep(EJECTION).await;
        assert!(endpoints.ejected().is_empty());
    }

    #[test]
    fn connections_count_while_they_live() {
        let endpoints = Endpoints::default();
        let uid = WorkloadUid::new("a");
        let (one, two) = (endpoints.enter(&uid), endpoints.enter(&uid));
        assert_eq!(endpoints.outstanding(&uid), 2);
        drop(one);
        endpoints.sweep();
        assert_eq!(endpoints.outstanding(&uid), 1);
        drop(two);
        endpoints.sweep();
        assert_eq!(endpoints.outstanding(&uid), 0);
        assert!(endpoints.outstanding.borrow().is_empty());
    }
}
