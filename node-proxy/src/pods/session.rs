//! The pods of this node as a state machine: messages of the agent and results of
//! work go in, work and answers come out. No IO, no clock.
//!
//! Work is done strictly in the order in which it came out, one piece at a time, so
//! two starts of one pod never overlap. Each start has a generation; a result of an
//! older one is of no interest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::packet::{Addition, Info, Request};

/// Far above what any kubelet runs on a node; bounds what a faulty agent can cost.
const PODS_MAX: usize = 4096;

/// Tells the starts of pods apart.
pub type Generation = u64;

/// Something to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<N> {
    /// Open the pod's listeners and serve it; report [`Session::started`].
    Start {
        /// The pod.
        pod: Addition<N>,
        /// To be given back.
        generation: Generation,
    },
    /// End serving it; report [`Session::stopped`].
    Stop {
        /// The pod.
        uid: Arc<str>,
        /// That start of it.
        generation: Generation,
        /// How.
        mode: StopMode,
    },
    /// Give the agent duplicates of its sockets; report [`Session::kept`].
    Keep {
        /// The pod.
        uid: Arc<str>,
        /// That start of it.
        generation: Generation,
    },
    /// Answer the request in hand; an empty text is success.
    Acknowledge(String),
    /// Close the connection and open a new one.
    Reconnect,
}

/// How a pod's service ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Open connections may finish: the pod has moved to another namespace.
    Drain,
    /// The pod is gone.
    Now,
}

/// Where a pod stands, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodState {
    /// Being started.
    Starting,
    /// Served.
    Up,
    /// Start failed; it is tried again.
    Pending(String),
}

#[derive(Debug)]
struct Entry<N> {
    pod: Addition<N>,
    generation: Generation,
    state: PodState,
    /// The agent has duplicates of its sockets.
    kept: bool,
}

/// What the agent waits for.
#[derive(Debug, PartialEq, Eq)]
enum Awaited {
    Start(Arc<str>, Generation),
    Stop(Generation),
}

#[derive(Debug)]
struct Connection {
    /// Pods named since it began.
    named: BTreeSet<Arc<str>>,
    snapshot_sent: bool,
    awaited: Option<Awaited>,
}

/// The state machine.
#[derive(Debug)]
pub struct Session<N> {
    pods: BTreeMap<Arc<str>, Entry<N>>,
    connection: Option<Connection>,
    last_generation: Generation,
}

impl<N: Clone + PartialEq> Session<N> {
    /// No pods, no connection.
    #[must_use]
    pub fn new() -> Self {
        Self {
            pods: BTreeMap::new(),
            connection: None,
            last_generation: 0,
        }
    }

    /// A connection to the agent stands. All pods go on as they are.
    pub fn connected(&mut self) {
        let named = BTreeSet::new();
        self.connection = Some(Connection {
            named,
            snapshot_sent: false,
            awaited: None,
        });
        // It may be another agent, or the same one after a restart.
        for entry in self.pods.values_mut() {
            entry.kept = false;
        }
    }

    /// The connection is gone. All pods go on as they are.
    pub fn disconnected(&mut self) {
        self.connection = None;
    }

