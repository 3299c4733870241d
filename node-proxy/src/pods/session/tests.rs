use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

type Netns = u32;

fn pod(uid: &str, netns: Netns) -> Addition<Netns> {
    let info = Info {
        name: format!("{uid}-name").into(),
        namespace: "shop".into(),
        service_account: "cart".into(),
    };
    Addition {
        uid: uid.into(),
        info,
        netns,
    }
}

fn start(uid: &str, netns: Netns, generation: Generation) -> Action<Netns> {
    Action::Start {
        pod: pod(uid, netns),
        generation,
    }
}

fn stop(uid: &str, generation: Generation, mode: StopMode) -> Action<Netns> {
    Action::Stop {
        uid: uid.into(),
        generation,
        mode,
    }
}

fn ok() -> Action<Netns> {
    Action::Acknowledge(String::new())
}

const DONE: Result<SocketsKept, String> = Ok(SocketsKept(true));

/// A session with pod "a" up, before the snapshot.
fn with_a() -> Session<Netns> {
    let mut session = Session::new();
    session.connected();
    assert_eq!(
        session.request(Request::Add(pod("a", 7))),
        [start("a", 7, 1)]
    );
    assert_eq!(session.started(&"a".into(), 1, DONE), [ok()]);
    session
}

#[test]
fn protocol_faults_answer_and_reconnect() {
    let reconnects = |actions: Vec<Action<Netns>>| {
        assert!(
            matches!(&actions[..], [Action::Acknowledge(error), Action::Reconnect] if !error.is_empty())
        );
    };
    let mut session = with_a();
    assert_eq!(session.request(Request::SnapshotSent), [ok()]);
    reconnects(session.request(Request::SnapshotSent));
    reconnects(session.request(Request::Keep("a".into())));
    reconnects(session.refused("not a message".into(), true));
    session.request(Request::Add(pod("b", 8)));
    reconnects(session.request(Request::Delete("b".into())));
    // Nothing of it touches the pods.
    assert_eq!(session.pods().count(), 2);
    assert_eq!(
        session.refused("no descriptor".into(), false),
        [Action::Acknowledge("no descriptor".into())]
    );
}

#[test]
fn the_same_pod_again_changes_nothing_and_another_namespace_moves_it() {
    let mut session = with_a();
    assert_eq!(session.request(Request::Add(pod("a", 7))), [ok()]);
    let actions = session.request(Request::Add(pod("a", 9)));
    assert_eq!(actions, [stop("a", 1, StopMode::Drain), start("a", 9, 2)]);
    assert_eq!(session.stopped(1), []);
    assert_eq!(session.started(&"a".into(), 2, DONE), [ok()]);
}

#[test]
fn a_failed_start_is_answered_and_tried_again_until_the_pod_goes() {
    let mut session = Session::new();
    session.connected();
    session.request(Request::Add(pod("a", 7)));
    let actions = session.started(&"a".into(), 1, Err("port taken".into()));
    assert_eq!(actions, [Action::Acknowledge("port taken".into())]);
    assert!(session.has_retries());
    assert_eq!(session.retry(), [start("a", 7, 2)]);
    assert!(!session.has_retries());
    assert_eq!(
        session.started(&"a".into(), 2, Err("port taken".into())),
        []
    );
    assert_eq!(session.request(Request::Delete("a".into())), [ok()]);
    assert!(!session.has_retries());
    assert_eq!(session.retry(), []);
}

#[test]
fn a_deletion_is_answered_when_the_listeners_are_closed() {
    let mut session = with_a();
    let actions = session.request(Request::Delete("a".into()));
    assert_eq!(actions, [stop("a", 1, StopMode::Now)]);
    assert_eq!(session.stopped(1), [ok()]);
    assert_eq!(session.request(Request::Delete("a".into())), [ok()]);
}

