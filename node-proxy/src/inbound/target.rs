//! To which port of the pod a CONNECT goes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use culvert_hbone::Authority;
use culvert_identity::Identity;
use culvert_model::{
    ApplicationProtocol, ApplicationTunnel, GatewayAddress, GatewayDestination, Service, Snapshot,
    Workload,
};

use super::Refused;
use super::proxy_header::ProxyHeader;
use crate::redirect::is_own_port;

/// Where a stream goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The pod's own address and the application's port: what policies judge.
    pub(super) address: SocketAddr,
    /// What the peer named, where that is an address.
    pub(super) named: Option<SocketAddr>,
    tunnel: Option<ApplicationTunnel>,
}

impl Target {
    /// A pod that takes the PROXY protocol listens on loopback, out of reach
    /// of everybody but the proxy.
    pub(super) fn connect_to(&self) -> SocketAddr {
        let loopback = match self.address.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        if self.takes_proxy_header() {
            SocketAddr::new(loopback, self.address.port())
        } else {
            self.address
        }
    }

    fn takes_proxy_header(&self) -> bool {
        self.tunnel
            .is_some_and(|tunnel| tunnel.protocol == ApplicationProtocol::Proxy)
    }

    pub(super) fn proxy_header(
        &self,
        client: SocketAddr,
        identity: &Identity,
    ) -> Option<ProxyHeader> {
        self.takes_proxy_header().then(|| ProxyHeader {
            source: client,
            destination: self.named.unwrap_or(self.address),
            identity: identity.to_string(),
        })
    }
}

/// Decides where a stream to `workload` goes that came to its address `own`.
///
/// A peer cannot name another pod's address: what is connected to is always the
/// pod's own address, and a foreign one is accepted only by a workload that
/// stands before others (a waypoint in front of which we sit).
pub(super) fn resolve(
    snapshot: &Snapshot,
    workload: &Workload,
    own: IpAddr,
    authority: &Authority,
) -> Result<Target, Refused> {
    let tunnel = workload.application_tunnel;
    let (ip, port, named) = match authority {
        Authority::Address(address) => {
            let ip = address.ip().to_canonical();
            let named = SocketAddr::new(ip, address.port());
            let is_own = ip == own || workload.addresses.contains(&ip);
            if !is_own && tunnel.is_none() && !stands_before(snapshot, workload, ip) {
                return Err(Refused::NotOurs(named));
            }
            (if is_own { ip } else { own }, address.port(), Some(named))
        }
        Authority::Host { name, port } => {
            let (target, vip) = resolve_host(snapshot, workload, name, *port)
                .ok_or_else(|| Refused::UnknownHost(authority.to_string()))?;
            (own, target, vip)
        }
    };
    let port = tunnel.and_then(|tunnel| tunnel.port).unwrap_or(port);
    if is_own_port(port) {
        return Err(Refused::OwnPort);
    }
    Ok(Target {
        address: SocketAddr::new(ip, port),
        named,
        tunnel,
    })
}

/// The application's port, and the service's address, by a service's name.
fn resolve_host(
    snapshot: &Snapshot,
    workload: &Workload,
    name: &str,
    port: u16,
) -> Option<(u16, Option<SocketAddr>)> {
    let service = snapshot.service_named(name, &workload.namespace)?;
    let own = workload.services.get(&service.name);
    let own = own.and_then(|ports| {
        ports
            .iter()
            .find(|one| one.service_port == port)?
            .target_port
    });
    let target = own.or_else(|| service.port(port)?.target_port);
    // A waypoint's application decides itself what to do with the port.
    let override_port = workload.application_tunnel.and_then(|tunnel| tunnel.port);
    let vips = || service.host_addresses();
    let vip = vips().find(IpAddr::is_ipv4).or_else(|| vips().next());
    let vip = vip.map(|ip| SocketAddr::new(ip, port));
    Some((target.or(override_port)?, vip))
}

/// Whether `workload` is an instance of the waypoint of what has this address.
fn stands_before(snapshot: &Snapshot, workload: &Workload, ip: IpAddr) -> bool {
    let leads_here = |gateway: &GatewayAddress| match &gateway.destination {
        GatewayDestination::Hostname(name) => workload.services.contains_key(name),
        GatewayDestination::Address { ip, .. } => {
            let service = snapshot.service_at(*ip, &workload.namespace);
            workload.addresses.contains(ip)
                || service.is_some_and(|service| workload.services.contains_key(&service.name))
        }
    };
    let service = snapshot.service_at(ip, &workload.namespace);
    let of_service = service.is_some_and(|service| {
        service.waypoint.as_ref().is_some_and(leads_here)
            || service
                .weighted_waypoints
                .iter()
                .any(|one| leads_here(&one.destination))
    });
    let of_workload = snapshot
        .workload_at(ip)
        .and_then(|other| other.waypoint.as_ref());
    of_service || of_workload.is_some_and(leads_here)
}

/// The service that a connection to the pod is reported under: the one that the
/// peer named if the pod is behind it, else the first with that port.
pub(super) fn service(
    snapshot: &Snapshot,
    workload: &Workload,
    named: Option<&str>,
    port: u16,
) -> Option<Arc<Service>> {
    let by_name = named.and_then(|host| {
        let mut names = workload.services.keys();
        names.find(|name| name.hostname.eq_ignore_ascii_case(host))
    });
    let by_port = || {
        let mut services = workload.services.iter();
        let found = services.find(|(name, ports)| {
            let target = |one: &culvert_model::Port| {
                let service = || snapshot.service(name)?.port(one.service_port)?.target_port;
                one.target_port.or_else(service)
            };
            ports.iter().any(|one| target(one) == Some(port))
        });
        found.map(|(name, _)| name)
    };
    snapshot.service(by_name.or_else(by_port)?).cloned()
}

#[cfg(test)]
mod tests;
