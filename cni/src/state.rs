//! The agent's one state machine: events go in, actions come out. No IO, no clock.
//!
//! Events only record facts. After each of them [`State::settle`] compares what is
//! with what should be and gives the actions that are missing, so a lost or repeated
//! event cannot leave anything behind. Work in flight has a number (an attempt of a
//! pod, a sequence of a connection); a result with any other number is of no interest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::pods::{Membership, Objects};
use crate::rules::{Connection as TcpConnection, PodRules, ProbeTarget};

mod event;
mod proxies;
mod settle;
#[cfg(test)]
mod tests;
mod view;

pub use event::{
    Action, AddFault, Added, ConnectionId, Event, Generation, Job, JobDone, JobFault, Record,
    RequestId, Sandbox, Status, Summary, Uid,
};
pub use proxies::Request;
pub use view::{PodView, View};

#[derive(Debug, Clone, PartialEq, Eq)]
enum RulesState {
    /// An earlier agent may have left any.
    Unknown,
    Absent,
    Present(PodRules),
}

#[derive(Debug)]
struct Pod {
    sandbox: Sandbox,
    generation: Generation,
    /// The namespace is open and is the pod's.
    opened: bool,
    rules: RulesState,
    /// The rules are to be looked at again.
    reassert: bool,
    older: Option<Vec<TcpConnection>>,
    /// The job in flight: its number, and the rules that it brings in.
    job: Option<(u64, Option<PodRules>)>,
    fault: Option<JobFault>,
    /// As on disk.
    saved: Option<Record>,
    captured: bool,
    probe_ports: BTreeSet<u16>,
}

#[derive(Debug)]
struct PendingAdd {
    sandbox: Sandbox,
    /// Once the pod is known.
    uid: Option<Uid>,
}

#[derive(Debug, Default)]
struct Probes {
    /// As written; none when that is not known.
    done: Option<Vec<ProbeTarget>>,
    in_flight: Option<(u64, Vec<ProbeTarget>)>,
    failed: bool,
}

/// The state machine.
#[derive(Debug)]
pub struct State {
    exempt: BTreeSet<String>,
    /// None until they have been read for the first time: nothing is decided before.
    objects: Option<Arc<Objects>>,
    pods: BTreeMap<Uid, Pod>,
    adds: BTreeMap<RequestId, PendingAdd>,
    proxies: BTreeMap<ConnectionId, proxies::Proxy>,
    /// Pods whose sockets may be kept, with the sandbox they belong to.
    kept: BTreeMap<Uid, Generation>,
    probes: Probes,
    statuses: BTreeMap<(String, String), Status>,
    last_number: u64,
}

impl State {
    /// Nothing known yet. Pods of `exempt` namespaces are never enrolled.
    #[must_use]
    pub fn new(exempt: BTreeSet<String>) -> Self {
        Self {
            exempt,
            objects: None,
            pods: BTreeMap::new(),
            adds: BTreeMap::new(),
            proxies: BTreeMap::new(),
            kept: BTreeMap::new(),
            probes: Probes::default(),
            statuses: BTreeMap::new(),
            last_number: 0,
        }
    }