#[test]
fn a_snapshot_ends_what_it_does_not_name() {
    let mut session = with_a();
    session.request(Request::Add(pod("b", 8)));
    session.started(&"b".into(), 2, DONE);
    session.disconnected();
    assert!(!session.is_synchronized());
    session.connected();
    assert_eq!(session.request(Request::Keep("b".into())), [ok()]);
    let keep = Action::Keep {
        uid: "b".into(),
        generation: 2,
    };
    let actions = session.request(Request::SnapshotSent);
    assert_eq!(actions, [ok(), stop("a", 1, StopMode::Now), keep]);
    assert!(session.is_synchronized());
    assert!(session.has_retries());
    session.kept(&"b".into(), 2, SocketsKept(true));
    assert!(!session.has_retries());
}

#[test]
fn a_pod_that_went_while_it_started_is_stopped_after_the_start() {
    let mut session = Session::new();
    session.connected();
    assert_eq!(
        session.request(Request::Add(pod("a", 7))),
        [start("a", 7, 1)]
    );
    session.disconnected();
    session.connected();
    assert_eq!(
        session.request(Request::SnapshotSent),
        [ok(), stop("a", 1, StopMode::Now)]
    );
    assert_eq!(session.started(&"a".into(), 1, DONE), []);
    assert_eq!(session.pods().count(), 0);
}

// --- random interleavings against a model ---

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The agent learns of a pod, or of a new namespace for it.
    Add(u8, Netns),
    Delete(u8),
    /// The agent loses its handle of a pod's namespace: it can only say keep.
    LoseHandle(u8),
    Connect,
    Disconnect,
    /// The agent's next message reaches us, if it may send one.
    Deliver,
    /// The oldest piece of work gets done.
    Work {
        fails: u8,
    },
    Retry,
    RestartProxy,
    RestartAgent,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let uid = 0..4u8;
    let step = prop_oneof![
        4 => (uid.clone(), 0..3u32).prop_map(|(uid, netns)| Step::Add(uid, netns)),
        3 => uid.clone().prop_map(Step::Delete),
        1 => uid.prop_map(Step::LoseHandle),
        2 => Just(Step::Connect),
        1 => Just(Step::Disconnect),
        8 => Just(Step::Deliver),
        8 => (0..5u8).prop_map(|fails| Step::Work { fails }),
        1 => Just(Step::Retry),
        1 => Just(Step::RestartProxy),
        1 => Just(Step::RestartAgent),
    ];
    prop::collection::vec(step, 0..120)
}

/// The agent's pods, the connection between the two, and the work of the proxy.
#[derive(Default)]
struct World {
    /// The truth: pod → its namespace, and whether the agent can send it.
    pods: BTreeMap<u8, (Netns, bool)>,
    session: Session<Netns>,
    connected: bool,
    to_send: VecDeque<Request<Netns>>,
    unanswered: usize,
    work: VecDeque<Action<Netns>>,
    /// What the workers serve: pod → its namespace and generation.
    served: BTreeMap<Arc<str>, (Netns, Generation)>,
    failed: BTreeSet<Generation>,
    /// Whose sockets the agent has.
    keeps: BTreeSet<Arc<str>>,
}

