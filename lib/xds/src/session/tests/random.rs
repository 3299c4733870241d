//! Both ends against each other over a link that loses the connection at any
//! moment, repeats messages and mixes up types. Whatever happens, the client
//! ends with what the server has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use culvert_model::{
    Action, Change, Policy, PolicyName, Scope, Service, ServiceName, Snapshot, Workload,
    WorkloadUid,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::encode;

/// What the server has under one name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Gone,
    /// Readable, in one of several forms.
    Good(u32),
    /// Of a form that the client cannot read.
    Bad(u8),
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Publish(usize, State),
    ServerSends,
    ServerReceives,
    ClientReceives,
    Reconnect,
    RepeatRequest,
    RepeatResponse,
    SwapRequests,
    SwapResponses,
}

/// Names 0..3 are workloads, 3..5 services, 5..8 policies, 8..10 egress policies.
const NAMES: usize = 10;

fn kind_of(index: usize) -> ResourceType {
    match index {
        0..5 => ResourceType::Address,
        5..8 => ResourceType::Authorization,
        _ => ResourceType::EgressAuthorization,
    }
}

fn key(index: usize) -> String {
    match index {
        0..3 => format!("c//Pod/a/w{index}"),
        3..5 => format!("a/s{index}"),
        _ => format!("a/p{index}"),
    }
}

fn policy_name(index: usize) -> PolicyName {
    PolicyName::new("a", format!("p{index}"))
}

/// The readable form of a name. Workloads name the policies that are there.
fn good(index: usize, form: u32, there: &BTreeSet<usize>) -> Change {
    match index {
        0..3 => {
            let identity = "spiffe://td/ns/a/sa/x".parse().expect("valid");
            let named = |range: std::ops::Range<usize>| {
                let chosen = there
                    .iter()
                    .copied()
                    .filter(move |policy| range.contains(policy));
                chosen
                    .filter(|policy| (form >> (policy % 3)) & 1 == 1)
                    .map(policy_name)
                    .collect()
            };
            Change::Workload(Workload {
                capacity: form,
                authorization_policies: named(5..8),
                egress_policies: named(8..10),
                ..Workload::new(WorkloadUid::new(key(index)), "w", identity)
            })
        }
        3..5 => Change::Service(Service::new(
            ServiceName::new("a", format!("s{index}")),
            form.to_string(),
        )),
        _ => {
            let scope = if form.is_multiple_of(2) {
                Scope::Namespace
            } else {
                Scope::WorkloadSelector
            };
            let groups = vec![culvert_model::Group::default(); form as usize];
            let policy = Policy::new(policy_name(index), scope, Action::Deny, groups);
            if index < 8 {
                Change::Policy(policy)
            } else {
                Change::EgressPolicy(policy)
            }
        }
    }
}

fn encoded(index: usize, state: State, there: &BTreeSet<usize>) -> Option<Arc<Resource>> {
    let resource = match state {
        State::Gone => return None,
        State::Bad(byte) => Resource::new(key(index), vec![0xff, byte], Vec::new()),
        State::Good(form) => match good(index, form, there) {
            Change::Workload(workload) => encode::workload_resource(&workload),
            Change::Service(service) => encode::service_resource(&service),
            Change::Policy(policy) | Change::EgressPolicy(policy) => {
                encode::policy_resource(&policy)
            }
            other => panic!("{other:?}"),
        },
    };
    Some(Arc::new(resource))
}

struct Link {
    states: [State; NAMES],
    view: ClientView,
    server: ServerSession,
    client: ClientSession,
    snapshot: Snapshot,
    requests: VecDeque<DeltaDiscoveryRequest>,
    responses: VecDeque<DeltaDiscoveryResponse>,
    once_bad: BTreeSet<String>,
}

