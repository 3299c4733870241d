//! Why a connection cannot be routed.

/// Who has to act for a failure to go away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The other side of the connection.
    Peer,
    /// This process.
    Us,
    /// Whoever wrote a policy.
    Policy,
    /// What the control plane said, or has not said yet.
    ControlPlane,
    /// Nobody: there is too much of something.
    Overload,
}

impl Fault {
    /// A label value for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Us => "us",
            Self::Policy => "policy",
            Self::ControlPlane => "control_plane",
            Self::Overload => "overload",
        }
    }
}

/// Why there is no safe way for a connection. It is closed, never sent plainly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reject {
    /// The service has no such port.
    #[error("the service has no such port")]
    NoServicePort,
    /// The service has no endpoint at all.
    #[error("the service has no endpoints")]
    NoEndpoints,
    /// All endpoints of the service are unhealthy.
    #[error("the service has no healthy endpoint")]
    NoHealthyEndpoint,
    /// Endpoints exist, but none can be used for this connection: port, address
    /// family, locality or capacity rule them out.
    #[error("no endpoint of the service can be used for this connection")]
    NoUsableEndpoint,
    /// Every endpoint that could be used was tried.
    #[error("every usable endpoint was tried")]
    EndpointsExhausted,
    /// The destination is on another network.
    #[error("the destination is on another network")]
    OtherNetwork,
    /// A waypoint is configured and not known.
    #[error("the waypoint is not known")]
    WaypointUnknown,
    /// A waypoint is configured and has no instance that can be used.
    #[error("the waypoint has no usable instance")]
    WaypointUnavailable,
}

impl Reject {
    /// A label value for metrics, access log and status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoServicePort => "no_service_port",
            Self::NoEndpoints => "no_endpoints",
            Self::NoHealthyEndpoint => "no_healthy_endpoint",
            Self::NoUsableEndpoint => "no_usable_endpoint",
            Self::EndpointsExhausted => "endpoints_exhausted",
            Self::OtherNetwork => "other_network",
            Self::WaypointUnknown => "waypoint_unknown",
            Self::WaypointUnavailable => "waypoint_unavailable",
        }
    }

    /// Who has to act.
    pub fn fault(self) -> Fault {
        match self {
            Self::NoServicePort
            | Self::NoEndpoints
            | Self::NoHealthyEndpoint
            | Self::NoUsableEndpoint
            | Self::EndpointsExhausted
            | Self::WaypointUnavailable => Fault::Peer,
            Self::OtherNetwork | Self::WaypointUnknown => Fault::ControlPlane,
        }
    }

    /// Every reason, for metrics that list their series beforehand.
    pub const ALL: [Self; 8] = [
        Self::NoServicePort,
        Self::NoEndpoints,
        Self::NoHealthyEndpoint,
        Self::NoUsableEndpoint,
        Self::EndpointsExhausted,
        Self::OtherNetwork,
        Self::WaypointUnknown,
        Self::WaypointUnavailable,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_distinct_label_values() {
        let mut reasons: Vec<_> = Reject::ALL.iter().map(|reject| reject.reason()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), Reject::ALL.len());
        assert!(
            reasons
                .iter()
                .all(|r| r.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        );
    }
}
