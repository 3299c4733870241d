//! A small world of pods, proxies and work that takes its time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::super::*;
use crate::pods::PodFacts;

/// What random steps choose from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// A pod object comes, or goes away when it is there.
    Object(u8),
    /// Its label changes.
    Label(u8, u8),
    /// The namespace's label changes.
    NamespaceLabel(u8),
    /// CNI ADD with a new sandbox.
    Add(u8),
    /// CNI DEL of a pod's newest sandbox.
    Delete(u8),
    /// CNI GC that knows all living sandboxes.
    Collect,
    /// The oldest ADD has waited long enough.
    Expire,
    /// A proxy connects.
    Connect,
    /// One of the proxies goes away.
    Disconnect(u8),
    /// Something in flight ends, well or not.
    Finish(u8, bool),
    /// A proxy answers something that it was not asked.
    Stray(u8),
    Retry,
    Reassert,
    /// The agent dies and starts anew.
    Restart,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..4_u8).prop_map(Step::Object),
        2 => (0..4_u8, 0..3_u8).prop_map(|(pod, label)| Step::Label(pod, label)),
        1 => (0..3_u8).prop_map(Step::NamespaceLabel),
        4 => (0..4_u8).prop_map(Step::Add),
        2 => (0..4_u8).prop_map(Step::Delete),
        1 => Just(Step::Collect),
        1 => Just(Step::Expire),
        2 => Just(Step::Connect),
        1 => (0..4_u8).prop_map(Step::Disconnect),
        14 => (any::<u8>(), prop::bool::weighted(0.85)).prop_map(|(n, ok)| Step::Finish(n, ok)),
        1 => (0..4_u8).prop_map(Step::Stray),
        1 => Just(Step::Retry),
        1 => Just(Step::Reassert),
        1 => Just(Step::Restart),
    ]
}

#[derive(Debug)]
pub(super) enum InFlight {
    Job(Uid, u64, Sandbox, Job),
    /// With the sandbox whose namespace went along.
    Request(ConnectionId, u64, Request, String),
    Probes(u64, Vec<ProbeTarget>),
}

/// A node proxy as the protocol describes it.
#[derive(Debug, Default)]
pub(super) struct ModelProxy {
    /// Pods with their sandboxes.
    pub(super) serves: BTreeMap<Uid, String>,
    /// Requests that it has not answered: never more than one.
    pub(super) open: usize,
    pub(super) snapshot: bool,
}

/// What really is.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) objects: Objects,
    /// Sandboxes that exist, by id, with rules in them or not.
    pub(super) sandboxes: BTreeMap<String, bool>,
    pub(super) newest_sandbox: BTreeMap<Uid, String>,
    pub(super) disk: BTreeMap<String, Record>,
    pub(super) proxies: BTreeMap<ConnectionId, ModelProxy>,
    pub(super) in_flight: Vec<InFlight>,
    /// ADDs without an answer, with their sandbox.
    pub(super) waiting: BTreeMap<RequestId, String>,
    pub(super) answered: BTreeSet<RequestId>,
    /// Sandboxes whose ADD has failed.
    pub(super) failed: Vec<String>,
    pub(super) probes: Vec<ProbeTarget>,
    pub(super) kept: BTreeSet<Uid>,
    pub(super) statuses: BTreeMap<String, Status>,
    pub(super) number: u64,
}

pub(super) fn uid(pod: u8) -> Uid {
    Arc::from(format!("uid-{pod}"))
}

pub(super) fn label(choice: u8) -> Option<String> {
    [None, Some("enabled"), Some("disabled")][usize::from(choice % 3)].map(str::to_owned)
}

pub(super) fn facts(pod: u8, choice: u8) -> PodFacts {
    PodFacts {
        namespace: "shop".to_owned(),
        name: format!("pod-{pod}"),
        service_account: "default".to_owned(),
        label: label(choice),
        host_network: false,
        finished: false,
        rules: PodRules::default(),
        complaints: Vec::new(),
        probe_ports: BTreeSet::from([8080]),
    }
}

pub(super) struct Run {
    pub(super) world: World,
    pub(super) state: State,
}

impl Run {
    pub(super) fn new() -> Self {
        let mut run = Self {
            world: World::default(),
            state: State::new(BTreeSet::new()),
        };
        run.world.objects.namespaces.insert("shop".to_owned(), None);
        run.handle(Event::Restored(Vec::new()));
        run.publish();
        run
    }

