//! Which endpoints of a service can take a connection, and at which address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::name::WorkloadUid;
use crate::reject::Reject;
use crate::service::{HealthPolicy, LoadBalancingMode, Service};
use crate::snapshot::{Endpoint, Endpoints};
use crate::workload::{Health, Workload};

use super::{Picker, balance};

/// 8: with half of the endpoints usable, all tries miss once in 256 draws, and
/// then the whole list is looked at.
const QUICK_TRIES: usize = 8;

/// An endpoint that can take the connection, and where.
pub(super) struct Candidate<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) address: SocketAddr,
}

impl Candidate<'_> {
    pub(super) fn capacity(&self) -> u32 {
        self.endpoint.workload.capacity
    }

    fn uid(&self) -> &WorkloadUid {
        &self.endpoint.workload.uid
    }
}

impl Picker<'_> {
    /// The endpoint for this connection, and the address of its application.
    pub(super) fn endpoint_of(
        &mut self,
        service: &Service,
        service_port: u16,
    ) -> Result<(Arc<Workload>, SocketAddr), Reject> {
        let snapshot = self.snapshot;
        let Some(endpoints) = snapshot.endpoint_set(&service.name) else {
            return Err(Reject::NoEndpoints);
        };
        if let Some(chosen) = self.quick_choice(service, endpoints, service_port) {
            return Ok((chosen.endpoint.workload.clone(), chosen.address));
        }
        let all = endpoints.as_slice();
        let usable = |endpoint| self.candidate(service, endpoint, service_port);
        let mut candidates: Vec<_> = all.iter().filter_map(|endpoint| usable(endpoint)).collect();
        balance::prefer(
            &mut candidates,
            &service.load_balancing,
            self.attempt.source,
        );
        if candidates.is_empty() {
            return Err(self.why_none(service, all, service_port));
        }
        let weights = || candidates.iter().map(Candidate::capacity);
        let Some(first) = balance::draw(weights(), self.rng) else {
            return Err(Reject::NoUsableEndpoint);
        };
        let others = weights()
            .enumerate()
            .map(|(i, weight)| if i == first { 0 } else { weight });
        let chosen = match balance::draw(others, self.rng) {
            Some(second) => self.less_loaded(&candidates[first], &candidates[second]),
            None => &candidates[first],
        };
        Ok((chosen.endpoint.workload.clone(), chosen.address))
    }

    /// Two draws from a list of equals, without looking at all of it.
    fn quick_choice<'a>(
        &mut self,
        service: &Service,
        endpoints: &'a Endpoints,
        service_port: u16,
    ) -> Option<Candidate<'a>> {
        let all = endpoints.as_slice();
        let no_preference = matches!(service.load_balancing.mode, LoadBalancingMode::Unspecified);
        if !endpoints.is_uniform() || !no_preference || all.len() <= QUICK_TRIES {
            return None;
        }
        let count = u32::try_from(all.len()).ok()?;
        let mut first: Option<Candidate<'a>> = None;
        for _ in 0..QUICK_TRIES {
            let drawn = &all[(self.rng)(count) as usize];
            let Some(candidate) = self.candidate(service, drawn, service_port) else {
                continue;
            };
            match first.take() {
                None => first = Some(candidate),
                Some(same) if same.uid() == candidate.uid() => first = Some(same),
                Some(other) => {
                    let take_first =
                        std::ptr::eq(self.less_loaded(&other, &candidate), &raw const other);
                    return Some(if take_first { other } else { candidate });
                }
            }
        }
        None
    }

    /// The one with fewer connections for its capacity; the first one of equals.
    fn less_loaded<'c, 'a>(
        &self,
        first: &'c Candidate<'a>,
        second: &'c Candidate<'a>,
    ) -> &'c Candidate<'a> {
        let with_one_more =
            |candidate: &Candidate<'_>| u64::from(self.load.outstanding(candidate.uid())) + 1;
        // a / A <= b / B without division.
        let first_share = with_one_more(first) * u64::from(second.capacity());
        let second_share = with_one_more(second) * u64::from(first.capacity());
        if first_share <= second_share {
            first
        } else {
            second
        }
    }

    fn candidate<'a>(
        &self,
        service: &Service,
        endpoint: &'a Endpoint,
        service_port: u16,
    ) -> Option<Candidate<'a>> {
        let workload = &endpoint.workload;
        let healthy = workload.health == Health::Healthy
            || service.load_balancing.health_policy == HealthPolicy::AllowAll;
        if !healthy || workload.capacity == 0 || self.has_failed(workload) {
            return None;
        }
        self.usable_address(service, endpoint, service_port)
            .map(|address| Candidate { endpoint, address })
    }

    fn usable_address(
        &self,
        service: &Service,
        endpoint: &Endpoint,
        service_port: u16,
    ) -> Option<SocketAddr> {
        let port = target_port(service, endpoint, service_port)?;
        let ip = self.address_of(&endpoint.workload, Some(service))?;
        Some(SocketAddr::new(ip, port))
    }

    /// The workload's address for this connection: the one that the application
    /// named; else one of the families that the service allows and the source
    /// has, the family that the application used first.
    pub(super) fn address_of(
        &self,
        workload: &Workload,
        service: Option<&Service>,
    ) -> Option<IpAddr> {
        if *workload.network != *self.snapshot.network() {
            return None;
        }
        let named = self.attempt.destination.ip();
        let service_allows =
            |ip: IpAddr| service.is_none_or(|service| service.ip_families.allows(ip));
        if workload.addresses.contains(&named) {
            return Some(named);
        }
        workload
            .addresses
            .iter()
            .copied()
            .filter(|ip| self.attempt.source.has_family(*ip) && service_allows(*ip))
            .min_by_key(|ip| ip.is_ipv4() != named.is_ipv4())
    }

    /// Says what kept every endpoint from being chosen.
    fn why_none(&self, service: &Service, all: &[Arc<Endpoint>], service_port: u16) -> Reject {
        let reachable = |endpoint: &&Arc<Endpoint>| {
            endpoint.workload.capacity > 0
                && self
                    .usable_address(service, endpoint, service_port)
                    .is_some()
        };
        let ours =
            |endpoint: &Arc<Endpoint>| *endpoint.workload.network == *self.snapshot.network();
        if !all.iter().any(ours) {
            return Reject::OtherNetwork;
        }
        if !self.attempt.failed.is_empty()
            && all
                .iter()
                .filter(reachable)
                .any(|endpoint| self.has_failed(&endpoint.workload))
        {
            return Reject::EndpointsExhausted;
        }
        let allows_unhealthy = service.load_balancing.health_policy == HealthPolicy::AllowAll;
        let unhealthy = |endpoint: &Arc<Endpoint>| endpoint.workload.health == Health::Unhealthy;
        let mut reachable = all.iter().filter(reachable).peekable();
        if !allows_unhealthy && reachable.peek().is_some() && reachable.all(unhealthy) {
            return Reject::NoHealthyEndpoint;
        }
        Reject::NoUsableEndpoint
    }
}

/// What the endpoint says of the port; else the service; else, where the
/// endpoint's tunnel replaces the port anyway, the port itself.
fn target_port(service: &Service, endpoint: &Endpoint, service_port: u16) -> Option<u16> {
    endpoint
        .target_port(service_port)
        .or_else(|| service.port(service_port)?.target_port)
        .or_else(|| {
            let tunnel = endpoint.workload.application_tunnel.as_ref()?;
            tunnel.port.map(|_| service_port)
        })
}
