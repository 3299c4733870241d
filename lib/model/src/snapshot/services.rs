//! Services by key, hostname, virtual address and address range.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::map::ShardedMap;
use crate::name::ServiceName;
use crate::service::Service;

type List = Arc<Vec<Arc<Service>>>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ServiceIndex {
    by_name: ShardedMap<ServiceName, Arc<Service>>,
    by_hostname: ShardedMap<Arc<str>, List>,
    by_ip: ShardedMap<IpAddr, List>,
    /// Ranges, by prefix length: a lookup asks once for each length in use.
    by_range: Arc<BTreeMap<u8, BTreeMap<IpNet, List>>>,
}

impl ServiceIndex {
    pub(super) fn new() -> Self {
        Self {
            by_name: ShardedMap::new(),
            by_hostname: ShardedMap::new(),
            by_ip: ShardedMap::new(),
            by_range: Arc::default(),
        }
    }

    pub(super) fn insert(&mut self, service: &Arc<Service>, network: &str) {
        if let Some(old) = self.by_name.insert(service.name.clone(), service.clone()) {
            self.unindex(&old);
        }
        self.by_hostname
            .edit(&service.name.hostname, |list| insert_sorted(list, service));
        let ours = |network_of: &Arc<str>| **network_of == *network;
        for address in service
            .addresses
            .iter()
            .filter(|address| ours(&address.network))
        {
            if address.is_host() {
                self.by_ip.edit(&address.net.addr().to_canonical(), |list| {
                    insert_sorted(list, service)
                });
            } else {
                let ranges = Arc::make_mut(&mut self.by_range);
                let net = address.net.trunc();
                let list = ranges
                    .entry(net.prefix_len())
                    .or_default()
                    .entry(net)
                    .or_default();
                insert_sorted(list, service);
            }
        }
    }

    pub(super) fn remove(&mut self, name: &ServiceName) {
        if let Some(old) = self.by_name.remove(name) {
            self.unindex(&old);
        }
    }

    fn unindex(&mut self, old: &Service) {
        let drop = |list: &mut List| {
            if list.iter().any(|other| other.name == old.name) {
                Arc::make_mut(list).retain(|other| other.name != old.name);
            }
        };
        self.by_hostname.edit(&old.name.hostname, drop);
        for address in &old.addresses {
            if address.is_host() {
                self.by_ip.edit(&address.net.addr().to_canonical(), drop);
            } else {
                self.unindex_range(address.net.trunc(), drop);
            }
        }
    }

    fn unindex_range(&mut self, net: IpNet, drop: impl Fn(&mut List)) {
        let known = |ranges: &BTreeMap<u8, BTreeMap<IpNet, List>>| {
            ranges
                .get(&net.prefix_len())
                .is_some_and(|nets| nets.contains_key(&net))
        };
        if !known(&self.by_range) {
            return;
        }
        let ranges = Arc::make_mut(&mut self.by_range);
        let nets = ranges.entry(net.prefix_len()).or_default();
        if let Some(list) = nets.get_mut(&net) {
            drop(list);
            if list.is_empty() {
                nets.remove(&net);
            }
        }
        if nets.is_empty() {
            ranges.remove(&net.prefix_len());
        }
    }

    pub(super) fn get(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.by_name.get(name)
    }

    pub(super) fn named(&self, hostname: &str) -> &[Arc<Service>] {
        self.by_hostname.get(hostname).map_or(&[], |list| list)
    }

    pub(super) fn best_named(
        &self,
        hostname: &str,
        client_namespace: &str,
    ) -> Option<&Arc<Service>> {
        best(self.named(hostname), client_namespace)
    }

    pub(super) fn at(&self, ip: IpAddr, client_namespace: &str) -> Option<&Arc<Service>> {
        let ip = ip.to_canonical();
        let exact = self.by_ip.get(&ip).map_or(&[][..], |list| list);
        best(exact, client_namespace).or_else(|| self.in_range(ip, client_namespace))
    }

    fn in_range(&self, ip: IpAddr, client_namespace: &str) -> Option<&Arc<Service>> {
        self.by_range
            .iter()
            .rev()
            .filter_map(|(length, nets)| {
                let net = IpNet::new(ip, *length).ok()?.trunc();
                let service = best(nets.get(&net)?, client_namespace)?;
                Some((
                    *service.name.namespace == *client_namespace,
                    *length,
                    service,
                ))
            })
            .max_by_key(|(own, length, _)| (*own, *length))
            .map(|(_, _, service)| service)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.by_name.values()
    }
}

/// The client's namespace, then the canonical service, then the first by name.
fn best<'a>(candidates: &'a [Arc<Service>], client_namespace: &str) -> Option<&'a Arc<Service>> {
    candidates
        .iter()
        .filter(|service| service.is_visible_from(client_namespace))
        .min_by_key(|service| {
            let own = *service.name.namespace == *client_namespace;
            (Reverse(own), Reverse(service.canonical))
        })
}

fn insert_sorted(list: &mut List, service: &Arc<Service>) {
    if list.iter().any(|other| other.name == service.name) {
        return;
    }
    let at = list.partition_point(|other| other.name < service.name);
    Arc::make_mut(list).insert(at, service.clone());
}
