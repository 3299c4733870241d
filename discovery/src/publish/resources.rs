//! Encoded resources, kept as long as what they were made from.

use std::{collections::BTreeMap, sync::Arc};

use culvert_model::{Policy, PolicyName, Service, ServiceName, Workload, WorkloadUid};
use culvert_xds::{Resource, ResourceSet};

use super::Shared;

/// Values and their encoded form.
#[derive(Debug)]
pub(super) struct Table<K, T> {
    entries: BTreeMap<K, (T, Shared)>,
}

impl<K, T> Default for Table<K, T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone, T: PartialEq + Clone> Table<K, T> {
    /// Takes over `values`, encoding only what is different. Gives the number
    /// of differences.
    pub(super) fn replace(
        &mut self,
        values: &BTreeMap<K, T>,
        encode: impl Fn(&T) -> Resource,
    ) -> usize {
        let before = self.entries.len();
        self.entries.retain(|key, _| values.contains_key(key));
        let mut changed = before - self.entries.len();
        for (key, value) in values {
            if self
                .entries
                .get(key)
                .is_some_and(|(known, _)| known == value)
            {
                continue;
            }
            changed += 1;
            let resource = Arc::new(encode(value));
            self.entries.insert(key.clone(), (value.clone(), resource));
        }
        changed
    }

    pub(super) fn get(&self, key: &K) -> Option<&Shared> {
        self.entries.get(key).map(|(_, resource)| resource)
    }

    pub(super) fn resources(&self) -> impl Iterator<Item = &Shared> {
        self.entries.values().map(|(_, resource)| resource)
    }
}

/// Everything that was encoded.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) workloads: Table<WorkloadUid, Workload>,
    pub(super) services: Table<ServiceName, Service>,
    pub(super) policies: Table<PolicyName, Policy>,
    pub(super) egress_policies: Table<PolicyName, Policy>,
}

/// The set of these resources; the one from before if it is the same.
pub(super) fn reuse<'a>(
    before: &Arc<ResourceSet>,
    resources: impl Iterator<Item = &'a Shared>,
) -> Arc<ResourceSet> {
    let resources: BTreeMap<&str, &Shared> = resources.map(|r| (r.name(), r)).collect();
    let same = before.len() == resources.len()
        && before
            .iter()
            .zip(resources.values())
            .all(|(old, new)| Arc::ptr_eq(old, new));
    if same {
        before.clone()
    } else {
        Arc::new(resources.into_values().cloned().collect())
    }
}
