//! The agent's loop: the one writer of the state machine. It carries out what the
//! state machine decides and brings back what came of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use culvert_netns::Netns;
use culvert_runtime::{ConnectionTracker, DrainWatch, chain};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::disk::{Disk, DiskError};
use crate::jobs::{self, Node};
use crate::keeper::Keeper;
use crate::metrics::{AddResult, AgentMetrics, JobResult};
use crate::packet;
use crate::state::{
    Action, AddFault, Added, ConnectionId, Event, Job, JobDone, JobFault, Request, RequestId,
    Sandbox, State, Summary, Uid, View,
};
use crate::zds::Command;

/// How long an ADD may take: a node proxy that is being replaced is back by then,
/// and container runtimes wait longer.
const ADD_DEADLINE: Duration = Duration::from_secs(30);
/// What failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Every pod is looked at again.
const REASSERT: Duration = Duration::from_secs(30);
/// Messages that wait: each sender waits for a place, so this bounds memory only.
const INBOX: usize = 256;
/// Jobs at a time: each takes a thread, and the kernel's locks make more pointless.
const JOBS_MAX: usize = 4;
/// Jobs that wait: one for each pod at most.
const JOBS_WAITING_MAX: usize = 8192;

/// Something for the loop.
#[derive(Debug)]
pub enum Message {
    /// For the state machine.
    Event(Event),
    /// A node proxy has said hello; its requests go here.
    ProxyConnected(ConnectionId, mpsc::Sender<Command>),
    /// A CNI ADD.
    Add(Sandbox, oneshot::Sender<Result<Added, AddFault>>),
    /// A CNI CHECK.
    Check(String, oneshot::Sender<Result<(), String>>),
    /// Somebody wants to look.
    View(oneshot::Sender<View>),
    /// A job has ended.
    JobEnded(Box<(Uid, u64, jobs::Ended)>),
}

/// Where messages for the loop go.
#[derive(Debug, Clone)]
pub struct Inbox(mpsc::Sender<Message>);

impl Inbox {
    /// Waits for a place. After the loop's end messages are of no interest.
    ///
    /// # Cancel safety
    /// A cancelled send sends nothing.
    pub async fn send(&self, message: Message) {
        let _ = self.0.send(message).await;
    }
}

/// What the loop works with.
#[derive(Debug)]
pub struct Agent {
    state: State,
    node: Node,
    disk: Disk,
    keeper: Keeper,
    metrics: AgentMetrics,
    inbox: Inbox,
    messages: mpsc::Receiver<Message>,
    summary: watch::Sender<Summary>,
    jobs: ConnectionTracker,
    places: Arc<Semaphore>,
    proxies: HashMap<ConnectionId, mpsc::Sender<Command>>,
    netns: HashMap<Uid, Netns>,
    adds: BTreeMap<RequestId, PendingAdd>,
    next_request: AtomicU64,
    objects_seen: bool,
}

#[derive(Debug)]
struct PendingAdd {
    since: Instant,
    answer: oneshot::Sender<Result<Added, AddFault>>,
}

/// What the agent is made of.
#[derive(Debug)]
pub struct Parts {
    /// This node.
    pub node: Node,
    /// The agent's files.
    pub disk: Disk,
    /// The kept sockets.
    pub keeper: Keeper,
    /// The metrics.
    pub metrics: AgentMetrics,
    /// Namespaces that are never enrolled.
    pub exempt: BTreeSet<String>,
}

