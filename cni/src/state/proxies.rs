//! What each node proxy has been told. Requests go out one at a time; what to say
//! next follows from the difference between what it knows and what it should.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Action, ConnectionId, Generation, Membership, RulesState, State, Uid};

/// A request of ZDS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Serve this pod; its namespace goes along.
    Add {
        /// The pod.
        uid: Uid,
        /// Its name.
        name: String,
        /// Its namespace.
        namespace: String,
        /// Its service account.
        service_account: String,
    },
    /// Go on with this pod if you serve it; its namespace cannot be opened at
    /// the moment. Only before the snapshot is complete.
    Keep(Uid),
    /// The pod is gone.
    Delete(Uid),
    /// Every pod has been named.
    SnapshotSent,
}

/// A connection of a node proxy.
#[derive(Debug, Default)]
pub(super) struct Proxy {
    told: BTreeMap<Uid, Told>,
    /// Pods that it was asked to go on with, with their sandboxes.
    kept: BTreeMap<Uid, Generation>,
    in_flight: Option<InFlight>,
    snapshot_sent: bool,
}

#[derive(Debug)]
struct Told {
    generation: Generation,
    /// Why it could not serve the pod.
    error: Option<String>,
    /// It is to be told again.
    again: bool,
}

#[derive(Debug)]
struct InFlight {
    sequence: u64,
    request: Request,
    /// Of the pod's sandbox when it was sent.
    generation: Generation,
}

impl InFlight {
    fn is_add(&self, pod: &str) -> bool {
        matches!(&self.request, Request::Add { uid, .. } if **uid == *pod)
    }
}

impl Proxy {
    /// Pods that could not be served are to be tried again.
    pub(super) fn retry(&mut self) {
        for told in self.told.values_mut() {
            told.again = told.error.is_some();
        }
    }
}

impl State {
    /// The proxy that new pods go to.
    fn newest(&self) -> Option<&Proxy> {
        self.proxies.values().next_back()
    }

    pub(super) fn is_synchronized(&self) -> bool {
        self.newest().is_some_and(|proxy| proxy.snapshot_sent)
    }

    /// Whether the newest proxy serves the pod, in its present sandbox.
    pub(super) fn is_served(&self, uid: &str) -> bool {
        let told = self.newest().and_then(|proxy| proxy.told.get(uid));
        let pod = self.pods.get(uid);
        match (told, pod) {
            (Some(told), Some(pod)) => told.generation == pod.generation && told.error.is_none(),
            _ => false,
        }
    }

    /// Why the newest proxy does not serve the pod although it was asked to.
    pub(super) fn proxy_error(&self, uid: &str) -> Option<&str> {
        let proxy = self.newest()?;
        let told = proxy.told.get(uid)?;
        let asked = proxy
            .in_flight
            .as_ref()
            .is_some_and(|sent| sent.is_add(uid));
        let current = self.pods.get(uid)?.generation == told.generation;
        told.error
            .as_deref()
            .filter(|_| current && !asked && !told.again)
    }

