//! Workloads by key, address and hostname.

use std::net::IpAddr;
use std::sync::Arc;

use crate::map::ShardedMap;
use crate::name::WorkloadUid;
use crate::workload::{Health, NetworkMode, Workload};

type List = Arc<Vec<Arc<Workload>>>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct WorkloadIndex {
    by_uid: ShardedMap<WorkloadUid, Arc<Workload>>,
    /// Preferred ones first.
    by_ip: ShardedMap<IpAddr, List>,
    by_hostname: ShardedMap<Arc<str>, List>,
}

impl WorkloadIndex {
    pub(super) fn new() -> Self {
        Self {
            by_uid: ShardedMap::new(),
            by_ip: ShardedMap::new(),
            by_hostname: ShardedMap::new(),
        }
    }

    /// Gives back what had the key before.
    pub(super) fn insert(
        &mut self,
        workload: &Arc<Workload>,
        network: &str,
    ) -> Option<Arc<Workload>> {
        let old = self.by_uid.insert(workload.uid.clone(), workload.clone());
        if let Some(old) = &old {
            self.unindex(old);
        }
        if workload.network_mode == NetworkMode::Standard && *workload.network == *network {
            for ip in &workload.addresses {
                self.by_ip
                    .edit(&ip.to_canonical(), |list| insert_sorted(list, workload));
            }
        }
        if !workload.hostname.is_empty() {
            self.by_hostname
                .edit(&workload.hostname, |list| insert_sorted(list, workload));
        }
        old
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Arc<Workload>> {
        let old = self.by_uid.remove(uid)?;
        self.unindex(&old);
        Some(old)
    }

    fn unindex(&mut self, old: &Workload) {
        let drop = |list: &mut List| {
            if list.iter().any(|other| other.uid == old.uid) {
                Arc::make_mut(list).retain(|other| other.uid != old.uid);
            }
        };
        for ip in &old.addresses {
            self.by_ip.edit(&ip.to_canonical(), drop);
        }
        if !old.hostname.is_empty() {
            self.by_hostname.edit(&old.hostname, drop);
        }
    }

    pub(super) fn get(&self, uid: &WorkloadUid) -> Option<&Arc<Workload>> {
        self.by_uid.get(uid)
    }

    pub(super) fn at(&self, ip: IpAddr) -> &[Arc<Workload>] {
        self.by_ip.get(&ip.to_canonical()).map_or(&[], |list| list)
    }

    pub(super) fn named(&self, hostname: &str) -> &[Arc<Workload>] {
        self.by_hostname.get(hostname).map_or(&[], |list| list)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.by_uid.values()
    }
}

/// Pods first, then those in the mesh, then those that are not on their way out:
/// an address is given to the next pod before the last one is forgotten. The
/// key breaks ties, so that the order of arrival never shows.
fn rank(workload: &Workload) -> (bool, bool, bool, &WorkloadUid) {
    (
        !workload.uid.is_pod(),
        !workload.is_meshed(),
        workload.health == Health::Unhealthy,
        &workload.uid,
    )
}

fn insert_sorted(list: &mut List, workload: &Arc<Workload>) {
    // A workload may list one address twice.
    if list.iter().any(|other| other.uid == workload.uid) {
        return;
    }
    let at = list.partition_point(|other| rank(other) < rank(workload));
    Arc::make_mut(list).insert(at, workload.clone());
}
