//! One worker: its state, and how it obeys.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use culvert_hbone::Windows;
use culvert_runtime::ConnectionTracker;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::Shared;
use super::command::{Command, Dealt, Entry};
use crate::access_log::LogBuffer;
use crate::connections::{CloseReason, Connections};
use crate::endpoints::Endpoints;
use crate::pods::session::StopMode;
use crate::pods::{Pod, PodListeners};
use crate::redirect::{self, Serving};
use crate::traffic::Shed;
use crate::tunnels::Tunnels;
use crate::{inbound, outbound};

/// Snapshots that follow each other faster are judged together.
const JUDGE_INTERVAL: Duration = Duration::from_millis(20);
/// How often what is not in use any more is forgotten.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Tunnels and their drivers beside the connections.
const TUNNELS_MAX: usize = 65_536;
/// How often a draining worker looks whether it is done.
const DRAIN_CHECK: Duration = Duration::from_millis(20);

/// The state of a worker; everything of it stays on its thread.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: Rc<Connections>,
    pub(crate) endpoints: Rc<Endpoints>,
    pub(crate) tunnels: Tunnels,
    pub(crate) windows: Windows,
    /// Connections of applications.
    pub(crate) tracker: ConnectionTracker,
    /// Tunnels, which outlive the connections in them.
    pub(crate) tunnel_tracker: ConnectionTracker,
    serving: RefCell<HashMap<Arc<str>, Serving>>,
    rng: RefCell<SmallRng>,
    /// Given up to accept (and refuse) one connection when descriptors run out.
    spare: RefCell<Option<File>>,
    panics_seen: Cell<u64>,
}

impl Worker {
    fn new(index: usize, shared: Arc<Shared>) -> Self {
        let count = shared.config.workers.max(1);
        let parts = &shared.parts;
        let log = LogBuffer::new(parts.access_log.clone());
        Self {
            index,
            connections: Rc::new(Connections::new(parts.traffic.clone(), log)),
            endpoints: Rc::default(),
            tunnels: Tunnels::default(),
            windows: Windows::new(shared.config.window_bytes_max / count as u64),
            tracker: ConnectionTracker::new((shared.config.connections_max / count).max(1)),
            tunnel_tracker: ConnectionTracker::new(TUNNELS_MAX),
            serving: RefCell::default(),
            rng: RefCell::new(SmallRng::from_os_rng()),
            spare: RefCell::new(open_spare()),
            panics_seen: Cell::new(0),
            shared,
        }
    }

    /// A number below `end`, each with the same probability; 0 for no range.
    pub(crate) fn random_below(&self, end: u32) -> u32 {
        if end == 0 {
            0
        } else {
            self.rng.borrow_mut().random_range(0..end)
        }
    }

    pub(crate) fn random_id(&self) -> u64 {
        self.rng.borrow_mut().random()
    }

    pub(crate) fn random_trace(&self) -> (u128, u64) {
        let mut rng = self.rng.borrow_mut();
        (
            rng.random_range(1..u128::MAX),
            rng.random_range(1..u64::MAX),
        )
    }

    /// Serves an accepted connection on this worker.
    pub(crate) fn serve(
        self: &Rc<Self>,
        pod: Arc<Pod>,
        entry: Entry,
        accepted: redirect::Accepted,
    ) {
        let tracker = if entry == Entry::Tunnel {
            &self.tunnel_tracker
        } else {
            &self.tracker
        };
        let Ok(permit) = tracker.try_reserve() else {
            self.shared.parts.traffic.totals().shed(Shed::Connections);
            accepted.abort();
            return;
        };
        let worker = Rc::clone(self);
        let load = Load::enter(self);
        match entry {
            Entry::Outbound => permit.spawn_local(async move {
                let _load = load;
                outbound::serve(worker, pod, accepted).await;
            }),
            Entry::Inbound => permit.spawn_local(async move {
                let _load = load;
                inbound::serve_plain(worker, pod, accepted).await;
            }),
            Entry::Tunnel => permit.spawn_local(async move {
                drop(load);
                inbound::serve_tunnel(worker, pod, accepted).await;
            }),
        }
    }

