//! The workers of the data path, as the control side sees them.
//!
//! Each worker is one OS thread with a single-threaded runtime; a connection,
//! its tunnel and its pool live on one of them. A pod's listeners are accepted
//! by the pod's home worker, which keeps a connection or deals it to another
//! worker that has clearly less to do.

mod command;
mod deal;
mod worker;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use culvert_model::WorkloadUid;
use culvert_netns::{Netns, NetnsError};
use culvert_runtime::{Clock, WorkerError, WorkerHandle, spawn_worker};
use futures_util::future::{join_all, select_all};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::access_log::AccessLog;
use crate::certs::Certificates;
use crate::connections::ConnectionView;
use crate::pods::session::StopMode;
use crate::pods::{Pod, PodListeners};
use crate::state::State;
use crate::traffic::TrafficMetrics;

pub(crate) use command::{Command, Dealt, Entry};
pub(crate) use deal::Loads;
pub(crate) use worker::Worker;

/// Commands that wait for a worker; beyond it whoever deals a connection keeps it.
const COMMANDS_MAX: usize = 1024;
/// A worker that does not take a command within this is stuck.
const COMMAND_DEADLINE: Duration = Duration::from_secs(2);

/// Settings of the data path.
#[derive(Debug, Clone)]
pub struct WorkersConfig {
    /// How many workers.
    pub workers: usize,
    /// Connections at once over all workers. Each one needs two descriptors.
    pub connections_max: usize,
    /// Receive windows of streams that may be promised over all workers, in bytes.
    pub window_bytes_max: u64,
    /// Streams at once on one tunnel that we open.
    pub tunnel_streams_max: u32,
}

impl WorkersConfig {
    /// Half a gigabyte of windows is a promise that only stopped readers use up.
    const WINDOW_BYTES_MAX: u64 = 512 << 20;

    /// The usual settings for a number of workers, as far as descriptors go.
    #[must_use]
    pub fn new(workers: usize, descriptors: u64) -> Self {
        let connections = usize::try_from(descriptors.saturating_sub(256) / 2);
        Self {
            workers: workers.max(1),
            connections_max: connections.unwrap_or(usize::MAX).max(64),
            window_bytes_max: Self::WINDOW_BYTES_MAX,
            tunnel_streams_max: 100,
        }
    }
}

/// What the workers need from the rest of the process.
#[derive(Debug, Clone)]
pub struct WorkersParts {
    /// The mesh.
    pub state: State,
    /// Certificates of the pods.
    pub certificates: Certificates,
    /// Metrics of the data path.
    pub traffic: TrafficMetrics,
    /// The access log.
    pub access_log: AccessLog,
    /// For the validity of certificates.
    pub clock: Arc<dyn Clock>,
}

/// The workers could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartWorkersError {
    /// A thread or its runtime.
    #[error("cannot start a worker")]
    Worker(#[source] WorkerError),
    /// The process's own network namespace.
    #[error("cannot open the network namespace of the process")]
    Netns(#[source] NetnsError),
}

/// A command did not reach a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} does not answer")]
pub struct WorkerStuck {
    worker: usize,
}

/// A worker ended although nobody asked it to.
#[derive(Debug, thiserror::Error)]
#[error("worker {worker} ended")]
pub struct WorkerEnded {
    worker: usize,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: WorkersConfig,
    pub(crate) parts: WorkersParts,
    /// The process's own namespace, where the threads are at home.
    pub(crate) home: Netns,
    /// Pods of this node by their record: who can be handed a connection.
    pub(crate) local: ArcSwap<HashMap<WorkloadUid, Arc<Pod>>>,
    pub(crate) loads: Loads,
    pub(crate) senders: Vec<mpsc::Sender<Command>>,
    pub(crate) draining: AtomicBool,
}

/// The workers. Dropping it ends them and every connection.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    handles: Mutex<Vec<WorkerHandle>>,
    homes: Mutex<HashMap<Arc<str>, usize>>,
}