    pub(super) fn handle(&mut self, event: Event) {
        let actions = self.state.handle(event);
        for action in actions {
            self.world.carry_out(action);
        }
        // After a failed ADD the runtime deletes the sandbox.
        if let Some(id) = self.world.failed.pop() {
            self.world.sandboxes.remove(&id);
            self.world.newest_sandbox.retain(|_, newest| *newest != id);
            self.handle(Event::Removed(id));
        }
    }

    pub(super) fn publish(&mut self) {
        let objects = Arc::new(self.world.objects.clone());
        self.handle(Event::Objects(objects));
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Object(pod) => {
                if self.world.objects.pods.remove(&uid(pod)).is_none() {
                    self.world.objects.pods.insert(uid(pod), facts(pod, 1));
                }
                self.publish();
            }
            Step::Label(pod, choice) => {
                if let Some(facts) = self.world.objects.pods.get_mut(&uid(pod)) {
                    facts.label = label(choice);
                }
                self.publish();
            }
            Step::NamespaceLabel(choice) => {
                let namespaces = &mut self.world.objects.namespaces;
                namespaces.insert("shop".to_owned(), label(choice));
                self.publish();
            }
            Step::Add(pod) => self.add(pod),
            Step::Delete(pod) => {
                if let Some(id) = self.world.newest_sandbox.remove(&uid(pod)) {
                    self.world.sandboxes.remove(&id);
                    self.handle(Event::Removed(id));
                }
            }
            Step::Collect => {
                let ids = self.world.sandboxes.keys().cloned().collect();
                self.handle(Event::Retain(ids));
            }
            Step::Expire => {
                let first = self.world.waiting.keys().next().copied();
                if let Some(request) = first {
                    self.handle(Event::AddExpired(request));
                }
            }
            Step::Connect => {
                self.world.number += 1;
                let connection = self.world.number;
                self.world.proxies.insert(connection, ModelProxy::default());
                self.handle(Event::Connected(connection));
            }
            Step::Disconnect(which) => self.disconnect(which),
            Step::Finish(which, good) => self.finish(usize::from(which), good),
            Step::Stray(which) => self.stray(which),
            Step::Retry => self.handle(Event::Retry),
            Step::Reassert => self.handle(Event::Reassert),
            Step::Restart => self.restart(),
        }
    }

    pub(super) fn add(&mut self, pod: u8) {
        self.world.number += 1;
        let request = self.world.number;
        let id = format!("sandbox-{request}");
        // The runtime has one living sandbox for each pod.
        if let Some(old) = self.world.newest_sandbox.insert(uid(pod), id.clone()) {
            self.world.sandboxes.remove(&old);
        }
        self.world.sandboxes.insert(id.clone(), false);
        self.world.waiting.insert(request, id.clone());
        let sandbox = Sandbox {
            id,
            // Some runtimes do not name it.
            uid: pod.is_multiple_of(2).then(|| uid(pod)),
            namespace: "shop".to_owned(),
            name: format!("pod-{pod}"),
            netns: "/run/netns/x".into(),
            ips: vec![std::net::IpAddr::from([10, 0, 0, pod])],
        };
        self.handle(Event::Add { request, sandbox });
    }

    pub(super) fn disconnect(&mut self, which: u8) {
        if let Some(connection) = self.world.some_proxy(which) {
            self.world.lose(connection);
            self.handle(Event::Disconnected(connection));
        }
    }

    pub(super) fn stray(&mut self, which: u8) {
        let Some(connection) = self.world.some_proxy(which) else {
            return;
        };
        let expected = self.world.in_flight.iter().find_map(|one| match one {
            InFlight::Request(of, sequence, ..) if *of == connection => Some(*sequence),
            _ => None,
        });
        let actions = self.state.handle(Event::Acknowledged {
            connection,
            sequence: expected.map_or(7, |sequence| sequence - 1),
            error: String::new(),
        });
        assert_eq!(actions.first(), Some(&Action::Close(connection)));
        self.world.lose(connection);
        for action in actions.into_iter().skip(1) {
            self.world.carry_out(action);
        }
    }

    pub(super) fn finish(&mut self, which: usize, good: bool) {
        if self.world.in_flight.is_empty() {
            return;
        }
        let which = which % self.world.in_flight.len();
        let event = match self.world.in_flight.remove(which) {
            InFlight::Job(uid, attempt, sandbox, job) => Event::JobDone {
                uid,
                attempt,
                outcome: self.world.work(&sandbox, &job, good),
            },
            InFlight::Probes(attempt, targets) => {
                if good {
                    self.world.probes = targets;
                }
                Event::ProbesDone {
                    attempt,
                    done: good,
                }
            }
            InFlight::Request(connection, sequence, request, sandbox) => {
                self.world.take_request(connection, &request, sandbox, good);
                let failed = matches!(request, Request::Add { .. }) && !good;
                Event::Acknowledged {
                    connection,
                    sequence,
                    error: if failed { "cannot listen" } else { "" }.to_owned(),
                }
            }
        };
        self.handle(event);
    }

    pub(super) fn restart(&mut self) {
        // Whoever waited for an answer has lost its connection.
        self.world.waiting.clear();
        // Work that was under way may have been done or not.
        for flight in std::mem::take(&mut self.world.in_flight) {
            if let InFlight::Job(_, attempt, sandbox, job) = flight {
                let _ = self.world.work(&sandbox, &job, attempt.is_multiple_of(2));
            }
        }
        self.world.proxies.clear();
        self.world.kept.clear();
        self.state = State::new(BTreeSet::new());
        let records = self.world.disk.values().cloned().collect();
        self.handle(Event::Restored(records));
        self.publish();
    }

    /// Lets everything come to rest, with a proxy that is there and work that succeeds.
    pub(super) fn rest(&mut self) {
        if self.world.proxies.is_empty() {
            self.step(Step::Connect);
        }
        for _ in 0..3 {
            while !self.world.in_flight.is_empty() {
                self.finish(0, true);
            }
            self.handle(Event::Reassert);
        }
        while !self.world.in_flight.is_empty() {
            self.finish(0, true);
        }
    }

    pub(super) fn check_at_rest(&self) {
        let world = &self.world;
        let mut members = BTreeSet::new();
        for (uid, id) in &world.newest_sandbox {
            let known = world.disk.contains_key(id);
            let membership = world.objects.membership(uid, &BTreeSet::new());
            if known && matches!(membership, Membership::In(_)) {
                members.insert(Arc::clone(uid));
            }
        }
        let (_, newest) = world.proxies.last_key_value().expect("one connected");
        assert!(newest.snapshot, "the snapshot is complete");
        let expect: BTreeMap<Uid, String> = members
            .iter()
            .map(|uid| (Arc::clone(uid), world.newest_sandbox[uid].clone()))
            .collect();
        assert_eq!(
            newest.serves, expect,
            "the newest proxy knows exactly the members"
        );
        for proxy in world.proxies.values() {
            let mut known = proxy.serves.keys();
            assert!(
                known.all(|uid| members.contains(uid)),
                "no proxy knows another pod"
            );
        }
        assert_eq!(
            world.kept, members,
            "sockets are kept for the members alone"
        );
        for (uid, id) in &world.newest_sandbox {
            let redirected = world.sandboxes[id];
            assert_eq!(redirected, members.contains(uid), "rules of {uid} in {id}");
        }
        let probed: BTreeSet<&str> = world.probes.iter().map(|one| one.uid.as_str()).collect();
        let expect: BTreeSet<&str> = members.iter().map(|uid| &**uid).collect();
        assert_eq!(probed, expect);
        for (uid, facts) in &world.objects.pods {
            let status = &world.statuses[&facts.name];
            assert_eq!(status.enrolled, members.contains(uid), "{status:?}");
        }
        let unanswered: Vec<_> = world.waiting.values().collect();
        for id in unanswered {
            // Only an ADD whose pod object is missing may still wait.
            let of = world
                .newest_sandbox
                .iter()
                .find(|(_, newest)| *newest == id);
            let known = of.is_some_and(|(uid, _)| world.objects.pods.contains_key(uid));
            assert!(!known, "ADD of {id} has no answer");
        }
    }
}

