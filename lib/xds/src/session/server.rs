//! The server's end: knows what the client has, and sends the difference.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use culvert_api::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

use crate::resource::{Resource, ResourceSet};

use super::WILDCARD;
use super::rejection::Rejection;

/// 16 types: ours are 3; a client of another kind asks for a handful that get
/// empty answers.
const TYPES_MAX: usize = 16;

/// 65,536 names asked for one by one: more than the addresses a node talks to.
const NAMES_MAX: usize = 65_536;

/// Why a client cannot be served further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// It subscribes to more types than there are.
    #[error("more than {TYPES_MAX} types of resources")]
    TooManyTypes,
    /// It asks for more single resources than the server remembers.
    #[error("more than {NAMES_MAX} resources by name")]
    TooManyNames,
}

/// What a request meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A first request, or a change of what is asked for.
    Subscribed,
    /// The last response was taken in.
    Acknowledged,
    /// Parts of the last response were refused; the rest was taken in.
    Rejected(Vec<Rejection>),
    /// An answer to a response that is not the last one; it means nothing.
    Stale,
}

/// Whether a response may say that resources are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removals {
    /// With the rest.
    Now,
    /// Not yet: something else that the client holds still refers to them.
    Later,
}

/// The server's end of one stream.
#[derive(Debug, Default)]
pub struct ServerSession {
    subscriptions: BTreeMap<String, Subscription>,
    last_nonce: u64,
}

#[derive(Debug, Default)]
struct Subscription {
    wildcard: bool,
    names: BTreeSet<String>,
    /// Names that have to be answered whether or not they are there.
    asked: BTreeSet<String>,
    /// What the client has, or will have after the response under way.
    sent: HashMap<Arc<str>, Arc<str>>,
    /// The response that waits to be acknowledged. There is at most one, so
    /// that a slow client makes no queue: it gets the difference to its own
    /// state when it is ready for it.
    outstanding: Option<String>,
    answered: bool,
    /// The set that `sent` agrees with.
    settled: Option<Arc<ResourceSet>>,
}

struct Difference<'a> {
    changed: Vec<&'a Arc<Resource>>,
    gone: Vec<String>,
}

impl ServerSession {
    /// A stream on which nothing was asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a request.
    ///
    /// # Errors
    /// When the client asks for more than a session may hold.
    pub fn receive(&mut self, request: DeltaDiscoveryRequest) -> Result<Event, SessionError> {
        let is_first = !self.subscriptions.contains_key(&request.type_url);
        if is_first && self.subscriptions.len() == TYPES_MAX {
            return Err(SessionError::TooManyTypes);
        }
        let subscription = self.subscriptions.entry(request.type_url).or_default();
        if is_first {
            subscription.begin(
                &request.resource_names_subscribe,
                request.initial_resource_versions,
            );
        }
        let changed = subscription.change(
            request.resource_names_subscribe,
            request.resource_names_unsubscribe,
            is_first,
        )?;
        if is_first || (request.response_nonce.is_empty() && changed) {
            return Ok(Event::Subscribed);
        }
        if subscription.outstanding.as_deref() != Some(&request.response_nonce) {
            return Ok(Event::Stale);
        }
        subscription.outstanding = None;
        Ok(match request.error_detail {
            None => Event::Acknowledged,
            Some(error) => Event::Rejected(Rejection::parse(&error.message)),
        })
    }

