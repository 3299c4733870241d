//! Finding a waypoint, and an instance of it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::reject::Reject;
use crate::service::{GatewayAddress, GatewayDestination, Service};
use crate::workload::Workload;

use super::{Hop, Picker, TunnelRoute, allowed_identities, balance};

/// What a gateway's name stands for.
enum Gateway<'a> {
    Service(&'a Arc<Service>),
    Workload(&'a Arc<Workload>),
}

impl Picker<'_> {
    /// The waypoint of this connection to a service; drawn where there are several.
    pub(super) fn waypoint_of<'s>(&mut self, service: &'s Service) -> Option<&'s GatewayAddress> {
        let weights = service
            .weighted_waypoints
            .iter()
            .map(|waypoint| waypoint.weight);
        match balance::draw(weights, self.rng) {
            Some(drawn) => Some(&service.weighted_waypoints[drawn].destination),
            None => service.waypoint.as_ref(),
        }
    }

    /// Whether the source is the waypoint itself, which must not meet itself again.
    pub(super) fn is_instance_of(&self, gateway: &GatewayAddress) -> bool {
        let source = &self.attempt.source.uid;
        match self.find(gateway) {
            Some(Gateway::Service(service)) => self
                .snapshot
                .endpoint_set(&service.name)
                .is_some_and(|endpoints| endpoints.contains(source)),
            Some(Gateway::Workload(workload)) => workload.uid == *source,
            None => false,
        }
    }

    /// A tunnel to an instance, asking for the address that the application named.
    /// Whatever the instance's record says, a waypoint is only reached by tunnel.
    pub(super) fn through_waypoint(
        &mut self,
        gateway: &GatewayAddress,
    ) -> Result<TunnelRoute, Reject> {
        let (workload, service, address) = match self.find(gateway) {
            None => return Err(Reject::WaypointUnknown),
            Some(Gateway::Service(service)) => {
                let service = service.clone();
                let (workload, address) = self
                    .endpoint_of(&service, gateway.hbone_port)
                    .map_err(of_waypoint)?;
                (workload, Some(service), address)
            }
            Some(Gateway::Workload(workload)) => {
                let workload = workload.clone();
                if self.has_failed(&workload) {
                    return Err(Reject::EndpointsExhausted);
                }
                let ip = self
                    .address_of(&workload, None)
                    .ok_or(Reject::WaypointUnavailable)?;
                (workload, None, SocketAddr::new(ip, gateway.hbone_port))
            }
        };
        Ok(TunnelRoute {
            allowed: allowed_identities(&workload, service.as_ref()),
            workload,
            hop: Hop::Waypoint,
            service: None,
            named: None,
            address,
            authority: self.attempt.destination,
        })
    }

    fn find(&self, gateway: &GatewayAddress) -> Option<Gateway<'_>> {
        match &gateway.destination {
            GatewayDestination::Hostname(name) => self
                .snapshot
                .service(name)
                .map(Gateway::Service)
                .or_else(|| {
                    let named = self.snapshot.workloads_named(&name.hostname);
                    let found = named
                        .iter()
                        .find(|workload| workload.namespace == name.namespace);
                    found.map(Gateway::Workload)
                }),
            GatewayDestination::Address { network, ip } => {
                if **network != *self.snapshot.network() {
                    return None;
                }
                self.snapshot
                    .service_at(*ip, &self.attempt.source.namespace)
                    .map(Gateway::Service)
                    .or_else(|| self.snapshot.workload_at(*ip).map(Gateway::Workload))
            }
        }
    }
}

/// An error about a service, said of a waypoint's service.
fn of_waypoint(reject: Reject) -> Reject {
    match reject {
        Reject::EndpointsExhausted => Reject::EndpointsExhausted,
        _ => Reject::WaypointUnavailable,
    }
}
