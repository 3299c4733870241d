//! One immutable view of the mesh, and how the next one is made from it.

mod endpoints;
mod policies;
mod services;
#[cfg(test)]
mod tests;
mod workloads;

use std::net::IpAddr;
use std::sync::Arc;

use crate::name::{PolicyName, ServiceName, WorkloadUid};
use crate::policy::{Policy, Scope};
use crate::service::Service;
use crate::workload::Workload;

pub use endpoints::Endpoint;
pub(crate) use endpoints::Endpoints;
pub(crate) use policies::PolicyList;

use endpoints::EndpointIndex;
use policies::PolicyIndex;
use services::ServiceIndex;
use workloads::WorkloadIndex;

/// One view of the mesh. Cloning costs a few hundred reference counts; lookups
/// are hash lookups, whatever the size of the mesh.
///
/// Two snapshots are equal when they hold the same things, in whatever order
/// they came.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    network: Arc<str>,
    workloads: WorkloadIndex,
    services: ServiceIndex,
    endpoints: EndpointIndex,
    policies: PolicyIndex,
    egress_policies: PolicyIndex,
}

/// One difference between two snapshots. A thing replaces what had its key.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "changes are moved once, from decoding into a snapshot"
)]
pub enum Change {
    /// A workload appeared or changed.
    Workload(Workload),
    /// A service appeared or changed.
    Service(Service),
    /// A policy on what workloads accept appeared or changed.
    Policy(Policy),
    /// A policy on what workloads may connect to appeared or changed.
    EgressPolicy(Policy),
    /// A policy's new content cannot be read: what was known of it stays, and
    /// where nothing was known everything in the scope is refused.
    UnreadablePolicy(PolicyName, Scope),
    /// The same for a policy on what workloads may connect to.
    UnreadableEgressPolicy(PolicyName),
    /// A workload or service of that key is gone.
    RemoveAddress(String),
    /// A policy on what workloads accept is gone.
    RemovePolicy(PolicyName),
    /// A policy on what workloads may connect to is gone.
    RemoveEgressPolicy(PolicyName),
}

impl Snapshot {
    /// A view of nothing, from the default network.
    pub fn empty() -> Self {
        Self::for_network("")
    }

    /// A view of nothing, from a network: addresses of other networks are never
    /// found by address, and never connected to directly.
    pub fn for_network(network: impl Into<Arc<str>>) -> Self {
        Self {
            network: network.into(),
            workloads: WorkloadIndex::new(),
            services: ServiceIndex::new(),
            endpoints: EndpointIndex::new(),
            policies: PolicyIndex::new(),
            egress_policies: PolicyIndex::new(),
        }
    }

    /// The view after the changes, taken in order. The work is proportional to
    /// what they touch, so changes of one burst belong into one call.
    #[must_use]
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) -> Self {
        let mut next = self.clone();
        for change in changes {
            next.change(change);
        }
        next
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Workload(workload) => self.insert_workload(&Arc::new(workload)),
            Change::Service(service) => self.services.insert(&Arc::new(service), &self.network),
            Change::Policy(policy) => self.policies.insert(Arc::new(policy)),
            Change::EgressPolicy(policy) => self.egress_policies.insert(Arc::new(policy)),
            Change::UnreadablePolicy(name, scope) => self.policies.insert_unreadable(name, scope),
            Change::UnreadableEgressPolicy(name) => self
                .egress_policies
                .insert_unreadable(name, Scope::WorkloadSelector),
            Change::RemoveAddress(name) => self.remove_address(&name),
            Change::RemovePolicy(name) => self.policies.remove(&name),
            Change::RemoveEgressPolicy(name) => self.egress_policies.remove(&name),
        }
    }

    fn insert_workload(&mut self, workload: &Arc<Workload>) {
        if let Some(old) = self.workloads.insert(workload, &self.network) {
            self.endpoints.replace(&old, workload);
        } else {
            self.endpoints.insert(workload);
        }
    }

    fn remove_address(&mut self, name: &str) {
        if let Some(workload) = self.workloads.remove(name) {
            self.endpoints.remove(&workload);
        } else if let Ok(name) = name.parse::<ServiceName>() {
            self.services.remove(&name);
        }
    }

    /// The network from which this view is taken.
    pub fn network(&self) -> &str {
        &self.network
    }

    /// The workload of that key.
    pub fn workload(&self, uid: &WorkloadUid) -> Option<&Arc<Workload>> {
        self.workloads.get(uid)
    }

    /// The workload at an address of our network. Where several claim one, a
    /// pod is preferred, then one that is in the mesh. A workload on its node's
    /// network is never found, because the address does not tell who it is.
    pub fn workload_at(&self, ip: IpAddr) -> Option<&Arc<Workload>> {
        self.workloads.at(ip).first()
    }

    /// Every workload that claims an address of our network, preferred ones first.
    pub fn workloads_at(&self, ip: IpAddr) -> &[Arc<Workload>] {
        self.workloads.at(ip)
    }

    /// The workloads of that hostname, by key.
    pub fn workloads_named(&self, hostname: &str) -> &[Arc<Workload>] {
        self.workloads.named(hostname)
    }

    /// The service of that key.
    pub fn service(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.services.get(name)
    }

    /// The service behind an address of our network as a client of that
    /// namespace sees it: an exact address before a range; then the client's
    /// own namespace, the longer prefix, the canonical service.
    pub fn service_at(&self, ip: IpAddr, client_namespace: &str) -> Option<&Arc<Service>> {
        self.services.at(ip, client_namespace)
    }

    /// Every service of that hostname, by namespace.
    pub fn services_named(&self, hostname: &str) -> &[Arc<Service>] {
        self.services.named(hostname)
    }

    /// The service that a client of that namespace means by a hostname.
    pub fn service_named(&self, hostname: &str, client_namespace: &str) -> Option<&Arc<Service>> {
        self.services.best_named(hostname, client_namespace)
    }

    /// The endpoints of a service, by key; also before the service is known.
    pub fn endpoints(&self, service: &ServiceName) -> &[Arc<Endpoint>] {
        self.endpoints.get(service).map_or(&[], Endpoints::as_slice)
    }

    pub(crate) fn endpoint_set(&self, service: &ServiceName) -> Option<&Endpoints> {
        self.endpoints.get(service)
    }

    /// A policy on what workloads accept.
    pub fn policy(&self, name: &PolicyName) -> Option<&Arc<Policy>> {
        self.policies.get(name)
    }

    /// A policy on what workloads may connect to.
    pub fn egress_policy(&self, name: &PolicyName) -> Option<&Arc<Policy>> {
        self.egress_policies.get(name)
    }

    /// The policies that judge connections to a workload: global ones, those of
    /// its namespace, those it names. A name that is not known is left out here
    /// and refused by [`authorize`](crate::authorize()).
    pub fn policies_of(&self, workload: &Workload) -> Vec<&Arc<Policy>> {
        let scoped = self.policies.scoped(&workload.namespace);
        let named = workload
            .authorization_policies
            .iter()
            .filter_map(|name| self.policies.get(name));
        let mut all: Vec<_> = scoped.flat_map(PolicyList::iter).chain(named).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|a, b| a.name == b.name);
        all
    }

    pub(crate) fn policy_index(&self) -> &PolicyIndex {
        &self.policies
    }

    /// All workloads, in no order.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.iter()
    }

    /// All services, in no order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.iter()
    }

    /// All policies on what workloads accept, in no order.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.iter()
    }

    /// All policies on what workloads may connect to, in no order.
    pub fn egress_policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.egress_policies.iter()
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::empty()
    }
}
