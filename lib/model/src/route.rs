//! Where a connection of a workload goes.

mod balance;
mod endpoint;
#[cfg(test)]
mod tests;
mod waypoint;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use culvert_identity::Identity;

use crate::HBONE_PORT;
use crate::name::WorkloadUid;
use crate::reject::Reject;
use crate::service::{LoadBalancingMode, Service};
use crate::snapshot::Snapshot;
use crate::workload::Workload;

/// How busy endpoints are, as this proxy sees it.
pub trait Load {
    /// Connections to the workload that are being made or open.
    fn outstanding(&self, workload: &WorkloadUid) -> u32;
}

/// One attempt to connect.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The workload that connects.
    pub source: &'a Workload,
    /// The address that its application named.
    pub destination: SocketAddr,
    /// Workloads to which connecting has failed already.
    pub failed: &'a [WorkloadUid],
}

/// Where a connection goes.
#[derive(Debug, Clone, PartialEq)]
pub enum Route {
    /// Through a mutually authenticated tunnel.
    Tunnel(TunnelRoute),
    /// Plainly, to something known that is not in the mesh.
    Plain(PlainRoute),
    /// Plainly, to the address that the application named. The service is
    /// there when it asks for this.
    PassThrough(Option<Arc<Service>>),
}

impl Route {
    /// The same endpoint at its address of the other family: what is left when
    /// its application listens in one family only. Where the application at the
    /// source named a service, and both the service and the source have that
    /// family; a pod's address is what was asked for, and nothing else.
    pub fn in_other_family(&self, source: &Workload) -> Option<Self> {
        match self {
            Self::Tunnel(tunnel) if tunnel.hop == Hop::Endpoint => {
                let service = tunnel.service.as_ref()?;
                let ip = other_address(source, service, &tunnel.workload, tunnel.authority.ip())?;
                Some(Self::Tunnel(TunnelRoute {
                    address: SocketAddr::new(ip, tunnel.address.port()),
                    authority: SocketAddr::new(ip, tunnel.authority.port()),
                    ..tunnel.clone()
                }))
            }
            Self::Plain(plain) => {
                let service = plain.service.as_ref()?;
                let ip = other_address(source, service, &plain.workload, plain.address.ip())?;
                Some(Self::Plain(PlainRoute {
                    address: SocketAddr::new(ip, plain.address.port()),
                    ..plain.clone()
                }))
            }
            Self::Tunnel(_) | Self::PassThrough(_) => None,
        }
    }
}

fn other_address(
    source: &Workload,
    service: &Service,
    workload: &Workload,
    tried: IpAddr,
) -> Option<IpAddr> {
    let mut addresses = workload.addresses.iter().copied();
    addresses.find(|ip| {
        ip.is_ipv4() != tried.is_ipv4() && source.has_family(*ip) && service.ip_families.allows(*ip)
    })
}

/// A way through a tunnel.
#[derive(Debug, Clone, PartialEq)]
pub struct TunnelRoute {
    /// Who ends the tunnel: the endpoint, or an instance of a waypoint. Goes
    /// into [`Attempt::failed`] when connecting fails.
    pub workload: Arc<Workload>,
    /// What that is to the connection.
    pub hop: Hop,
    /// The service that the application named.
    pub service: Option<Arc<Service>>,
    /// The workload that the application named by its address.
    pub named: Option<Arc<Workload>>,
    /// Where the tunnel goes.
    pub address: SocketAddr,
    /// What is asked for through the tunnel.
    pub authority: SocketAddr,
    /// Who the other end may prove to be.
    pub allowed: Vec<Identity>,
}

/// What the far end of a tunnel is to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hop {
    /// Its destination.
    Endpoint,
    /// A waypoint before its destination.
    Waypoint,
}

/// A plain way to a known workload.
#[derive(Debug, Clone, PartialEq)]
pub struct PlainRoute {
    /// The destination. Goes into [`Attempt::failed`] when connecting fails.
    pub workload: Arc<Workload>,
    /// The service that the application named.
    pub service: Option<Arc<Service>>,
    /// Where the connection goes.
    pub address: SocketAddr,
}