fn uid(number: u8) -> Arc<str> {
    format!("pod-{number}").into()
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Add(number, netns) => {
                self.pods.insert(number, (netns, true));
                self.send(Request::Add(pod(&uid(number), netns)));
            }
            Step::Delete(number) => {
                if self.pods.remove(&number).is_some() {
                    self.keeps.remove(&uid(number));
                    self.send(Request::Delete(uid(number)));
                }
            }
            Step::LoseHandle(number) => {
                if let Some(pod) = self.pods.get_mut(&number) {
                    pod.1 = false;
                }
            }
            Step::Connect => self.connect(),
            Step::Disconnect => self.disconnect(),
            Step::Deliver => self.deliver(),
            Step::Work { fails } => self.work(fails == 0),
            Step::Retry => {
                let actions = self.session.retry();
                self.act(actions);
            }
            Step::RestartProxy => {
                self.disconnect();
                self.session = Session::new();
                self.work.clear();
                self.served.clear();
                self.failed.clear();
            }
            Step::RestartAgent => {
                self.disconnect();
                self.keeps.clear();
                // It finds every pod's namespace again.
                for pod in self.pods.values_mut() {
                    pod.1 = true;
                }
            }
        }
    }

    fn send(&mut self, request: Request<Netns>) {
        if self.connected {
            self.to_send.push_back(request);
        }
    }

    fn connect(&mut self) {
        self.disconnect();
        self.connected = true;
        self.session.connected();
        for (number, (netns, has_handle)) in self.pods.clone() {
            self.send(if has_handle {
                Request::Add(pod(&uid(number), netns))
            } else {
                Request::Keep(uid(number))
            });
        }
        self.send(Request::SnapshotSent);
    }

    fn disconnect(&mut self) {
        self.connected = false;
        self.to_send.clear();
        self.unanswered = 0;
        self.session.disconnected();
    }

    fn deliver(&mut self) {
        if self.unanswered == 0
            && let Some(request) = self.to_send.pop_front()
        {
            self.unanswered = 1;
            let actions = self.session.request(request);
            self.act(actions);
        }
    }

    fn act(&mut self, actions: Vec<Action<Netns>>) {
        for action in actions {
            match action {
                Action::Acknowledge(_) => {
                    assert!(
                        self.connected && self.unanswered == 1,
                        "an answer to nothing"
                    );
                    self.unanswered = 0;
                }
                Action::Reconnect => panic!("a correct agent is never cut off"),
                work => self.work.push_back(work),
            }
        }
    }

    fn work(&mut self, fails: bool) {
        let actions = match self.work.pop_front() {
            None => return,
            Some(Action::Start { pod, generation }) => {
                assert!(!self.served.contains_key(&pod.uid), "started twice");
                let result = if fails {
                    self.failed.insert(generation);
                    Err("no".to_owned())
                } else {
                    self.served.insert(pod.uid.clone(), (pod.netns, generation));
                    Ok(SocketsKept(false))
                };
                self.session.started(&pod.uid, generation, result)
            }
            Some(Action::Stop {
                uid, generation, ..
            }) => {
                match self.served.remove(&uid) {
                    Some(served) => assert_eq!(served.1, generation),
                    None => assert!(self.failed.contains(&generation), "stopped twice"),
                }
                self.session.stopped(generation)
            }
            Some(Action::Keep { uid, generation }) => {
                let there = self
                    .served
                    .get(&uid)
                    .is_some_and(|served| served.1 == generation);
                let kept = there && self.connected && !fails;
                if kept {
                    self.keeps.insert(uid.clone());
                }
                self.session.kept(&uid, generation, SocketsKept(kept));
                Vec::new()
            }
            Some(Action::Acknowledge(_) | Action::Reconnect) => unreachable!("not queued"),
        };
        self.act(actions);
    }

    /// Everything goes well from here on, until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..1000 {
            if !self.connected {
                self.connect();
            }
            self.deliver();
            self.work(false);
            if self.to_send.is_empty() && self.unanswered == 0 && self.work.is_empty() {
                if !self.session.has_retries() {
                    return;
                }
                let actions = self.session.retry();
                self.act(actions);
            }
        }
        panic!("does not settle: {:?}", self.session);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_happened_exactly_the_agents_pods_are_served(steps in steps()) {
        let mut world = World::default();
        for step in steps {
            world.step(step);
        }
        world.settle();
        // A restart of the agent gives back lost handles, so that all must be served.
        world.step(Step::RestartAgent);
        world.settle();
        let expected: BTreeMap<Arc<str>, Netns> =
            world.pods.iter().map(|(number, pod)| (uid(*number), pod.0)).collect();
        let served: BTreeMap<Arc<str>, Netns> =
            world.served.iter().map(|(uid, served)| (uid.clone(), served.0)).collect();
        prop_assert_eq!(&served, &expected);
        prop_assert_eq!(world.keeps, expected.keys().cloned().collect::<BTreeSet<_>>());
        prop_assert!(world.session.is_synchronized());
        prop_assert!(world.session.pods().all(|(_, state)| *state == PodState::Up));
    }
}
