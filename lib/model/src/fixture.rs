//! Small worlds for the tests of this crate.

use std::net::{IpAddr, SocketAddr};

use culvert_identity::Identity;

use crate::*;

pub(crate) fn identity(namespace: &str, account: &str) -> Identity {
    let domain = "cluster.local".parse().expect("valid");
    Identity::new(&domain, namespace, account).expect("valid")
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().expect(text)
}

pub(crate) fn service_name(short: &str, namespace: &str) -> ServiceName {
    ServiceName::new(namespace, format!("{short}.{namespace}.svc"))
}

pub(crate) fn policy_name(text: &str) -> PolicyName {
    text.parse().expect(text)
}

pub(crate) fn port(service_port: u16, target_port: u16) -> Port {
    Port {
        service_port,
        target_port: (target_port != 0).then_some(target_port),
        app_protocol: AppProtocol::Unknown,
    }
}

/// A meshed pod `namespace/name` with the service account of its name.
pub(crate) fn pod(namespace: &str, name: &str, addresses: &[&str]) -> Workload {
    let uid = format!("c//Pod/{namespace}/{name}");
    let mut workload = Workload::new(WorkloadUid::new(uid), name, identity(namespace, name));
    workload.addresses = addresses.iter().map(|text| ip(text)).collect();
    workload.tunnel_protocol = TunnelProtocol::Hbone;
    workload
}

pub(crate) fn behind(mut workload: Workload, short: &str, ports: &[Port]) -> Workload {
    let name = service_name(short, &workload.namespace.clone());
    workload.services.insert(name, ports.to_vec());
    workload
}

/// A service of namespace `shop`.
pub(crate) fn service(short: &str, addresses: &[&str], ports: &[Port]) -> Service {
    let mut service = Service::new(service_name(short, "shop"), short);
    service.addresses = addresses
        .iter()
        .map(|text| NetworkAddress::host("", ip(text)))
        .collect();
    service.ports = ports.to_vec();
    service
}

pub(crate) fn world(workloads: &[Workload], services: &[Service]) -> Snapshot {
    let workloads = workloads.iter().cloned().map(Change::Workload);
    let services = services.iter().cloned().map(Change::Service);
    Snapshot::empty().apply(services.chain(workloads))
}
