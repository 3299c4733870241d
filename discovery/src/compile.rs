//! From the world to what node proxies get, and to the status of policies. A
//! pure function: the same world gives the same result, and a status says what
//! this result holds, not what was hoped.

mod authorization;
mod cidr;
mod conditions;
mod matches;
mod members;
mod network_policy;
mod peer_authentication;
mod peer_sets;
mod pods;
mod rules;
mod service;
mod workload;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::SystemTime,
};

use culvert_identity::TrustDomain;
use culvert_kubeyaml::Kind;
use culvert_model::{Policy, PolicyName, Service, ServiceName, Workload, WorkloadUid};

use crate::{
    index::{Name, World},
    watch::ObjectKey,
};

pub use conditions::{AncestorConditions, Condition, ObjectStatus, StatusShape};

/// What is the same for the whole mesh.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Trust domain of every identity.
    pub trust_domain: TrustDomain,
    /// Name of the cluster in uids of workloads.
    pub cluster_id: Arc<str>,
    /// Domain under which services have names.
    pub cluster_domain: Arc<str>,
    /// Policies of this namespace apply to the whole mesh.
    pub root_namespace: Arc<str>,
}

/// What a world compiles to.
#[derive(Debug, Default)]
pub struct Compiled {
    /// Workloads.
    pub workloads: BTreeMap<WorkloadUid, Workload>,
    /// Services.
    pub services: BTreeMap<ServiceName, Service>,
    /// Policies on what workloads accept.
    pub policies: BTreeMap<PolicyName, Policy>,
    /// Policies on what workloads may connect to.
    pub egress_policies: BTreeMap<PolicyName, Policy>,
    /// Status of policies and of objects that cannot be read.
    pub statuses: BTreeMap<ObjectKey, ObjectStatus>,
}

/// What policies are compiled from.
#[derive(Clone, Copy)]
struct Context<'a, 'c> {
    world: &'a World,
    settings: &'c Settings,
    pods: &'c pods::LivePods<'a>,
    members: &'c members::Members<'a>,
}

/// Policies by the pods that they are attached to.
#[derive(Debug, Default)]
struct Attached<'a> {
    ingress: HashMap<&'a Name, Vec<PolicyName>>,
    egress: HashMap<&'a Name, Vec<PolicyName>>,
}

/// Compiles everything.
pub fn compile(world: &World, settings: &Settings, now: SystemTime) -> Compiled {
    let pods = pods::LivePods::of(world);
    let mut compiled = Compiled {
        services: service::services(world, settings),
        ..Compiled::default()
    };
    let members = members::Members::of(world, settings, &pods);
    let context = Context {
        world,
        settings,
        pods: &pods,
        members: &members,
    };
    let mut attached = Attached::default();
    authorization::compile(context, &mut compiled, &mut attached);
    peer_authentication::compile(context, &mut compiled, &mut attached);
    let sets = network_policy::compile(context, &mut compiled, &mut attached);
    let membership = sets.members(world, &pods);
    let inputs = workload::Inputs {
        context,
        now,
        attached: &attached,
        sets: &membership,
    };
    workload::workloads(&inputs, &mut compiled);
    for (key, message) in &world.broken {
        let status = ObjectStatus::unreadable(key, message);
        compiled.statuses.insert(key.clone(), status);
    }
    compiled
}

fn key(kind: Kind, name: &Name) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: name.namespace.clone(),
        name: name.name.clone(),
    }
}

#[cfg(test)]
mod tests;