impl Link {
    fn new() -> Self {
        let mut link = Self {
            states: [State::Gone; NAMES],
            view: ClientView::default(),
            server: ServerSession::new(),
            client: ClientSession::new(&node()),
            snapshot: Snapshot::empty(),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            once_bad: BTreeSet::new(),
        };
        link.reconnect();
        link
    }

    /// Policies whose resource is there, readable or not.
    fn there(&self) -> BTreeSet<usize> {
        (5..NAMES)
            .filter(|index| self.states[*index] != State::Gone)
            .collect()
    }

    fn publish(&mut self, index: usize, state: State) {
        self.states[index] = state;
        if matches!(state, State::Bad(_)) {
            self.once_bad.insert(key(index));
        }
        let there = self.there();
        let of = |kind| {
            let indices = (0..NAMES).filter(move |index| kind_of(*index) == kind);
            Arc::new(
                indices
                    .filter_map(|index| encoded(index, self.states[index], &there))
                    .collect(),
            )
        };
        self.view = ClientView {
            addresses: of(ResourceType::Address),
            authorizations: of(ResourceType::Authorization),
            egress_authorizations: of(ResourceType::EgressAuthorization),
        };
    }

    /// A new stream, perhaps to another replica: nothing on the way survives.
    fn reconnect(&mut self) {
        self.server = ServerSession::new();
        self.responses.clear();
        self.requests = self.client.connect().into();
    }

    fn server_sends(&mut self) -> bool {
        let response = next_response(&mut self.server, &self.view);
        let sends = response.is_some();
        self.responses.extend(response);
        sends
    }

    fn server_receives(&mut self) -> bool {
        let Some(request) = self.requests.pop_front() else {
            return false;
        };
        self.server.receive(request).expect("in bounds");
        true
    }

    fn client_receives(&mut self) -> bool {
        let Some(response) = self.responses.pop_front() else {
            return false;
        };
        let received = self.client.receive(&response);
        self.snapshot = self.snapshot.apply(received.changes);
        self.requests.push_back(received.reply);
        true
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Publish(index, state) => self.publish(index, state),
            Step::ServerSends => drop(self.server_sends()),
            Step::ServerReceives => drop(self.server_receives()),
            Step::ClientReceives => drop(self.client_receives()),
            Step::Reconnect => self.reconnect(),
            Step::RepeatRequest => {
                if let Some(request) = self.requests.front().cloned() {
                    self.requests.push_front(request);
                }
            }
            Step::RepeatResponse => {
                if let Some(response) = self.responses.front().cloned() {
                    self.responses.push_front(response);
                }
            }
            Step::SwapRequests => {
                if self.requests.len() > 1 && self.requests[0].type_url != self.requests[1].type_url
                {
                    self.requests.swap(0, 1);
                }
            }
            Step::SwapResponses => {
                if self.responses.len() > 1
                    && self.responses[0].type_url != self.responses[1].type_url
                {
                    self.responses.swap(0, 1);
                }
            }
        }
    }

    /// Lets both ends talk until nobody has anything to say.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..1000 {
            let moved = [
                self.server_receives(),
                self.server_sends(),
                self.client_receives(),
            ];
            if moved == [false; 3] {
                return Ok(());
            }
        }
        Err(TestCaseError::fail("the two never stop talking"))
    }

    /// Everything readable is there as published, everything gone is gone, and
    /// an unreadable policy is known as something.
    fn check(&self) -> Result<(), TestCaseError> {
        let there = self.there();
        let mut expected = Vec::new();
        let mut forget = Vec::new();
        for (index, state) in self.states.into_iter().enumerate() {
            match state {
                State::Gone => {}
                State::Good(form) => expected.push(good(index, form, &there)),
                State::Bad(_) => {
                    forget.push(removal(index));
                    let is_known = match kind_of(index) {
                        ResourceType::Address => true,
                        ResourceType::Authorization => {
                            self.snapshot.policy(&policy_name(index)).is_some()
                        }
                        ResourceType::EgressAuthorization => {
                            self.snapshot.egress_policy(&policy_name(index)).is_some()
                        }
                    };
                    prop_assert!(is_known, "{} is open", key(index));
                }
            }
        }
        // Of what is bad, an earlier good form may be there.
        prop_assert_eq!(
            self.snapshot.apply(forget),
            Snapshot::empty().apply(expected)
        );
        for kind in ResourceType::ALL {
            prop_assert!(
                self.server
                    .is_settled(kind.url(), self.view.resources(kind))
            );
        }
        Ok(())
    }

    /// The first policy that a workload names and the client does not know. A
    /// workload that was once unreadable does not count: an older form of it
    /// stays, and what that names may be gone.
    fn unknown_policy(&self) -> Option<PolicyName> {
        let mut workloads = self
            .snapshot
            .workloads()
            .filter(|workload| !self.once_bad.contains(workload.uid.as_str()));
        workloads.find_map(|workload| {
            let ingress = workload.authorization_policies.iter();
            let egress = workload.egress_policies.iter();
            let unknown = ingress.filter(|name| self.snapshot.policy(name).is_none());
            unknown
                .chain(egress.filter(|name| self.snapshot.egress_policy(name).is_none()))
                .next()
                .cloned()
        })
    }
}