    /// Closes one waiting connection with a RST, so that its client does not
    /// hang, although there is no descriptor left. `accept` says whether there
    /// was one: the kernel asks for a descriptor before it looks.
    pub(crate) fn shed_one(&self, accept: impl FnOnce() -> bool) {
        drop(self.spare.borrow_mut().take());
        if accept() {
            self.shared.parts.traffic.totals().shed(Shed::Descriptors);
        }
        *self.spare.borrow_mut() = open_spare();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire)
    }

    fn add(self: &Rc<Self>, pod: &Arc<Pod>, listeners: PodListeners) {
        match redirect::start(self, pod, listeners) {
            Ok(serving) => {
                self.serving
                    .borrow_mut()
                    .insert(Arc::clone(&pod.uid), serving);
            }
            Err(error) => {
                tracing::error!(?pod, %error, "the pod's listeners cannot be accepted on");
            }
        }
    }

    fn remove(&self, uid: &Arc<str>, mode: StopMode) {
        // Ends the accept loops.
        drop(self.serving.borrow_mut().remove(uid));
        self.tunnels.stop_pod(uid, mode);
        if mode == StopMode::Now {
            self.connections.close_pod(uid, &CloseReason::PodGone);
        }
    }

    fn receive(self: &Rc<Self>, dealt: Dealt) {
        let Dealt {
            pod,
            entry,
            stream,
            client,
        } = dealt;
        match TcpStream::from_std(stream) {
            Ok(stream) => self.serve(pod, entry, redirect::Accepted { stream, client }),
            Err(error) => tracing::warn!(%error, "a dealt connection cannot be polled"),
        }
    }

    async fn drain(self: Rc<Self>, deadline: Instant) -> usize {
        self.serving.borrow_mut().clear();
        self.tunnels.drain();
        while self.tracker.open() > 0 && Instant::now() < deadline {
            sleep(DRAIN_CHECK).await;
        }
        let cut = self.tracker.abort_all();
        self.tunnel_tracker.abort_all();
        // Aborted tasks are dropped, and log, when they are scheduled next.
        tokio::task::yield_now().await;
        self.connections.log.flush();
        cut
    }

    fn sweep(&self) {
        self.tunnels.sweep();
        self.endpoints.sweep();
        self.connections.log_lasting();
        let panics = self.tracker.panics() + self.tunnel_tracker.panics();
        for _ in self.panics_seen.replace(panics)..panics {
            self.shared.parts.traffic.totals().panicked();
        }
        if self.spare.borrow().is_none() {
            *self.spare.borrow_mut() = open_spare();
        }
    }
}

fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Counts a connection of this worker for as long as it lives.
struct Load {
    shared: Arc<Shared>,
    index: usize,
}

impl Load {
    fn enter(worker: &Worker) -> Self {
        worker.shared.loads.enter(worker.index);
        Self {
            shared: Arc::clone(&worker.shared),
            index: worker.index,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.loads.leave(self.index);
    }
}

/// The body of a worker's thread.
pub(super) async fn run(index: usize, shared: Arc<Shared>, commands: mpsc::Receiver<Command>) {
    let worker = Rc::new(Worker::new(index, shared));
    tokio::select! {
        () = obey(&worker, commands) => {}
        () = judge(&worker) => {}
        () = sweep(&worker) => {}
        () = worker.connections.log.run() => {}
    }
    worker.connections.log.flush();
}

async fn obey(worker: &Rc<Worker>, mut commands: mpsc::Receiver<Command>) {
    let mut drains = FuturesUnordered::<LocalBoxFuture<'_, ()>>::new();
    loop {
        let command = tokio::select! {
            command = commands.recv() => command,
            Some(()) = drains.next() => continue,
        };
        let Some(command) = command else { return };
        match command {
            Command::Add {
                pod,
                listeners,
                done,
            } => {
                worker.add(&pod, listeners);
                let _ = done.send(());
            }
            Command::Remove { uid, mode, done } => {
                worker.remove(&uid, mode);
                let _ = done.send(());
            }
            Command::Connection(dealt) => worker.receive(dealt),
            Command::View(answer) => {
                let _ = answer.send(worker.connections.view());
            }
            Command::Drain { deadline, done } => {
                let draining = Rc::clone(worker).drain(deadline);
                drains.push(Box::pin(async move {
                    let _ = done.send(draining.await);
                }));
            }
            Command::Stop => return,
        }
    }
}

async fn judge(worker: &Rc<Worker>) {
    let state = &worker.shared.parts.state;
    let mut version = state.subscribe();
    while version.changed().await.is_ok() {
        worker.connections.judge_again(&state.snapshot());
        sleep(JUDGE_INTERVAL).await;
    }
}

async fn sweep(worker: &Rc<Worker>) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        worker.sweep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a connection's task, which it holds for as long as it lives.
    fn bytes<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_connections_task_is_small() {
        // Buffers exist only while bytes are on their way, and what only the
        // set-up needs is boxed and gone; the rest has to fit the 5 KiB that an
        // idle connection may cost, together with its socket and stream.
        let outbound = bytes(outbound::serve);
        let plain = bytes(inbound::serve_plain);
        let stream = inbound::stream_bytes();
        for (name, size) in [("outbound", outbound), ("plain", plain), ("stream", stream)] {
            assert!(size <= 1536, "{name}: {size} bytes");
        }
    }
}