    /// Whether proxies are to serve the pod.
    pub(super) fn is_announced(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|pod| {
            pod.opened
                && match self.membership(uid) {
                    Membership::In(_) => true,
                    Membership::Unknown(_) => pod.captured,
                    // Until the rules are out, connections still go to the proxy.
                    Membership::Out(_) => pod.captured && pod.rules != RulesState::Absent,
                }
        })
    }

    /// Whether it is still being found out if proxies are to serve some pod.
    fn is_undecided(&self) -> bool {
        self.objects.is_none()
            || self.pods.iter().any(|(uid, pod)| {
                let wanted = match self.membership(uid) {
                    Membership::In(_) => true,
                    Membership::Unknown(_) => pod.captured,
                    Membership::Out(_) => false,
                };
                wanted && !pod.opened && pod.fault.is_none()
            })
    }

    pub(super) fn acknowledged(
        &mut self,
        connection: ConnectionId,
        sequence: u64,
        error: String,
        actions: &mut Vec<Action>,
    ) {
        let Some(proxy) = self.proxies.get_mut(&connection) else {
            return;
        };
        let Some(sent) = proxy.in_flight.take_if(|sent| sent.sequence == sequence) else {
            // An answer to nothing: the two sides no longer understand each other.
            self.close(connection, actions);
            return;
        };
        match sent.request {
            Request::Add { uid, .. } => {
                let told = Told {
                    generation: sent.generation,
                    error: (!error.is_empty()).then_some(error),
                    again: false,
                };
                proxy.kept.remove(&uid);
                proxy.told.insert(uid, told);
            }
            Request::Keep(uid) => drop(proxy.kept.insert(uid, sent.generation)),
            // It would have told of a pod that it still serves by closing.
            Request::Delete(uid) => {
                proxy.kept.remove(&uid);
                proxy.told.remove(&uid);
            }
            Request::SnapshotSent if error.is_empty() => proxy.snapshot_sent = true,
            Request::SnapshotSent => self.close(connection, actions),
        }
    }

    fn close(&mut self, connection: ConnectionId, actions: &mut Vec<Action>) {
        self.proxies.remove(&connection);
        actions.push(Action::Close(connection));
    }

    /// Sends each proxy its next request.
    pub(super) fn tell_proxies(&mut self, actions: &mut Vec<Action>) {
        let newest = self.proxies.keys().next_back().copied();
        let connections: Vec<ConnectionId> = self.proxies.keys().copied().collect();
        for connection in connections {
            let next = self.next_request(connection, newest == Some(connection));
            let Some((request, generation)) = next else {
                continue;
            };
            let sequence = self.number();
            if let Some(proxy) = self.proxies.get_mut(&connection) {
                proxy.in_flight = Some(InFlight {
                    sequence,
                    request: request.clone(),
                    generation,
                });
            }
            actions.push(Action::Send {
                connection,
                sequence,
                request,
            });
        }
    }

    fn next_request(
        &self,
        connection: ConnectionId,
        is_newest: bool,
    ) -> Option<(Request, Generation)> {
        let proxy = self.proxies.get(&connection)?;
        if proxy.in_flight.is_some() {
            return None;
        }
        let told = proxy.told.keys().find(|uid| !self.is_announced(uid));
        let kept = || {
            let mut kept = proxy.kept.iter();
            kept.find(|(uid, generation)| !self.is_to_be_kept(uid, **generation))
                .map(|(uid, _)| uid)
        };
        if let Some(uid) = told.or_else(kept) {
            return Some((Request::Delete(Arc::clone(uid)), 0));
        }
        if !is_newest {
            return None;
        }
        let missing = self.pods.iter().find(|(uid, pod)| {
            let known = proxy.told.get(*uid);
            let told = known.is_some_and(|told| told.generation == pod.generation && !told.again);
            !told && self.is_announced(uid)
        });
        if let Some((uid, pod)) = missing {
            return Some((self.add_request(uid), pod.generation));
        }
        if proxy.snapshot_sent {
            return None;
        }
        let faulty = self.pods.iter().find(|(uid, pod)| {
            !pod.opened
                && pod.fault.is_some()
                && proxy.kept.get(*uid) != Some(&pod.generation)
                && self.is_to_be_kept(uid, pod.generation)
        });
        if let Some((uid, pod)) = faulty {
            return Some((Request::Keep(Arc::clone(uid)), pod.generation));
        }
        (!self.is_undecided()).then_some((Request::SnapshotSent, 0))
    }

    /// Whether a proxy that serves the pod from an earlier agent's time is to go
    /// on with it: its traffic still comes to the proxy.
    fn is_to_be_kept(&self, uid: &str, generation: Generation) -> bool {
        self.pods.get(uid).is_some_and(|pod| {
            pod.generation == generation
                && pod.captured
                && match self.membership(uid) {
                    Membership::In(_) | Membership::Unknown(_) => true,
                    Membership::Out(_) => pod.rules != RulesState::Absent,
                }
        })
    }

    fn add_request(&self, uid: &Uid) -> Request {
        let facts = self
            .objects
            .as_ref()
            .and_then(|objects| objects.pods.get(uid));
        let sandbox = self.pods.get(uid).map(|pod| &pod.sandbox);
        Request::Add {
            uid: Arc::clone(uid),
            name: sandbox
                .map(|sandbox| sandbox.name.clone())
                .unwrap_or_default(),
            namespace: sandbox
                .map(|sandbox| sandbox.namespace.clone())
                .unwrap_or_default(),
            service_account: facts
                .map(|facts| facts.service_account.clone())
                .unwrap_or_default(),
        }
    }
}
