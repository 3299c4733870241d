//! The mesh as data, and every decision taken on it.
//!
//! A [`Snapshot`] is one immutable view of workloads, services and policies.
//! [`route()`] says where a connection of a workload goes, [`authorize()`] whether
//! a workload accepts a connection, [`authorize_egress`] whether it may make
//! one. Control flow fills a snapshot through [`Snapshot::apply`]; the data
//! path only reads.
//!
//! Everything here is a pure function of its arguments: no IO, no clock, no
//! randomness of its own, no wire or Kubernetes types.

mod authorize;
#[cfg(test)]
mod fixture;
mod map;
mod name;
mod policy;
mod reject;
mod route;
mod service;
mod snapshot;
mod workload;

pub use authorize::{
    Denial, DenyReason, DryRunMatch, PeerConnection, Verdict, authorize, authorize_egress,
};
pub use name::{NameError, PolicyName, ServiceName, WorkloadUid};
pub use policy::{
    Action, Group, Match, Origin, Policy, PortRange, Rules, Scope, ServiceAccount, StringMatch,
};
pub use reject::{Fault, Reject};
pub use route::{Attempt, Hop, Load, PlainRoute, Route, TunnelRoute, route, route_again};
pub use service::{
    AppProtocol, GatewayAddress, GatewayDestination, HealthPolicy, IpFamilies, LoadBalancing,
    LoadBalancingMode, NetworkAddress, Port, RoutingScope, Service, Visibility, WeightedWaypoint,
};
pub use snapshot::{Change, Endpoint, Snapshot};
pub use workload::{
    ApplicationProtocol, ApplicationTunnel, Health, Locality, NetworkMode, TunnelProtocol,
    Workload, WorkloadType,
};

/// The port on which a workload or waypoint accepts tunnels.
pub const HBONE_PORT: u16 = 15008;
