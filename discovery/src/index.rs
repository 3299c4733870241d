//! The world: what discovery knows about the objects that exist. A pure fold
//! over events; each kind is reduced, once, to what the mesh needs of it.
//!
//! ```text
//! Namespace Pod Service EndpointSlice Node Lease ReplicaSet Job
//! NetworkPolicy AuthorizationPolicy PeerAuthentication  ──fold──▶ World ──▶ compile
//! ```

mod endpoints;
mod network_policy;
mod node;
mod pod;
mod policy;
mod service;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::SystemTime,
};

use culvert_api::policy::{AuthorizationPolicySpec, PeerAuthenticationSpec};
use culvert_kubeyaml::{Body, Kind, Object, selector::Labels};

use crate::watch::{Event, ObjectKey};

pub use endpoints::{Endpoint, EndpointPort, Slice};
pub use network_policy::{Direction, NetworkPolicy, Peer, PeerSelector, PortMatch, TrafficRule};
pub use node::{Lease, Node, NodeHealth};
pub use pod::{Owner, OwnerKind, Pod};
pub use policy::{Good, PolicyEntry};
pub use service::{Distribution, Service, ServicePort, TargetPort};

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl Name {
    /// A name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn of(key: &ObjectKey) -> Self {
        Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Objects of one kind.
pub type Map<T> = BTreeMap<Name, Arc<T>>;

/// Whether a change can make a difference to what is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that is compiled depends on it.
    None,
    /// Something may.
    Some,
}

impl Effect {
    fn of(changed: bool) -> Self {
        if changed { Self::Some } else { Self::None }
    }
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct World {
    /// Labels of namespaces.
    pub namespaces: BTreeMap<Arc<str>, Arc<Labels>>,
    /// Annotations of namespaces that discovery understands.
    pub namespace_distribution: BTreeMap<Arc<str>, Distribution>,
    /// Pods.
    pub pods: Map<Pod>,
    /// Services.
    pub services: Map<Service>,
    /// Endpoint slices by the service that they belong to, then by name.
    pub slices: BTreeMap<Name, BTreeMap<Arc<str>, Arc<Slice>>>,
    /// Nodes.
    pub nodes: BTreeMap<Arc<str>, Arc<Node>>,
    /// Leases of nodes.
    pub leases: BTreeMap<Arc<str>, Lease>,
    /// What owns a ReplicaSet or Job.
    pub owners: BTreeMap<(OwnerKind, Name), Option<Owner>>,
    /// Kubernetes network policies.
    pub network_policies: BTreeMap<Name, PolicyEntry<NetworkPolicy>>,
    /// Authorization policies.
    pub authorization_policies: BTreeMap<Name, PolicyEntry<AuthorizationPolicySpec>>,
    /// Peer authentications.
    pub peer_authentications: BTreeMap<Name, PolicyEntry<PeerAuthenticationSpec>>,
    /// Objects of other kinds that exist but cannot be read.
    pub broken: BTreeMap<ObjectKey, String>,
    /// The service of each slice, to find it when the slice is deleted.
    slice_services: HashMap<Name, Name>,
    /// How many objects there are of each kind.
    counts: BTreeMap<Kind, usize>,
    known: HashMap<ObjectKey, ()>,
}

impl World {
    /// Takes in one event. `now` decides whether a node's lease holds.
    pub fn apply(&mut self, event: &Event, now: SystemTime) -> Effect {
        match event {
            Event::Upsert(object) => {
                let key = ObjectKey::of(object);
                self.count(&key, true);
                let mended = self.broken.remove(&key).is_some();
                let effect = self.upsert(&key, object, now);
                if mended { Effect::Some } else { effect }
            }
            Event::Broken { key, message } => {
                self.count(key, true);
                self.broke(key, message)
            }
            Event::Delete(key) => {
                self.count(key, false);
                let mended = self.broken.remove(key).is_some();
                let effect = self.delete(key);
                if mended { Effect::Some } else { effect }
            }
        }
    }