    /// The types that the client asked for.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.subscriptions.keys().map(String::as_str)
    }

    /// Whether a response of any type waits to be acknowledged.
    pub fn is_waiting(&self) -> bool {
        self.subscriptions
            .values()
            .any(|subscription| subscription.outstanding.is_some())
    }

    /// Whether the client asked for the type.
    pub fn is_subscribed(&self, type_url: &str) -> bool {
        self.subscriptions.contains_key(type_url)
    }

    /// Whether the client has acknowledged a response of the type since it
    /// asked, and none waits to be.
    pub fn is_answered(&self, type_url: &str) -> bool {
        self.subscriptions
            .get(type_url)
            .is_some_and(|subscription| subscription.answered && subscription.outstanding.is_none())
    }

    /// Whether the client has acknowledged all of the set.
    pub fn is_settled(&self, type_url: &str, set: &Arc<ResourceSet>) -> bool {
        self.subscriptions
            .get(type_url)
            .is_some_and(|subscription| {
                subscription.outstanding.is_none()
                    && subscription.answered
                    && subscription.agrees_with(set)
            })
    }

    /// Whether something of the set is still to be sent, apart from removals.
    pub fn has_news(&self, type_url: &str, set: &Arc<ResourceSet>) -> bool {
        self.subscriptions
            .get(type_url)
            .is_some_and(|subscription| {
                let is_settled = subscription
                    .settled
                    .as_ref()
                    .is_some_and(|settled| Arc::ptr_eq(settled, set));
                !is_settled && !subscription.difference(set).changed.is_empty()
            })
    }

    /// The next response of a type, if there is something to say and the last
    /// one was acknowledged. The first response comes even when it is empty:
    /// clients wait for it.
    pub fn respond(
        &mut self,
        type_url: &str,
        set: &Arc<ResourceSet>,
        removals: Removals,
    ) -> Option<DeltaDiscoveryResponse> {
        let subscription = self.subscriptions.get_mut(type_url)?;
        if subscription.outstanding.is_some() {
            return None;
        }
        if subscription.answered && subscription.agrees_by_identity(set) {
            return None;
        }
        let mut difference = subscription.difference(set);
        if removals == Removals::Later {
            difference
                .gone
                .retain(|name| subscription.asked.contains(name));
        } else {
            subscription.settled = Some(set.clone());
        }
        if subscription.answered && difference.changed.is_empty() && difference.gone.is_empty() {
            return None;
        }
        self.last_nonce += 1;
        let nonce = self.last_nonce.to_string();
        subscription.answered = true;
        subscription.asked.clear();
        subscription.outstanding = Some(nonce.clone());
        for name in &difference.gone {
            subscription.sent.remove(name.as_str());
        }
        for resource in &difference.changed {
            subscription
                .sent
                .insert(Arc::from(resource.name()), resource.shared_version());
        }
        Some(DeltaDiscoveryResponse {
            resources: difference
                .changed
                .iter()
                .map(|resource| resource.to_wire(type_url))
                .collect(),
            type_url: type_url.to_owned(),
            nonce,
            removed_resources: difference.gone,
            ..DeltaDiscoveryResponse::default()
        })
    }
}

impl Subscription {
    /// The first request of a type says how the client subscribes, and what it
    /// has from earlier streams.
    fn begin(&mut self, subscribe: &[String], versions: HashMap<String, String>) {
        self.wildcard = subscribe.is_empty();
        self.sent = versions
            .into_iter()
            .map(|(name, version)| (Arc::from(name), Arc::from(version)))
            .collect();
    }

    fn change(
        &mut self,
        subscribe: Vec<String>,
        unsubscribe: Vec<String>,
        is_first: bool,
    ) -> Result<bool, SessionError> {
        let changed = !subscribe.is_empty() || !unsubscribe.is_empty();
        if changed {
            self.settled = None;
        }
        for name in subscribe {
            if name == WILDCARD {
                self.wildcard = true;
                continue;
            }
            // Asking is asking again, unless the client just said that it has it.
            if !is_first || !self.sent.contains_key(name.as_str()) {
                self.asked.insert(name.clone());
            }
            self.names.insert(name);
        }
        for name in unsubscribe {
            if name == WILDCARD {
                self.wildcard = false;
                continue;
            }
            self.asked.remove(&name);
            self.names.remove(&name);
            if !self.wildcard {
                self.sent.remove(name.as_str());
            }
        }
        if self.names.len() > NAMES_MAX {
            return Err(SessionError::TooManyNames);
        }
        Ok(changed)
    }

    fn agrees_by_identity(&self, set: &Arc<ResourceSet>) -> bool {
        self.asked.is_empty()
            && self
                .settled
                .as_ref()
                .is_some_and(|settled| Arc::ptr_eq(settled, set))
    }

    fn agrees_with(&self, set: &Arc<ResourceSet>) -> bool {
        if self.agrees_by_identity(set) {
            return true;
        }
        let difference = self.difference(set);
        difference.changed.is_empty() && difference.gone.is_empty()
    }

    fn difference<'a>(&self, set: &'a ResourceSet) -> Difference<'a> {
        let asked: BTreeSet<&str> = self
            .asked
            .iter()
            .filter_map(|key| set.find(key))
            .map(|resource| resource.name())
            .collect();
        let is_new = |resource: &&Arc<Resource>| {
            let sent = self.sent.get(resource.name());
            asked.contains(resource.name())
                || sent.is_none_or(|version| **version != *resource.version())
        };
        let (changed, mut gone): (Vec<_>, Vec<_>) = if self.wildcard {
            let gone = |name: &&Arc<str>| set.get(name).is_none();
            (
                set.iter().filter(is_new).collect(),
                self.sent
                    .keys()
                    .filter(gone)
                    .map(ToString::to_string)
                    .collect(),
            )
        } else {
            let wanted: BTreeMap<&str, &Arc<Resource>> = self
                .names
                .iter()
                .filter_map(|key| set.find(key))
                .map(|resource| (resource.name(), resource))
                .collect();
            let gone = |name: &&Arc<str>| !wanted.contains_key(&***name);
            (
                wanted.values().copied().filter(is_new).collect(),
                self.sent
                    .keys()
                    .filter(gone)
                    .map(ToString::to_string)
                    .collect(),
            )
        };
        let missing = self.asked.iter().filter(|key| set.find(key).is_none());
        gone.extend(missing.cloned());
        gone.sort_unstable();
        gone.dedup();
        Difference { changed, gone }
    }
}