// The locks are held for one operation, never across an await.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// Starts the workers.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub fn start(config: WorkersConfig, parts: WorkersParts) -> Result<Self, StartWorkersError> {
        let count = config.workers;
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::channel(COMMANDS_MAX)).unzip();
        let shared = Arc::new(Shared {
            config,
            parts,
            home: Netns::current().map_err(StartWorkersError::Netns)?,
            local: ArcSwap::default(),
            loads: Loads::new(count),
            senders,
            draining: AtomicBool::new(false),
        });
        let mut handles = Vec::with_capacity(count);
        for (index, commands) in receivers.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let body = move || worker::run(index, shared, commands);
            let handle = spawn_worker(&format!("worker-{index}"), body);
            handles.push(handle.map_err(StartWorkersError::Worker)?);
        }
        Ok(Self {
            shared,
            handles: Mutex::new(handles),
            homes: Mutex::default(),
        })
    }

    /// Waits until a worker ends, which none does by itself: a critical task of
    /// the process. To be called once.
    ///
    /// # Errors
    /// Always, with the worker's own error or panic.
    pub async fn ended(&self) -> Result<(), WorkerEnded> {
        let handles = std::mem::take(&mut *lock(&self.handles));
        if handles.is_empty() {
            return std::future::pending().await;
        }
        let joins = handles.into_iter().map(|handle| Box::pin(handle.join()));
        let (result, worker, _) = select_all(joins).await;
        Err(WorkerEnded {
            worker,
            source: result.err(),
        })
    }

    /// Serves a pod: returns once its listeners are accepted on.
    ///
    /// # Errors
    /// When the pod's home worker does not answer.
    pub async fn add_pod(
        &self,
        pod: impl Into<Arc<Pod>>,
        listeners: PodListeners,
    ) -> Result<(), WorkerStuck> {
        let pod = pod.into();
        let home = self.home_of(&pod.uid);
        let (done, served) = oneshot::channel();
        let command = Command::Add {
            pod: Arc::clone(&pod),
            listeners,
            done,
        };
        self.send(home, command).await?;
        self.answer(home, served).await?;
        self.shared.local.rcu(|all| {
            let mut next = HashMap::clone(all);
            next.insert(pod.workload.clone(), Arc::clone(&pod));
            next
        });
        Ok(())
    }

    /// Serves a pod no longer. With [`StopMode::Now`] its connections are closed
    /// before this returns; with [`StopMode::Drain`] they may finish, and no new
    /// ones are taken.
    pub async fn remove_pod(&self, uid: &Arc<str>, mode: StopMode) {
        lock(&self.homes).remove(uid);
        self.shared.local.rcu(|all| {
            let mut next = HashMap::clone(all);
            next.retain(|_, pod| pod.uid != *uid);
            next
        });
        let removals = (0..self.shared.senders.len()).map(|worker| async move {
            let (done, removed) = oneshot::channel();
            let uid = Arc::clone(uid);
            let command = Command::Remove { uid, mode, done };
            if self.send(worker, command).await.is_ok() {
                let _ = self.answer(worker, removed).await;
            }
        });
        join_all(removals).await;
    }

    /// Takes no new connection, tells peers to open no more streams, and waits
    /// until all connections have ended, at most until `deadline`; then closes
    /// the rest and answers how many those were.
    pub async fn drain(&self, deadline: Instant) -> usize {
        self.shared.draining.store(true, Ordering::Release);
        let drains = (0..self.shared.senders.len()).map(|worker| async move {
            let (done, drained) = oneshot::channel();
            if self
                .send(worker, Command::Drain { deadline, done })
                .await
                .is_err()
            {
                return 0;
            }
            drained.await.unwrap_or(0)
        });
        join_all(drains).await.into_iter().sum()
    }

    /// Every open connection, for people.
    pub async fn connections(&self) -> Vec<ConnectionView> {
        let views = (0..self.shared.senders.len()).map(|worker| async move {
            let (answer, view) = oneshot::channel();
            if self.send(worker, Command::View(answer)).await.is_err() {
                return Vec::new();
            }
            let mut views = self.answer(worker, view).await.unwrap_or_default();
            for view in &mut views {
                view.worker = worker;
            }
            views
        });
        join_all(views).await.concat()
    }

    /// The worker with the fewest pods at home, or the one that the pod has.
    fn home_of(&self, uid: &Arc<str>) -> usize {
        let mut homes = lock(&self.homes);
        if let Some(home) = homes.get(uid) {
            return *home;
        }
        let count = |worker| homes.values().filter(|home| **home == worker).count();
        let home = (0..self.shared.senders.len()).min_by_key(|worker| count(*worker));
        let home = home.unwrap_or_default();
        homes.insert(Arc::clone(uid), home);
        home
    }

    async fn send(&self, worker: usize, command: Command) -> Result<(), WorkerStuck> {
        let sending = self.shared.senders[worker].send(command);
        match timeout(COMMAND_DEADLINE, sending).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(WorkerStuck { worker }),
        }
    }

    async fn answer<T>(
        &self,
        worker: usize,
        answer: oneshot::Receiver<T>,
    ) -> Result<T, WorkerStuck> {
        match timeout(COMMAND_DEADLINE, answer).await {
            Ok(Ok(value)) => Ok(value),
            _ => Err(WorkerStuck { worker }),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for sender in &self.shared.senders {
            // A worker that is gone needs no telling.
            let _ = sender.try_send(Command::Stop);
        }
    }
}