    /// Whether the agent has named every pod on the present connection.
    #[must_use]
    pub fn is_synchronized(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.snapshot_sent)
    }

    /// Every pod with its state.
    pub fn pods(&self) -> impl Iterator<Item = (&Addition<N>, &PodState)> {
        self.pods.values().map(|entry| (&entry.pod, &entry.state))
    }

    /// Whether a pod waits to be tried again, or sockets to be given to the agent.
    #[must_use]
    pub fn has_retries(&self) -> bool {
        let synchronized = self.is_synchronized();
        self.pods.values().any(|entry| match entry.state {
            PodState::Pending(_) => true,
            PodState::Up => synchronized && !entry.kept,
            PodState::Starting => false,
        })
    }

    /// A request of the agent. It sends the next one only after the answer to this
    /// one; if it does not, only a new connection helps.
    pub fn request(&mut self, request: Request<N>) -> Vec<Action<N>> {
        let Some(connection) = &mut self.connection else {
            // A packet that was read before the connection was given up.
            return Vec::new();
        };
        if connection.awaited.is_some() {
            return broken("request before the answer to the last one");
        }
        match request {
            Request::Add(pod) => self.add(pod),
            Request::Delete(uid) => self.delete(&uid),
            Request::Keep(_) if connection.snapshot_sent => broken("keep after the snapshot"),
            Request::Keep(uid) if connection.named.len() < PODS_MAX => {
                connection.named.insert(uid);
                vec![acknowledge()]
            }
            Request::Keep(_) => broken("more pods than a node can have"),
            Request::SnapshotSent if connection.snapshot_sent => broken("second snapshot"),
            Request::SnapshotSent => self.snapshot(),
        }
    }

    /// A packet could not be used. A fatal fault makes the two sides start afresh.
    pub fn refused(&mut self, error: String, fatal: bool) -> Vec<Action<N>> {
        if self.connection.is_none() {
            return Vec::new();
        }
        let mut actions = vec![Action::Acknowledge(error)];
        if fatal {
            actions.push(Action::Reconnect);
        }
        actions
    }

    /// A start is over.
    pub fn started(
        &mut self,
        uid: &Arc<str>,
        generation: Generation,
        result: Result<SocketsKept, String>,
    ) -> Vec<Action<N>> {
        let synchronized = self.is_synchronized();
        let Some(entry) = self.current(uid, generation) else {
            // Stopped or replaced meanwhile; the stop is already on its way.
            return self.answer(
                &Awaited::Start(uid.clone(), generation),
                "pod is gone".into(),
            );
        };
        let error = match result {
            Ok(SocketsKept(kept)) => {
                entry.state = PodState::Up;
                entry.kept = kept;
                String::new()
            }
            Err(reason) => {
                entry.state = PodState::Pending(reason.clone());
                reason
            }
        };
        let retry = synchronized && entry.state == PodState::Up && !entry.kept;
        let mut actions = self.answer(&Awaited::Start(uid.clone(), generation), error);
        if retry {
            actions.push(Action::Keep {
                uid: uid.clone(),
                generation,
            });
        }
        actions
    }

    /// A stop is over.
    pub fn stopped(&mut self, generation: Generation) -> Vec<Action<N>> {
        self.answer(&Awaited::Stop(generation), String::new())
    }

    /// The agent has, or has not, taken duplicates of a pod's sockets.
    pub fn kept(&mut self, uid: &Arc<str>, generation: Generation, result: SocketsKept) {
        if let Some(entry) = self.current(uid, generation) {
            entry.kept = result.0;
        }
    }

    /// Time to try again what failed.
    pub fn retry(&mut self) -> Vec<Action<N>> {
        let synchronized = self.is_synchronized();
        let mut actions = Vec::new();
        for (uid, entry) in &mut self.pods {
            match entry.state {
                PodState::Pending(_) => {
                    self.last_generation += 1;
                    actions.push(entry.start(self.last_generation));
                }
                PodState::Up if synchronized && !entry.kept => {
                    actions.push(Action::Keep {
                        uid: uid.clone(),
                        generation: entry.generation,
                    });
                }
                PodState::Up | PodState::Starting => {}
            }
        }
        actions
    }

    fn add(&mut self, pod: Addition<N>) -> Vec<Action<N>> {
        let uid = pod.uid.clone();
        if self.pods.len() >= PODS_MAX && !self.pods.contains_key(&uid) {
            return vec![Action::Acknowledge(
                "more pods than a node can have".to_owned(),
            )];
        }
        self.named(&uid);
        let mut actions = Vec::new();
        if let Some(entry) = self.pods.get(&uid) {
            let same = entry.pod.netns == pod.netns && entry.pod.info == pod.info;
            match entry.state {
                PodState::Up if same => return vec![acknowledge()],
                PodState::Starting if same => {
                    let generation = entry.generation;
                    self.await_answer(Awaited::Start(uid, generation));
                    return actions;
                }
                // Nothing runs, so nothing is to be stopped.
                PodState::Pending(_) => {}
                PodState::Up | PodState::Starting => actions.push(Action::Stop {
                    uid: uid.clone(),
                    generation: entry.generation,
                    mode: StopMode::Drain,
                }),
            }
        }
        self.last_generation += 1;
        let mut entry = Entry {
            pod,
            generation: 0,
            state: PodState::Starting,
            kept: false,
        };
        actions.push(entry.start(self.last_generation));
        self.pods.insert(uid.clone(), entry);
        self.await_answer(Awaited::Start(uid, self.last_generation));
        actions
    }

    fn delete(&mut self, uid: &Arc<str>) -> Vec<Action<N>> {
        if let Some(connection) = &mut self.connection {
            connection.named.remove(uid);
        }
        match self.pods.remove(uid) {
            Some(entry) if entry.runs() => {
                let (uid, generation) = (uid.clone(), entry.generation);
                self.await_answer(Awaited::Stop(generation));
                vec![Action::Stop {
                    uid,
                    generation,
                    mode: StopMode::Now,
                }]
            }
            // Unknown, or waiting to be tried again: forgotten is all it takes.
            Some(_) | None => vec![acknowledge()],
        }
    }

    fn snapshot(&mut self) -> Vec<Action<N>> {
        let Some(connection) = &mut self.connection else {
            return Vec::new();
        };
        connection.snapshot_sent = true;
        let named = std::mem::take(&mut connection.named);
        let mut actions = vec![acknowledge()];
        self.pods.retain(|uid, entry| {
            let stays = named.contains(uid);
            if !stays && entry.runs() {
                let generation = entry.generation;
                let (uid, mode) = (uid.clone(), StopMode::Now);
                actions.push(Action::Stop {
                    uid,
                    generation,
                    mode,
                });
            } else if stays && entry.state == PodState::Up && !entry.kept {
                let (uid, generation) = (uid.clone(), entry.generation);
                actions.push(Action::Keep { uid, generation });
            }
            stays
        });
        actions
    }

    fn named(&mut self, uid: &Arc<str>) {
        if let Some(connection) = &mut self.connection
            && !connection.snapshot_sent
        {
            connection.named.insert(uid.clone());
        }
    }

    fn current(&mut self, uid: &Arc<str>, generation: Generation) -> Option<&mut Entry<N>> {
        self.pods
            .get_mut(uid)
            .filter(|entry| entry.generation == generation)
    }

    fn await_answer(&mut self, awaited: Awaited) {
        if let Some(connection) = &mut self.connection {
            connection.awaited = Some(awaited);
        }
    }

    fn answer(&mut self, over: &Awaited, error: String) -> Vec<Action<N>> {
        match &mut self.connection {
            Some(connection) if connection.awaited.as_ref() == Some(over) => {
                connection.awaited = None;
                vec![Action::Acknowledge(error)]
            }
            _ => Vec::new(),
        }
    }
}

impl<N: Clone + PartialEq> Default for Session<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Clone> Entry<N> {
    /// Whether there is, or may soon be, something to stop.
    fn runs(&self) -> bool {
        !matches!(self.state, PodState::Pending(_))
    }

    fn start(&mut self, generation: Generation) -> Action<N> {
        self.generation = generation;
        self.state = PodState::Starting;
        self.kept = false;
        Action::Start {
            pod: self.pod.clone(),
            generation,
        }
    }
}

/// Whether the agent has duplicates of a pod's sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketsKept(pub bool);

impl Info {
    /// `namespace/name`, for logs.
    #[must_use]
    pub fn display(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn acknowledge<N>() -> Action<N> {
    Action::Acknowledge(String::new())
}

fn broken<N>(what: &str) -> Vec<Action<N>> {
    vec![Action::Acknowledge(what.to_owned()), Action::Reconnect]
}

#[cfg(test)]
mod tests;
