//! Pods that take part in the network.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use culvert_kubeyaml::selector::{Labels, contains};

use crate::index::{Name, Pod, World};

/// A pod and its name.
pub(super) type Named<'a> = (&'a Name, &'a Pod);

/// Pods with an address that have not ended.
pub(super) struct LivePods<'a> {
    by_namespace: BTreeMap<Arc<str>, Vec<Named<'a>>>,
    by_address: HashMap<IpAddr, &'a Name>,
    by_name: HashMap<&'a Name, &'a Pod>,
}

impl<'a> LivePods<'a> {
    pub(super) fn of(world: &'a World) -> Self {
        let mut pods = Self {
            by_namespace: BTreeMap::new(),
            by_address: HashMap::new(),
            by_name: HashMap::new(),
        };
        for (name, pod) in &world.pods {
            if pod.terminal || pod.addresses.is_empty() {
                continue;
            }
            let namespace = pods.by_namespace.entry(name.namespace.clone());
            namespace.or_default().push((name, pod));
            pods.by_name.insert(name, pod);
            if !pod.host_network {
                // A pod that goes away yields its address to its successor.
                for address in &pod.addresses {
                    let holder = pods.by_address.entry(*address).or_insert(name);
                    if !pod.terminating {
                        *holder = name;
                    }
                }
            }
        }
        pods
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Named<'a>> {
        self.by_namespace.values().flatten().copied()
    }

    pub(super) fn namespaces(&self) -> impl Iterator<Item = (&Arc<str>, &[Named<'a>])> {
        self.by_namespace
            .iter()
            .map(|(namespace, pods)| (namespace, pods.as_slice()))
    }

    pub(super) fn of_namespace(&self, namespace: &str) -> &[Named<'a>] {
        self.by_namespace.get(namespace).map_or(&[], Vec::as_slice)
    }

    /// Pods of a namespace, or of all, with these labels.
    pub(super) fn labelled<'s>(
        &'s self,
        namespace: Option<&str>,
        labels: &'s Labels,
    ) -> impl Iterator<Item = Named<'a>> + use<'s, 'a> {
        let (one, all) = match namespace {
            Some(namespace) => (Some(self.of_namespace(namespace).iter().copied()), None),
            None => (None, Some(self.all())),
        };
        one.into_iter()
            .flatten()
            .chain(all.into_iter().flatten())
            .filter(|(_, pod)| contains(&pod.labels, labels))
    }

    pub(super) fn get(&self, name: &Name) -> Option<Named<'a>> {
        self.by_name
            .get_key_value(name)
            .map(|(name, pod)| (*name, *pod))
    }

    pub(super) fn at(&self, address: IpAddr) -> Option<Named<'a>> {
        self.get(self.by_address.get(&address)?)
    }
}