    /// Takes in what happened and gives what is to be done, in order.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Restored(records) => self.restore(records),
            Event::Objects(objects) => self.objects = Some(objects),
            Event::Add { request, sandbox } => {
                self.adds.insert(request, PendingAdd { sandbox, uid: None });
            }
            Event::AddExpired(request) => self.expire(request, &mut actions),
            Event::Removed(id) => self.remove_sandboxes(|sandbox| sandbox.id == id, &mut actions),
            Event::Retain(ids) => {
                self.remove_sandboxes(|sandbox| !ids.contains(&sandbox.id), &mut actions);
            }
            Event::Connected(connection) => {
                self.proxies.insert(connection, proxies::Proxy::default());
            }
            Event::Disconnected(connection) => drop(self.proxies.remove(&connection)),
            Event::Acknowledged {
                connection,
                sequence,
                error,
            } => self.acknowledged(connection, sequence, error, &mut actions),
            Event::JobDone {
                uid,
                attempt,
                outcome,
            } => self.job_done(&uid, attempt, outcome),
            Event::ProbesDone { attempt, done } => self.probes_done(attempt, done),
            Event::Retry => self.retry(),
            Event::Reassert => {
                self.retry();
                self.probes.done = None;
                for pod in self.pods.values_mut() {
                    pod.reassert = true;
                }
            }
        }
        self.settle(&mut actions);
        actions
    }

    /// Numbers for metrics and readiness.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut summary = Summary {
            proxies: self.proxies.len(),
            synchronized: self.is_synchronized(),
            ..Summary::default()
        };
        let Some(objects) = &self.objects else {
            return summary;
        };
        for uid in objects.pods.keys() {
            if let Membership::In(_) = objects.membership(uid, &self.exempt) {
                if self.is_captured(uid) {
                    summary.enrolled += 1;
                } else {
                    summary.not_captured += 1;
                }
            }
        }
        summary
    }

    /// Whether a sandbox is as it should be (CNI CHECK).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, sandbox: &str) -> Result<(), String> {
        let Some((uid, _)) = self.by_sandbox(sandbox) else {
            return Err("the sandbox is not known".to_owned());
        };
        match self.membership(uid) {
            Membership::Out(_) | Membership::Unknown(_) => Ok(()),
            Membership::In(rules) if self.is_enrolled(uid, &rules) => Ok(()),
            Membership::In(_) => Err(self.why_not(uid)),
        }
    }

    /// Whether the result of this job is still of interest.
    #[must_use]
    pub fn expects(&self, uid: &str, attempt: u64) -> bool {
        let job = self.pods.get(uid).and_then(|pod| pod.job.as_ref());
        job.is_some_and(|(expected, _)| *expected == attempt)
    }

    fn by_sandbox(&self, id: &str) -> Option<(&Uid, &Pod)> {
        self.pods.iter().find(|(_, pod)| pod.sandbox.id == id)
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn membership(&self, uid: &str) -> Membership {
        match &self.objects {
            Some(objects) => objects.membership(uid, &self.exempt),
            None => Membership::Unknown("the pods of the node are not known yet".to_owned()),
        }
    }

    fn restore(&mut self, records: Vec<Record>) {
        for record in records {
            let generation = self.number();
            let pod = Pod {
                sandbox: record.sandbox.clone(),
                generation,
                opened: false,
                rules: RulesState::Unknown,
                reassert: false,
                older: record.captured.then(|| record.older.clone()),
                job: None,
                fault: None,
                captured: record.captured,
                probe_ports: BTreeSet::new(),
                saved: Some(record.clone()),
            };
            self.pods.insert(record.uid, pod);
        }
    }

    /// A new sandbox takes the place of the pod's former one.
    fn adopt(&mut self, uid: &Uid, sandbox: &Sandbox, actions: &mut Vec<Action>) {
        if let Some(pod) = self.pods.get_mut(uid)
            && pod.sandbox == *sandbox
        {
            pod.fault = None;
            for proxy in self.proxies.values_mut() {
                proxy.retry();
            }
            return;
        }
        self.forget(uid, actions);
        let generation = self.number();
        let pod = Pod {
            sandbox: sandbox.clone(),
            generation,
            opened: false,
            // A runtime may try again with the namespace of a failed ADD.
            rules: RulesState::Unknown,
            reassert: false,
            older: None,
            job: None,
            fault: None,
            saved: None,
            captured: false,
            probe_ports: BTreeSet::new(),
        };
        self.pods.insert(Arc::clone(uid), pod);
    }

    fn forget(&mut self, uid: &Uid, actions: &mut Vec<Action>) {
        if let Some(pod) = self.pods.remove(uid) {
            if pod.saved.is_some() {
                actions.push(Action::Forget(pod.sandbox.id));
            }
            actions.push(Action::Release(Arc::clone(uid)));
        }
    }

    fn remove_sandboxes(&mut self, gone: impl Fn(&Sandbox) -> bool, actions: &mut Vec<Action>) {
        let uids: Vec<Uid> = self
            .pods
            .iter()
            .filter(|(_, pod)| gone(&pod.sandbox))
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in uids {
            self.forget(&uid, actions);
        }
        let requests: Vec<RequestId> = self
            .adds
            .iter()
            .filter(|(_, add)| gone(&add.sandbox))
            .map(|(request, _)| *request)
            .collect();
        for request in requests {
            self.answer(request, Err(AddFault::Superseded), actions);
        }
    }

    fn expire(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(add) = self.adds.get(&request) else {
            return;
        };
        let why = match &add.uid {
            Some(uid) => self.why_not(uid),
            None => "the pod object is not known".to_owned(),
        };
        self.fail_add(request, AddFault::Expired(why), actions);
    }

    /// The runtime takes a failed ADD for a sandbox that was never there.
    fn fail_add(&mut self, request: RequestId, fault: AddFault, actions: &mut Vec<Action>) {
        if let Some(add) = self.adds.get(&request) {
            let id = add.sandbox.id.clone();
            let uid = self.by_sandbox(&id).map(|(uid, _)| Arc::clone(uid));
            if let Some(uid) = uid {
                self.forget(&uid, actions);
            }
        }
        self.answer(request, Err(fault), actions);
    }

    fn answer(
        &mut self,
        request: RequestId,
        answer: Result<Added, AddFault>,
        actions: &mut Vec<Action>,
    ) {
        if self.adds.remove(&request).is_some() {
            actions.push(Action::Answer { request, answer });
        }
    }

    fn job_done(&mut self, uid: &Uid, attempt: u64, outcome: Result<JobDone, JobFault>) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let Some((_, wanted)) = pod.job.take_if(|(expected, _)| *expected == attempt) else {
            return;
        };
        match outcome {
            Ok(JobDone::Opened) => pod.opened = true,
            Ok(JobDone::Installed(older)) => {
                pod.rules = wanted.map_or(RulesState::Unknown, RulesState::Present);
                pod.older = Some(older);
                pod.captured = true;
            }
            Ok(JobDone::Uninstalled) => {
                pod.rules = RulesState::Absent;
                pod.older = None;
                pod.captured = false;
            }
            Err(fault) => {
                // A half-done job leaves anything.
                if wanted.is_some() {
                    pod.rules = RulesState::Unknown;
                }
                if fault.gone {
                    // Whatever is told of it elsewhere, there is no such pod here.
                    pod.opened = false;
                    pod.captured = false;
                }
                pod.fault = Some(fault);
            }
        }
    }

    fn probes_done(&mut self, attempt: u64, done: bool) {
        if let Some((expected, targets)) = self.probes.in_flight.take() {
            if expected != attempt {
                self.probes.in_flight = Some((expected, targets));
                return;
            }
            self.probes.failed = !done;
            self.probes.done = done.then_some(targets);
        }
    }

    fn retry(&mut self) {
        self.probes.failed = false;
        for pod in self.pods.values_mut() {
            pod.fault = None;
        }
        for proxy in self.proxies.values_mut() {
            proxy.retry();
        }
    }
}
