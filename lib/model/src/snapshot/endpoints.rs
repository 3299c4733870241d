//! Which workloads stand behind a service. Filled from workloads alone, so that
//! an endpoint may arrive before its service.

use std::sync::Arc;

use crate::map::{List, ShardedMap};
use crate::name::{ServiceName, WorkloadUid};
use crate::service::Port;
use crate::workload::Workload;

/// A workload in its role behind one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The workload.
    pub workload: Arc<Workload>,
    /// The service's ports that the workload resolves itself.
    pub ports: Vec<Port>,
}

impl Endpoint {
    /// What the workload makes of a service port.
    pub fn target_port(&self, service_port: u16) -> Option<u16> {
        self.ports
            .iter()
            .find(|port| port.service_port == service_port)
            .and_then(|port| port.target_port)
    }
}

/// The endpoints of one service, sorted by key.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Endpoints {
    list: Arc<Vec<Arc<Endpoint>>>,
    /// How many have a capacity other than 1: with none, an unweighted draw is right.
    weighted: usize,
}

impl List for Endpoints {
    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl Endpoints {
    pub(crate) fn as_slice(&self) -> &[Arc<Endpoint>] {
        &self.list
    }

    /// Whether all have the same capacity.
    pub(crate) fn is_uniform(&self) -> bool {
        self.weighted == 0
    }

    pub(crate) fn contains(&self, uid: &WorkloadUid) -> bool {
        self.position(uid).is_ok()
    }

    fn position(&self, uid: &WorkloadUid) -> Result<usize, usize> {
        self.list
            .binary_search_by(|endpoint| endpoint.workload.uid.cmp(uid))
    }

    fn insert(&mut self, endpoint: Arc<Endpoint>) {
        self.remove(&endpoint.workload.uid);
        self.weighted += usize::from(endpoint.workload.capacity != 1);
        if let Err(at) = self.position(&endpoint.workload.uid) {
            Arc::make_mut(&mut self.list).insert(at, endpoint);
        }
    }

    fn remove(&mut self, uid: &WorkloadUid) {
        if let Ok(at) = self.position(uid) {
            let old = Arc::make_mut(&mut self.list).remove(at);
            self.weighted -= usize::from(old.workload.capacity != 1);
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct EndpointIndex {
    by_service: ShardedMap<ServiceName, Endpoints>,
}

impl EndpointIndex {
    pub(super) fn new() -> Self {
        Self {
            by_service: ShardedMap::new(),
        }
    }

    pub(super) fn insert(&mut self, workload: &Arc<Workload>) {
        for (service, ports) in &workload.services {
            let endpoint = Arc::new(Endpoint {
                workload: workload.clone(),
                ports: ports.clone(),
            });
            self.by_service
                .edit(service, |endpoints| endpoints.insert(endpoint));
        }
    }

    pub(super) fn replace(&mut self, old: &Workload, new: &Arc<Workload>) {
        for service in old.services.keys() {
            if !new.services.contains_key(service) {
                self.by_service
                    .edit(service, |endpoints| endpoints.remove(&old.uid));
            }
        }
        self.insert(new);
    }

    pub(super) fn remove(&mut self, workload: &Workload) {
        for service in workload.services.keys() {
            self.by_service
                .edit(service, |endpoints| endpoints.remove(&workload.uid));
        }
    }

    pub(super) fn get(&self, service: &ServiceName) -> Option<&Endpoints> {
        self.by_service.get(service)
    }
}