impl World {
    pub(super) fn some_proxy(&self, which: u8) -> Option<ConnectionId> {
        let which = usize::from(which) % self.proxies.len().max(1);
        self.proxies.keys().nth(which).copied()
    }

    pub(super) fn lose(&mut self, connection: ConnectionId) {
        self.proxies.remove(&connection);
        self.in_flight
            .retain(|one| !matches!(one, InFlight::Request(of, ..) if *of == connection));
    }

    pub(super) fn carry_out(&mut self, action: Action) {
        match action {
            Action::Save(record) => drop(self.disk.insert(record.sandbox.id.clone(), record)),
            Action::Forget(id) => drop(self.disk.remove(&id)),
            Action::Release(_) => {}
            Action::Start {
                uid,
                attempt,
                sandbox,
                job,
            } => {
                let same = |one: &InFlight| matches!(one, InFlight::Job(_, _, of, _) if of.id == sandbox.id);
                assert!(
                    !self.in_flight.iter().any(same),
                    "one job at a time in {sandbox:?}"
                );
                self.in_flight
                    .push(InFlight::Job(uid, attempt, sandbox, job));
            }
            Action::Send {
                connection,
                sequence,
                request,
            } => {
                let proxy = self
                    .proxies
                    .get_mut(&connection)
                    .expect("a live connection");
                proxy.open += 1;
                assert_eq!(proxy.open, 1, "one request at a time");
                let sandbox = self.sandbox_of(&request);
                let flight = InFlight::Request(connection, sequence, request, sandbox);
                self.in_flight.push(flight);
            }
            Action::Close(connection) => panic!("{connection} kept to the protocol"),
            Action::KeepSockets(uid) => assert!(self.kept.insert(uid)),
            Action::DropSockets(uid) => assert!(self.kept.remove(&uid)),
            Action::SetProbes { attempt, targets } => {
                self.in_flight.push(InFlight::Probes(attempt, targets));
            }
            Action::WriteStatus(status) => {
                self.statuses.insert(status.name.clone(), status);
            }
            Action::RemoveStatus { name, .. } => drop(self.statuses.remove(&name)),
            Action::Answer { request, answer } => self.answered(request, &answer),
        }
    }

