//! Which pods stand behind which services, and on which ports.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use culvert_model::{Port, ServiceName};
use ipnet::IpNet;

use super::{
    Settings,
    pods::{LivePods, Named},
    service::service_name,
};
use crate::index::{Endpoint, Name, Pod, Service, Slice, TargetPort, World};

/// Ports by service.
pub(super) type ServicePorts = BTreeMap<ServiceName, Vec<Port>>;

/// An endpoint that is no pod.
#[derive(Debug)]
pub(super) struct External {
    pub(super) service: Name,
    pub(super) node: Option<Arc<str>>,
    pub(super) ready: bool,
    pub(super) ports: ServicePorts,
}

/// Services by their pods, and pods by their services.
pub(super) struct Members<'a> {
    ports: HashMap<&'a Name, ServicePorts>,
    pods: HashMap<&'a Name, HashSet<&'a Name>>,
    pub(super) externals: BTreeMap<(Name, IpAddr), External>,
}

impl<'a> Members<'a> {
    pub(super) fn of(world: &'a World, settings: &Settings, pods: &LivePods<'a>) -> Self {
        let mut members = Self {
            ports: HashMap::new(),
            pods: HashMap::new(),
            externals: BTreeMap::new(),
        };
        for (name, service) in &world.services {
            if service.external_name {
                continue;
            }
            let entry = Entry {
                name,
                service,
                mesh_name: service_name(name, settings),
            };
            match world.slices.get(name) {
                Some(slices) => {
                    for slice in slices.values() {
                        members.add_slice(&entry, slice, pods);
                    }
                }
                // Nobody writes slices here: the selector says it as well.
                None => members.add_selected(&entry, pods),
            }
            members.note_pods(&entry, pods);
        }
        members
    }

    /// The services of a pod that may send it connections.
    pub(super) fn ports(&self, pod: &Name) -> ServicePorts {
        self.ports.get(pod).cloned().unwrap_or_default()
    }

    /// The pods of a service, ready or not: those to which its policies apply.
    pub(super) fn pods(&self, service: &Name) -> impl Iterator<Item = &'a Name> {
        self.pods.get(service).into_iter().flatten().copied()
    }

    fn add_slice(&mut self, entry: &Entry<'a>, slice: &Slice, pods: &LivePods<'a>) {
        let ports = entry.slice_ports(slice);
        for endpoint in &slice.endpoints {
            let ready = endpoint.ready && !endpoint.terminating;
            let usable = ready || entry.service.publish_not_ready;
            match entry.pod(endpoint, pods) {
                Some((pod, _)) => {
                    self.pods.entry(entry.name).or_default().insert(pod);
                    if usable {
                        add(self.ports.entry(pod).or_default(), &entry.mesh_name, &ports);
                    }
                }
                // A pod that is not known (yet, or any more) is no address to use.
                None if endpoint.pod.is_some() => {}
                None => self.add_external(entry, endpoint, ready, &ports),
            }
        }
    }

    fn add_external(
        &mut self,
        entry: &Entry<'_>,
        endpoint: &Endpoint,
        ready: bool,
        ports: &[Port],
    ) {
        for address in &endpoint.addresses {
            let key = (entry.name.clone(), *address);
            let external = self.externals.entry(key).or_insert_with(|| External {
                service: entry.name.clone(),
                node: endpoint.node.clone(),
                ready,
                ports: ServicePorts::new(),
            });
            external.ready |= ready;
            add(&mut external.ports, &entry.mesh_name, ports);
        }
    }

    fn add_selected(&mut self, entry: &Entry<'a>, pods: &LivePods<'a>) {
        let Some(selector) = &entry.service.selector else {
            return;
        };
        for (name, pod) in pods.labelled(Some(&entry.name.namespace), selector) {
            let ports = entry.pod_ports(pod);
            add(
                self.ports.entry(name).or_default(),
                &entry.mesh_name,
                &ports,
            );
        }
    }

    fn note_pods(&mut self, entry: &Entry<'a>, pods: &LivePods<'a>) {
        if let Some(selector) = &entry.service.selector {
            let selected = pods.labelled(Some(&entry.name.namespace), selector);
            let noted = self.pods.entry(entry.name).or_default();
            noted.extend(selected.map(|(name, _)| name));
        }
    }
}

struct Entry<'a> {
    name: &'a Name,
    service: &'a Service,
    mesh_name: ServiceName,
}

impl<'a> Entry<'a> {
    fn pod(&self, endpoint: &Endpoint, pods: &LivePods<'a>) -> Option<Named<'a>> {
        match &endpoint.pod {
            Some(pod) => pods.get(&Name {
                namespace: self.name.namespace.clone(),
                name: pod.clone(),
            }),
            None => endpoint
                .addresses
                .iter()
                .find_map(|address| pods.at(*address)),
        }
    }

    /// The ports of a slice, by the names that the service gives them.
    fn slice_ports(&self, slice: &Slice) -> Vec<Port> {
        let ports = self.service.ports.iter();
        ports
            .filter_map(|port| {
                let target = slice.ports.iter().find(|other| other.name == port.name)?;
                Some(Port {
                    service_port: port.port,
                    target_port: Some(target.port),
                    app_protocol: port.protocol,
                })
            })
            .collect()
    }

    fn pod_ports(&self, pod: &Pod) -> Vec<Port> {
        let ports = self.service.ports.iter();
        ports
            .filter_map(|port| {
                let target = match &port.target {
                    TargetPort::Number(number) => Some(*number),
                    TargetPort::Name(name) => pod.port(name),
                };
                Some(Port {
                    service_port: port.port,
                    target_port: Some(target?),
                    app_protocol: port.protocol,
                })
            })
            .collect()
    }
}

fn add(services: &mut ServicePorts, service: &ServiceName, ports: &[Port]) {
    // The service is named even if none of its ports resolves here.
    let known = services.entry(service.clone()).or_default();
    for port in ports {
        if !known.contains(port) {
            known.push(*port);
        }
    }
}

/// Where names are resolved: addresses and ports of the cluster's DNS.
#[derive(Debug, Default)]
pub(super) struct ClusterDns {
    pub(super) addresses: Vec<IpNet>,
    pub(super) ports: Vec<u16>,
}

pub(super) fn cluster_dns(world: &World, pods: &LivePods<'_>) -> ClusterDns {
    let name = Name::new("kube-system", "kube-dns");
    let Some(service) = world.services.get(&name) else {
        return ClusterDns::default();
    };
    let none = culvert_kubeyaml::selector::Labels::new();
    let selector = service.selector.as_ref();
    let behind = pods
        .labelled(Some(&name.namespace), selector.unwrap_or(&none))
        .filter(|_| selector.is_some());
    let mut dns = ClusterDns {
        addresses: service.addresses.iter().copied().map(IpNet::from).collect(),
        ports: vec![53],
    };
    for (_, pod) in behind {
        dns.addresses
            .extend(pod.addresses.iter().copied().map(IpNet::from));
        for port in service.ports.iter().filter(|port| port.port == 53) {
            let target = match &port.target {
                TargetPort::Number(number) => Some(*number),
                TargetPort::Name(name) => pod.port(name),
            };
            dns.ports.extend(target);
        }
    }
    dns.addresses.sort_unstable();
    dns.addresses.dedup();
    dns.ports.sort_unstable();
    dns.ports.dedup();
    dns
}
