//! The tunnels of one worker: those it opens, pooled by who talks to whom, and
//! those that peers opened to its pods.

mod opened;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use culvert_hbone::pool::Pool;
use culvert_identity::Identity;
use foldhash::fast::RandomState;
use tokio::sync::Notify;

use crate::fault::LegError;
use crate::pods::session::StopMode;

pub(crate) use opened::{CONNECT_LIMIT, Target, open_stream};

/// Who talks to whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TunnelKey {
    pub(crate) source: Identity,
    pub(crate) allowed: Vec<Identity>,
    pub(crate) address: SocketAddr,
    pub(crate) source_ip: IpAddr,
    /// Two pods of one identity never share a tunnel: it leaves from one of
    /// their namespaces.
    pub(crate) pod: Arc<str>,
}

/// The tunnels of a worker.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    pub(crate) pool: Pool<TunnelKey, Rc<LegError>, RandomState>,
    accepted: RefCell<Vec<Weak<AcceptedTunnel>>>,
}

/// A tunnel that a peer opened to a pod of ours.
#[derive(Debug)]
pub(crate) struct AcceptedTunnel {
    pod: Arc<str>,
    order: std::cell::Cell<Option<StopMode>>,
    ordered: Notify,
}

impl AcceptedTunnel {
    /// Waits until the tunnel has to drain or to end.
    ///
    /// # Cancel safety
    /// The order stays.
    pub(crate) async fn ordered(&self, known: Option<StopMode>) -> StopMode {
        loop {
            match self.order.get() {
                Some(mode) if Some(mode) != known => return mode,
                _ => self.ordered.notified().await,
            }
        }
    }

    fn order(&self, mode: StopMode) {
        if self.order.get() != Some(StopMode::Now) {
            self.order.set(Some(mode));
            self.ordered.notify_one();
        }
    }
}

impl Tunnels {
    /// Notes a tunnel to a pod for as long as the answer lives.
    pub(crate) fn accepted(&self, pod: &Arc<str>) -> Rc<AcceptedTunnel> {
        let tunnel = Rc::new(AcceptedTunnel {
            pod: Arc::clone(pod),
            order: std::cell::Cell::new(None),
            ordered: Notify::new(),
        });
        self.accepted.borrow_mut().push(Rc::downgrade(&tunnel));
        tunnel
    }

    fn each_accepted(&self, mut visit: impl FnMut(&AcceptedTunnel)) {
        for tunnel in self.accepted.borrow().iter().filter_map(Weak::upgrade) {
            visit(&tunnel);
        }
    }

    pub(crate) fn stop_pod(&self, pod: &Arc<str>, mode: StopMode) {
        self.each_accepted(|tunnel| {
            if tunnel.pod == *pod {
                tunnel.order(mode);
            }
        });
        self.pool.retire(|key| key.pod == *pod);
    }

    /// Peers are told to open no more streams.
    pub(crate) fn drain(&self) {
        self.each_accepted(|tunnel| tunnel.order(StopMode::Drain));
    }

    pub(crate) fn sweep(&self) {
        self.accepted
            .borrow_mut()
            .retain(|tunnel| tunnel.strong_count() > 0);
        self.pool.sweep();
    }
}
