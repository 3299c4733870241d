//! The client of the agent: carries messages between its socket and the session, and
//! does the session's work in order.

mod link;

use std::collections::VecDeque;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_netns::Netns;
use culvert_runtime::{ConditionHandle, DrainWatch, chain};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::metrics::PodMetrics;
use super::packet::{Addition, attach, decode};
use super::session::{Action, Generation, PodState, Session, SocketsKept, StopMode};
use super::view::PodView;
use link::{Link, LinkEvent};

/// A failed start is tried again after this; so is giving sockets to the agent.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The agent waits 5 s for its answer; a worker that is stuck is known after 2 s.
const WORK_DEADLINE: Duration = Duration::from_secs(4);

/// What serves pods: the workers, the DNS proxy, the certificates.
pub trait Host: Send + Sync + 'static {
    /// Opens a pod's sockets and serves it.
    fn start(
        &self,
        pod: Addition<Netns>,
    ) -> impl Future<Output = Result<SocketsKept, String>> + Send;

    /// Ends serving a pod; fine also when it was started only in part, or not at all.
    fn stop(&self, uid: Arc<str>, mode: StopMode) -> impl Future<Output = ()> + Send;

    /// Gives the agent duplicates of a pod's sockets.
    fn keep(&self, uid: Arc<str>) -> impl Future<Output = SocketsKept> + Send;
}

type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

enum Done {
    Started(Arc<str>, Generation, Result<SocketsKept, String>),
    Stopped(Generation),
    Kept(Arc<str>, Generation, SocketsKept),
}

/// The client's parts.
#[derive(Debug)]
pub struct AgentClient<H> {
    host: Arc<H>,
    link: Link,
    session: Session<Netns>,
    queue: VecDeque<Action<Netns>>,
    condition: ConditionHandle,
    metrics: PodMetrics,
    view: watch::Sender<Arc<[PodView]>>,
}

impl<H: Host> AgentClient<H> {
    /// A client of the agent's socket at a path. The condition is met while the agent
    /// has named all its pods; a pod that cannot be started is reported apart.
    #[must_use]
    pub fn new(
        path: PathBuf,
        host: Arc<H>,
        condition: ConditionHandle,
        metrics: PodMetrics,
    ) -> Self {
        condition.set_not_ready("no connection to the CNI agent");
        Self {
            host,
            link: Link::new(path),
            session: Session::new(),
            queue: VecDeque::new(),
            condition,
            metrics,
            view: watch::Sender::new(Arc::default()),
        }
    }