fn removal(index: usize) -> Change {
    match kind_of(index) {
        ResourceType::Address => Change::RemoveAddress(key(index)),
        ResourceType::Authorization => Change::RemovePolicy(policy_name(index)),
        ResourceType::EgressAuthorization => Change::RemoveEgressPolicy(policy_name(index)),
    }
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![2 => Just(State::Gone), 5 => (0..8_u32).prop_map(State::Good), 1 => (0..3_u8).prop_map(State::Bad)]
}

fn orderly_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..NAMES, state()).prop_map(|(index, state)| Step::Publish(index, state)),
        4 => Just(Step::ServerSends),
        4 => Just(Step::ServerReceives),
        4 => Just(Step::ClientReceives),
        1 => Just(Step::Reconnect),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let disorder = select(vec![
        Step::RepeatRequest,
        Step::RepeatResponse,
        Step::SwapRequests,
        Step::SwapResponses,
    ]);
    prop_oneof![8 => orderly_step(), 2 => disorder]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_client_ends_with_what_the_server_has(steps in vec(any_step(), 0..120)) {
        let mut link = Link::new();
        for step in steps {
            link.step(step);
        }
        link.settle()?;
        link.check()?;
    }

    /// Once a client is complete, and messages keep their order as they do on a
    /// stream, no workload of its view names a policy that it does not know.
    #[test]
    fn no_workload_comes_before_its_policies(steps in vec(orderly_step(), 0..120)) {
        let mut link = Link::new();
        for step in steps {
            link.step(step);
            if link.client.is_complete() {
                prop_assert_eq!(link.unknown_policy(), None);
            }
        }
        link.settle()?;
        link.check()?;
    }

    /// Only what the client could not read is sent to it again.
    #[test]
    fn a_reconnect_with_everything_known_sends_nothing(steps in vec(any_step(), 0..60)) {
        let mut link = Link::new();
        for step in steps {
            link.step(step);
        }
        link.settle()?;
        link.reconnect();
        let bad: BTreeMap<String, State> = (0..NAMES)
            .filter(|index| matches!(link.states[*index], State::Bad(_)))
            .map(|index| (key(index), link.states[index]))
            .collect();
        while link.server_receives() {}
        while let Some(response) = next_response(&mut link.server, &link.view) {
            prop_assert!(response.removed_resources.is_empty());
            let resent: Vec<_> = response.resources.iter().map(|resource| resource.name.clone()).collect();
            prop_assert!(resent.iter().all(|name| bad.contains_key(name)), "{:?}", resent);
            link.server.receive(ack(&response)).expect("in bounds");
        }
    }
}