impl Agent {
    /// An agent that has not started.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let (sender, messages) = mpsc::channel(INBOX);
        Self {
            state: State::new(parts.exempt),
            node: parts.node,
            disk: parts.disk,
            keeper: parts.keeper,
            metrics: parts.metrics,
            inbox: Inbox(sender),
            messages,
            summary: watch::Sender::new(Summary::default()),
            jobs: ConnectionTracker::new(JOBS_WAITING_MAX),
            places: Arc::new(Semaphore::new(JOBS_MAX)),
            proxies: HashMap::new(),
            netns: HashMap::new(),
            adds: BTreeMap::new(),
            next_request: AtomicU64::new(1),
            objects_seen: false,
        }
    }

    /// Where its messages go.
    #[must_use]
    pub fn inbox(&self) -> Inbox {
        self.inbox.clone()
    }

    /// Its state in numbers.
    #[must_use]
    pub fn summary(&self) -> watch::Receiver<Summary> {
        self.summary.subscribe()
    }

    /// Takes up what an earlier agent left.
    ///
    /// # Errors
    /// When its records cannot be read.
    pub fn restore(&mut self) -> Result<(), DiskError> {
        let (records, faults) = self.disk.records()?;
        for fault in faults {
            tracing::error!(error = chain(&fault), "record of a pod is left aside");
        }
        tracing::info!(pods = records.len(), "known from before");
        self.handle(Event::Restored(records));
        Ok(())
    }

    /// Runs until the agent stops. Rules stay: pods outlive their agent.
    ///
    /// # Errors
    /// When no signal handler can be installed.
    pub async fn run(mut self, drain: DrainWatch) -> Result<(), std::io::Error> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut second = ticker(Duration::from_secs(1));
        let mut retry = ticker(RETRY);
        let mut reassert = ticker(REASSERT);
        loop {
            tokio::select! {
                message = self.messages.recv() => match message {
                    Some(message) => self.take(message),
                    None => return Ok(()),
                },
                _ = second.tick() => self.expire(),
                _ = retry.tick() => self.handle(Event::Retry),
                _ = reassert.tick() => self.handle(Event::Reassert),
                _ = hangup.recv() => self.handle(Event::Reassert),
                _ = drain.started() => break,
            }
        }
        self.jobs.abort_all();
        Ok(())
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Event(event) => {
                if let Event::Disconnected(connection) = event {
                    self.proxies.remove(&connection);
                }
                self.handle(event);
            }
            Message::ProxyConnected(connection, sender) => {
                self.proxies.insert(connection, sender);
                self.handle(Event::Connected(connection));
            }
            Message::Add(sandbox, answer) => self.add(sandbox, answer),
            Message::Check(sandbox, answer) => {
                // The caller may be gone; then nobody wants to know.
                let _ = answer.send(self.state.check(&sandbox));
            }
            Message::View(answer) => {
                let _ = answer.send(self.state.view());
            }
            Message::JobEnded(ended) => {
                let (uid, attempt, ended) = *ended;
                self.job_ended(uid, attempt, ended);
            }
        }
    }

    fn add(&mut self, sandbox: Sandbox, answer: oneshot::Sender<Result<Added, AddFault>>) {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let since = Instant::now();
        self.adds.insert(request, PendingAdd { since, answer });
        self.handle(Event::Add { request, sandbox });
    }

    fn expire(&mut self) {
        let late: Vec<RequestId> = self
            .adds
            .iter()
            .filter(|(_, add)| add.since.elapsed() > ADD_DEADLINE || add.answer.is_closed())
            .map(|(request, _)| *request)
            .collect();
        for request in late {
            self.handle(Event::AddExpired(request));
        }
    }

    fn job_ended(&mut self, uid: Uid, attempt: u64, ended: jobs::Ended) {
        let result = match (&ended.outcome, &ended.installed) {
            (Err(_), _) => Some(JobResult::Failed),
            (Ok(JobDone::Uninstalled), _) => Some(JobResult::Removed),
            (Ok(_), Some(installed)) => Some(match installed.outcome {
                crate::redirect::Outcome::Changed => JobResult::Changed,
                crate::redirect::Outcome::Unchanged => JobResult::Unchanged,
            }),
            (Ok(_), None) => None,
        };
        if let Some(result) = result {
            self.metrics.job(result);
        }
        match &ended.outcome {
            Err(fault) => {
                tracing::warn!(pod = &*uid, error = fault.reason, "work in the pod failed");
            }
            Ok(JobDone::Installed(_)) if result == Some(JobResult::Changed) => {
                tracing::info!(pod = &*uid, details = ?ended.installed, "redirect rules written");
            }
            Ok(_) => {}
        }
        // A late result of an earlier sandbox must not leave its namespace here.
        if self.state.expects(&uid, attempt)
            && let Some(netns) = ended.netns
        {
            self.netns.insert(Arc::clone(&uid), netns);
        }
        self.handle(Event::JobDone {
            uid,
            attempt,
            outcome: ended.outcome,
        });
    }

    fn handle(&mut self, event: Event) {
        let first_objects = matches!(event, Event::Objects(_)) && !self.objects_seen;
        let actions = self.state.handle(event);
        if first_objects {
            self.objects_seen = true;
            self.forget_statuses(&actions);
        }
        for action in actions {
            self.carry_out(action);
        }
        let summary = self.state.summary();
        self.metrics.show(&summary, self.keeper.len());
        self.summary.send_if_modified(|before| {
            let changed = *before != summary;
            *before = summary;
            changed
        });
    }

    /// An earlier agent may have told of pods that are gone now.
    fn forget_statuses(&self, actions: &[Action]) {
        let told = actions.iter().filter_map(|action| match action {
            Action::WriteStatus(status) => Some((status.namespace.clone(), status.name.clone())),
            _ => None,
        });
        self.note(self.disk.retain_statuses(&told.collect()));
    }

    fn note(&self, result: Result<(), DiskError>) {
        if let Err(error) = result {
            tracing::error!(error = chain(&error), "file of the agent");
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Save(record) => self.note(self.disk.save(&record)),
            Action::Forget(sandbox) => self.note(self.disk.forget(&sandbox)),
            Action::Release(uid) => drop(self.netns.remove(&uid)),
            Action::Start {
                uid,
                attempt,
                sandbox,
                job,
            } => self.start(uid, attempt, sandbox, job),
            Action::Send {
                connection,
                sequence,
                request,
            } => self.send(connection, sequence, &request),
            Action::Close(connection) => {
                tracing::warn!(connection, "ZDS connection closed: answers out of order");
                self.proxies.remove(&connection);
            }
            Action::KeepSockets(uid) => self.keeper.allow(&uid),
            Action::DropSockets(uid) => self.keeper.drop_pod(&uid),
            Action::SetProbes { attempt, targets } => self.set_probes(attempt, targets),
            Action::WriteStatus(status) => {
                tracing::info!(
                    pod = status.name,
                    namespace = status.namespace,
                    enrolled = status.enrolled,
                    reason = status.reason,
                    "enrollment"
                );
                self.note(self.disk.write_status(&status));
            }
            Action::RemoveStatus { namespace, name } => {
                self.note(self.disk.remove_status(&namespace, &name));
            }
            Action::Answer { request, answer } => self.answer(request, answer),
        }
    }

    fn answer(&mut self, request: RequestId, answer: Result<Added, AddFault>) {
        let Some(add) = self.adds.remove(&request) else {
            return;
        };
        let result = match &answer {
            Ok(Added::Enrolled) => AddResult::Enrolled,
            Ok(Added::NotEnrolled(_)) => AddResult::NotEnrolled,
            Err(_) => AddResult::Failed,
        };
        self.metrics.add(result, add.since.elapsed().as_secs_f64());
        // The plugin may have been killed meanwhile.
        let _ = add.answer.send(answer);
    }

    fn send(&self, connection: ConnectionId, sequence: u64, request: &Request) {
        let Some(proxy) = self.proxies.get(&connection) else {
            return;
        };
        let netns = match request {
            Request::Add { uid, .. } => self.netns.get(uid).cloned(),
            Request::Keep(_) | Request::Delete(_) | Request::SnapshotSent => None,
        };
        match packet::encode(request) {
            Ok(bytes) => {
                let command = Command {
                    sequence,
                    bytes,
                    netns,
                };
                // One request at a time: there is a place, or the connection is gone
                // and its end is on the way here.
                let _ = proxy.try_send(command);
            }
            Err(error) => {
                let event = Event::Acknowledged {
                    connection,
                    sequence,
                    error: chain(&error),
                };
                self.later(Message::Event(event));
            }
        }
    }

    /// Sends a message to the loop itself, which must not wait for a place.
    fn later(&self, message: Message) {
        let inbox = self.inbox.clone();
        let sent = self.jobs.spawn(async move { inbox.send(message).await });
        if sent.is_err() {
            tracing::error!("too much work is waiting");
        }
    }

    fn start(&self, uid: Uid, attempt: u64, sandbox: Sandbox, job: Job) {
        let node = self.node.clone();
        let opened = self.netns.get(&uid).cloned();
        let inbox = self.inbox.clone();
        let places = Arc::clone(&self.places);
        let started = self.jobs.spawn(async move {
            let _place = places.acquire().await;
            let ended = blocking(move || jobs::run(&node, &sandbox, &job, opened.as_ref())).await;
            let ended = ended.unwrap_or_else(|reason| jobs::Ended {
                outcome: Err(JobFault {
                    reason,
                    gone: false,
                }),
                netns: None,
                installed: None,
            });
            let message = Message::JobEnded(Box::new((uid, attempt, ended)));
            inbox.send(message).await;
        });
        if started.is_err() {
            tracing::error!("too much work is waiting");
        }
    }

    fn set_probes(&self, attempt: u64, targets: Vec<crate::rules::ProbeTarget>) {
        let node = self.node.clone();
        let inbox = self.inbox.clone();
        let started = self.jobs.spawn(async move {
            let result = blocking(move || jobs::set_probes(&node, &targets)).await;
            let done = match result.flatten() {
                Ok(()) => true,
                Err(error) => {
                    tracing::error!(error, "probe rules of the node");
                    false
                }
            };
            let event = Event::ProbesDone { attempt, done };
            inbox.send(Message::Event(event)).await;
        });
        if started.is_err() {
            tracing::error!("too much work is waiting");
        }
    }
}

/// Runs on a thread that may block; a panic there is an error here.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| error.to_string())
}

fn ticker(every: Duration) -> tokio::time::Interval {
    let mut ticker = interval(every);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker
}