    /// The namespace that is open when an Add is sent.
    pub(super) fn sandbox_of(&self, request: &Request) -> String {
        let Request::Add { uid, .. } = request else {
            return String::new();
        };
        let record = self.disk.values().find(|record| record.uid == *uid);
        record.expect("a pod with a sandbox").sandbox.id.clone()
    }

    pub(super) fn answered(&mut self, request: RequestId, answer: &Result<Added, AddFault>) {
        assert!(
            self.answered.insert(request),
            "ADD {request} is answered once"
        );
        let id = self.waiting.remove(&request).expect("somebody waits");
        if answer.is_err() {
            self.failed.push(id.clone());
        }
        if *answer == Ok(Added::Enrolled) {
            let record = self.disk.get(&id).expect("saved before the answer");
            let (_, newest) = self.proxies.last_key_value().expect("a proxy");
            assert_eq!(
                newest.serves.get(&record.uid),
                Some(&id),
                "its listeners are open"
            );
            assert!(self.sandboxes[&id], "its rules are in place");
        }
    }

    pub(super) fn work(
        &mut self,
        sandbox: &Sandbox,
        job: &Job,
        good: bool,
    ) -> Result<JobDone, JobFault> {
        let Some(redirected) = self.sandboxes.get_mut(&sandbox.id) else {
            return Err(JobFault {
                reason: "no such namespace".to_owned(),
                gone: true,
            });
        };
        if !good {
            return Err(JobFault {
                reason: "out of luck".to_owned(),
                gone: false,
            });
        }
        match job {
            Job::Open => Ok(JobDone::Opened),
            Job::Install { .. } => {
                *redirected = true;
                Ok(JobDone::Installed(Vec::new()))
            }
            Job::Uninstall => {
                *redirected = false;
                Ok(JobDone::Uninstalled)
            }
        }
    }

    pub(super) fn take_request(
        &mut self,
        connection: ConnectionId,
        request: &Request,
        sandbox: String,
        good: bool,
    ) {
        let proxy = self
            .proxies
            .get_mut(&connection)
            .expect("a live connection");
        proxy.open -= 1;
        match request {
            Request::Add { uid, .. } if good => {
                proxy.serves.insert(Arc::clone(uid), sandbox);
            }
            // It stays in its list and is tried again.
            Request::Add { .. } => {}
            Request::Keep(_) => assert!(!proxy.snapshot, "too late to keep a pod"),
            Request::Delete(uid) => drop(proxy.serves.remove(uid)),
            Request::SnapshotSent => {
                assert!(!proxy.snapshot, "one snapshot for each connection");
                proxy.snapshot = true;
            }
        }
    }
}