/// Decides where a connection goes. `rng` gives a number below its argument,
/// each with the same probability.
///
/// # Errors
/// When the destination is in the mesh, or said to be behind a waypoint, and
/// cannot be reached safely: such a connection is closed, never sent plainly.
pub fn route(
    snapshot: &Snapshot,
    source: &Workload,
    destination: SocketAddr,
    load: &dyn Load,
    rng: &mut dyn FnMut(u32) -> u32,
) -> Result<Route, Reject> {
    let attempt = Attempt {
        source,
        destination,
        failed: &[],
    };
    route_again(snapshot, &attempt, load, rng)
}

/// Decides like [`route`], without the workloads to which connecting failed.
///
/// # Errors
/// As [`route`]; [`Reject::EndpointsExhausted`] when only failed ones are left.
pub fn route_again(
    snapshot: &Snapshot,
    attempt: &Attempt<'_>,
    load: &dyn Load,
    rng: &mut dyn FnMut(u32) -> u32,
) -> Result<Route, Reject> {
    let (ip, port) = (
        attempt.destination.ip().to_canonical(),
        attempt.destination.port(),
    );
    let attempt = Attempt {
        destination: SocketAddr::new(ip, port),
        ..*attempt
    };
    let mut picker = Picker {
        snapshot,
        attempt,
        load,
        rng,
    };
    if let Some(workload) = snapshot.workload_at(ip) {
        return picker.toward_workload(workload);
    }
    match snapshot.service_at(ip, &attempt.source.namespace) {
        Some(service) => picker.toward_service(service),
        None => Ok(Route::PassThrough(None)),
    }
}

/// All that the parts of one decision need.
struct Picker<'a> {
    snapshot: &'a Snapshot,
    attempt: Attempt<'a>,
    load: &'a dyn Load,
    rng: &'a mut dyn FnMut(u32) -> u32,
}

impl Picker<'_> {
    /// The application named a pod: health and services do not matter.
    fn toward_workload(&mut self, workload: &Arc<Workload>) -> Result<Route, Reject> {
        if let Some(gateway) = &workload.waypoint
            && !self.is_instance_of(gateway)
        {
            let named = Some(workload.clone());
            let tunnel = self.through_waypoint(gateway)?;
            return Ok(Route::Tunnel(TunnelRoute { named, ..tunnel }));
        }
        if self.has_failed(workload) {
            return Err(Reject::EndpointsExhausted);
        }
        Ok(direct(workload, None, self.attempt.destination))
    }

    /// The application named a virtual address.
    fn toward_service(&mut self, service: &Arc<Service>) -> Result<Route, Reject> {
        if let Some(gateway) = self.waypoint_of(service)
            && !self.is_instance_of(gateway)
        {
            let tunnel = self.through_waypoint(gateway)?;
            return Ok(Route::Tunnel(TunnelRoute {
                service: Some(service.clone()),
                ..tunnel
            }));
        }
        if service.load_balancing.mode == LoadBalancingMode::Passthrough {
            return Ok(Route::PassThrough(Some(service.clone())));
        }
        let service_port = self.attempt.destination.port();
        if service.port(service_port).is_none() {
            return Err(Reject::NoServicePort);
        }
        let (workload, address) = self.endpoint_of(service, service_port)?;
        Ok(direct(&workload, Some(service), address))
    }

    fn has_failed(&self, workload: &Workload) -> bool {
        self.attempt.failed.contains(&workload.uid)
    }
}

/// The last hop: tunnelled to what is in the mesh, plain to what is not.
fn direct(workload: &Arc<Workload>, service: Option<&Arc<Service>>, address: SocketAddr) -> Route {
    if !workload.is_meshed() {
        return Route::Plain(PlainRoute {
            workload: workload.clone(),
            service: service.cloned(),
            address,
        });
    }
    Route::Tunnel(TunnelRoute {
        allowed: allowed_identities(workload, service),
        workload: workload.clone(),
        hop: Hop::Endpoint,
        service: service.cloned(),
        named: service.is_none().then(|| workload.clone()),
        address: SocketAddr::new(address.ip(), HBONE_PORT),
        authority: address,
    })
}

/// The workload's own identity, and those that its service says it may have.
fn allowed_identities(workload: &Workload, service: Option<&Arc<Service>>) -> Vec<Identity> {
    let mut allowed = vec![workload.identity.clone()];
    let further = service.map_or(&[][..], |service| &service.subject_alt_names);
    allowed.extend(
        further
            .iter()
            .filter(|name| **name != workload.identity)
            .cloned(),
    );
    allowed
}