    fn count(&mut self, key: &ObjectKey, exists: bool) {
        let known = if exists {
            self.known.insert(key.clone(), ()).is_some()
        } else {
            self.known.remove(key).is_some()
        };
        if known != exists {
            let count = self.counts.entry(key.kind).or_default();
            *count = if exists {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
        }
    }

    /// How many objects there are of each kind.
    pub fn counts(&self) -> &BTreeMap<Kind, usize> {
        &self.counts
    }

    fn upsert(&mut self, key: &ObjectKey, object: &Object, now: SystemTime) -> Effect {
        let name = Name::of(key);
        match &object.body {
            Body::Namespace(namespace) => self.upsert_namespace(&key.name, namespace),
            Body::Pod(body) => set(&mut self.pods, name, Pod::from(&**body)),
            Body::Service(body) => set(&mut self.services, name, Service::from(&**body)),
            Body::EndpointSlice(body) => self.upsert_slice(name, body),
            Body::Node(body) => set(&mut self.nodes, key.name.clone(), Node::from(&**body)),
            Body::Lease(body) if &*key.namespace == node::LEASE_NAMESPACE => {
                self.upsert_lease(&key.name, Lease::from(&**body), now)
            }
            Body::ReplicaSet(body) => {
                let owner = pod::controller(&body.metadata);
                self.upsert_owner(OwnerKind::ReplicaSet, name, owner)
            }
            Body::Job(body) => {
                let owner = pod::controller(&body.metadata);
                self.upsert_owner(OwnerKind::Job, name, owner)
            }
            Body::NetworkPolicy(body) => {
                let entry = self.network_policies.entry(name).or_default();
                entry.upsert(&body.metadata, Ok(NetworkPolicy::from(&**body)))
            }
            Body::AuthorizationPolicy(body) => {
                let entry = self.authorization_policies.entry(name).or_default();
                entry.upsert(&body.metadata, policy::authorization(body))
            }
            Body::PeerAuthentication(body) => {
                let entry = self.peer_authentications.entry(name).or_default();
                entry.upsert(&body.metadata, policy::peer_authentication(body))
            }
            Body::ServiceAccount(_)
            | Body::ConfigMap(_)
            | Body::Secret(_)
            | Body::Lease(_)
            | Body::Deployment(_)
            | Body::StatefulSet(_)
            | Body::DaemonSet(_)
            | Body::CronJob(_) => Effect::None,
        }
    }

    fn upsert_namespace(
        &mut self,
        name: &Arc<str>,
        namespace: &k8s_openapi::api::core::v1::Namespace,
    ) -> Effect {
        let mut labels = namespace.metadata.labels.clone().unwrap_or_default();
        // The API server sets it; a file need not.
        labels
            .entry("kubernetes.io/metadata.name".to_owned())
            .or_insert_with(|| name.to_string());
        let annotations = namespace.metadata.annotations.as_ref();
        let distribution = annotations.and_then(Distribution::from_annotations);
        let distribution_before = match distribution {
            Some(distribution) => self
                .namespace_distribution
                .insert(name.clone(), distribution),
            None => self.namespace_distribution.remove(name),
        };
        let labels_effect = set(&mut self.namespaces, name.clone(), labels);
        if distribution_before == distribution {
            labels_effect
        } else {
            Effect::Some
        }
    }

    fn upsert_slice(
        &mut self,
        name: Name,
        body: &k8s_openapi::api::discovery::v1::EndpointSlice,
    ) -> Effect {
        let service =
            endpoints::service_of(body).map(|service| Name::new(&name.namespace, service));
        let moved = self.slice_services.get(&name) != service.as_ref();
        let removed = if moved {
            self.delete_slice(&name)
        } else {
            Effect::None
        };
        let Some(service) = service else {
            return removed;
        };
        self.slice_services.insert(name.clone(), service.clone());
        let slices = self.slices.entry(service).or_default();
        set(slices, name.name, Slice::from(body))
    }

    fn delete_slice(&mut self, name: &Name) -> Effect {
        let Some(service) = self.slice_services.remove(name) else {
            return Effect::None;
        };
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(&name.name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        Effect::Some
    }

    fn upsert_lease(&mut self, node: &Arc<str>, lease: Lease, now: SystemTime) -> Effect {
        let before = self.leases.insert(node.clone(), lease);
        // Renewals come every few seconds from every node; only life and death count.
        Effect::of(before.is_none_or(|before| before.holds(now) != lease.holds(now)))
    }

    fn upsert_owner(&mut self, kind: OwnerKind, name: Name, owner: Option<Owner>) -> Effect {
        let before = self.owners.insert((kind, name), owner.clone());
        Effect::of(before != Some(owner))
    }

    fn broke(&mut self, key: &ObjectKey, message: &str) -> Effect {
        let name = Name::of(key);
        match key.kind {
            Kind::NetworkPolicy => self
                .network_policies
                .entry(name)
                .or_default()
                .broke(message),
            Kind::AuthorizationPolicy => {
                let entry = self.authorization_policies.entry(name).or_default();
                entry.broke(message)
            }
            Kind::PeerAuthentication => {
                let entry = self.peer_authentications.entry(name).or_default();
                entry.broke(message)
            }
            _ => {
                let before = self.broken.insert(key.clone(), message.to_owned());
                Effect::of(before.as_deref() != Some(message))
            }
        }
    }

    fn delete(&mut self, key: &ObjectKey) -> Effect {
        let name = Name::of(key);
        match key.kind {
            Kind::Namespace => {
                self.namespace_distribution.remove(&key.name);
                Effect::of(self.namespaces.remove(&key.name).is_some())
            }
            Kind::Pod => Effect::of(self.pods.remove(&name).is_some()),
            Kind::Service => Effect::of(self.services.remove(&name).is_some()),
            Kind::EndpointSlice => self.delete_slice(&name),
            Kind::Node => Effect::of(self.nodes.remove(&key.name).is_some()),
            Kind::Lease if &*key.namespace == node::LEASE_NAMESPACE => {
                Effect::of(self.leases.remove(&key.name).is_some())
            }
            Kind::ReplicaSet => {
                let removed = self.owners.remove(&(OwnerKind::ReplicaSet, name));
                Effect::of(removed.is_some())
            }
            Kind::Job => Effect::of(self.owners.remove(&(OwnerKind::Job, name)).is_some()),
            Kind::NetworkPolicy => Effect::of(self.network_policies.remove(&name).is_some()),
            Kind::AuthorizationPolicy => {
                Effect::of(self.authorization_policies.remove(&name).is_some())
            }
            Kind::PeerAuthentication => {
                Effect::of(self.peer_authentications.remove(&name).is_some())
            }
            _ => Effect::None,
        }
    }

    /// What is known of a node's health.
    pub fn node_health(&self, node: &str, now: SystemTime) -> NodeHealth {
        let ready = self.nodes.get(node).is_none_or(|node| node.ready);
        let holds = self.leases.get(node).is_none_or(|lease| lease.holds(now));
        if ready && holds {
            NodeHealth::Alive
        } else {
            NodeHealth::Dead
        }
    }

    /// When the next lease that holds now ends, unless it is renewed.
    pub fn next_lease_end(&self, now: SystemTime) -> Option<SystemTime> {
        self.leases
            .values()
            .filter(|lease| lease.holds(now))
            .filter_map(|lease| lease.end())
            .min()
    }

    /// The labels of a namespace; of one without an object, its name alone.
    pub fn namespace_labels(&self, namespace: &str) -> Arc<Labels> {
        self.namespaces.get(namespace).cloned().unwrap_or_else(|| {
            let name = (
                "kubernetes.io/metadata.name".to_owned(),
                namespace.to_owned(),
            );
            Arc::new(Labels::from([name]))
        })
    }

    /// The outermost owner of a pod: the Deployment behind a ReplicaSet, the
    /// CronJob behind a Job.
    pub fn root_owner(&self, namespace: &Arc<str>, pod: &Pod) -> Option<Owner> {
        let owner = pod.owner.clone()?;
        let name = Name {
            namespace: namespace.clone(),
            name: owner.name.clone(),
        };
        match self.owners.get(&(owner.kind, name)) {
            Some(Some(outer)) => Some(outer.clone()),
            Some(None) => Some(owner),
            // Not seen: the name of a Deployment's ReplicaSet ends with the hash.
            None => Some(pod.owner_by_hash().unwrap_or(owner)),
        }
    }
}

fn set<K: Ord, T: PartialEq>(map: &mut BTreeMap<K, Arc<T>>, key: K, value: T) -> Effect {
    match map.get(&key) {
        Some(before) if **before == value => Effect::None,
        _ => {
            map.insert(key, Arc::new(value));
            Effect::Some
        }
    }
}

#[cfg(test)]
mod tests;