    /// Every pod with its state, as it changes.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<Arc<[PodView]>> {
        self.view.subscribe()
    }

    /// Runs until the process drains. Pods go on then: the workers drain them.
    pub async fn run(mut self, drain: DrainWatch) {
        let mut retry = tokio::time::interval_at(Instant::now() + RETRY_INTERVAL, RETRY_INTERVAL);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut work: Option<Work> = None;
        loop {
            if work.is_none() {
                work = self.next_work();
            }
            tokio::select! {
                _ = drain.started() => return,
                event = self.link.next() => self.linked(event).await,
                done = async { work.as_mut().expect("invariant: checked by the guard").await },
                    if work.is_some() =>
                {
                    work = None;
                    self.done(done).await;
                }
                _ = retry.tick(), if self.session.has_retries() => {
                    // What is under way goes first; the next tick comes soon enough.
                    if self.queue.is_empty() && work.is_none() {
                        let actions = self.session.retry();
                        self.act(actions).await;
                    }
                }
            }
            self.report();
        }
    }

    async fn linked(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Connected => {
                tracing::info!(agent = %self.link.path().display(), "connected to the CNI agent");
                self.session.connected();
            }
            LinkEvent::Lost(reason) => {
                tracing::warn!(reason, "connection to the CNI agent is gone");
                self.session.disconnected();
            }
            LinkEvent::Unreachable(reason) => {
                tracing::debug!(reason, "cannot reach the CNI agent");
            }
            LinkEvent::Packet(packet) => {
                let read = decode(&packet.bytes).and_then(|r| attach(r, packet.fds));
                let actions = match read {
                    Ok(request) => {
                        self.link.is_good();
                        self.session.request(request)
                    }
                    Err(error) => {
                        let text = chain(&error);
                        tracing::warn!(error = text, "packet of the CNI agent refused");
                        self.session.refused(text, error.is_fatal())
                    }
                };
                self.act(actions).await;
            }
            LinkEvent::Unreadable(reason) => {
                tracing::warn!(reason, "packet of the CNI agent is not readable");
                let actions = self.session.refused(reason, true);
                self.act(actions).await;
            }
        }
    }

    async fn act(&mut self, actions: Vec<Action<Netns>>) {
        for action in actions {
            match action {
                Action::Acknowledge(error) => {
                    if let Err(reason) = self.link.acknowledge(&error).await {
                        tracing::warn!(reason, "connection to the CNI agent is gone");
                        self.session.disconnected();
                    }
                }
                Action::Reconnect => {
                    self.link.reconnect();
                    self.session.disconnected();
                }
                work => self.queue.push_back(work),
            }
        }
    }

    fn next_work(&mut self) -> Option<Work> {
        let host = Arc::clone(&self.host);
        let work: Work = match self.queue.pop_front()? {
            Action::Start { pod, generation } => Box::pin(async move {
                let uid = pod.uid.clone();
                let result = start(&*host, pod).await;
                Done::Started(uid, generation, result)
            }),
            Action::Stop {
                uid,
                generation,
                mode,
            } => Box::pin(async move {
                if timeout(WORK_DEADLINE, host.stop(uid.clone(), mode))
                    .await
                    .is_err()
                {
                    tracing::error!(uid = &*uid, "pod has not stopped within {WORK_DEADLINE:?}");
                }
                Done::Stopped(generation)
            }),
            Action::Keep { uid, generation } => Box::pin(async move {
                let kept = timeout(WORK_DEADLINE, host.keep(uid.clone())).await;
                Done::Kept(uid, generation, kept.unwrap_or(SocketsKept(false)))
            }),
            // Done at once by `act`, never queued.
            Action::Acknowledge(_) | Action::Reconnect => return None,
        };
        Some(work)
    }

    async fn done(&mut self, done: Done) {
        let actions = match done {
            Done::Started(uid, generation, result) => {
                match &result {
                    Ok(_) => {
                        self.metrics.started.inc();
                        tracing::info!(uid = &*uid, "pod is served");
                    }
                    Err(reason) => {
                        tracing::warn!(uid = &*uid, reason, "pod cannot be served yet");
                    }
                }
                self.session.started(&uid, generation, result)
            }
            Done::Stopped(generation) => {
                self.metrics.stopped.inc();
                self.session.stopped(generation)
            }
            Done::Kept(uid, generation, kept) => {
                self.session.kept(&uid, generation, kept);
                Vec::new()
            }
        };
        self.act(actions).await;
    }

    /// Readiness, metrics and the list of pods follow the session.
    fn report(&self) {
        if self.session.is_synchronized() {
            self.condition.set_ready();
        } else if self.link.is_connected() {
            self.condition
                .set_not_ready("the CNI agent has not named all pods yet");
        } else {
            self.condition
                .set_not_ready("no connection to the CNI agent");
        }
        let pods: Arc<[PodView]> = self
            .session
            .pods()
            .map(|(pod, state)| PodView::new(pod, state))
            .collect();
        let pending = self
            .session
            .pods()
            .filter(|(_, state)| matches!(state, PodState::Pending(_)))
            .count();
        self.metrics.count(pods.len(), pending);
        self.view.send_if_modified(|current| {
            let changed = *current != pods;
            if changed {
                *current = pods;
            }
            changed
        });
    }
}

/// A start that takes too long is undone: it may have been done in part.
async fn start<H: Host>(host: &H, pod: Addition<Netns>) -> Result<SocketsKept, String> {
    let uid = pod.uid.clone();
    let result = timeout(WORK_DEADLINE, host.start(pod)).await;
    let result =
        result.unwrap_or_else(|_| Err(format!("pod was not served within {WORK_DEADLINE:?}")));
    if result.is_err()
        && timeout(WORK_DEADLINE, host.stop(uid, StopMode::Now))
            .await
            .is_err()
    {
        tracing::error!("a start that failed could not be undone");
    }
    result
}
