//! The types of resources that travel.

use culvert_api::names;

/// A type of resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourceType {
    /// Workloads and services.
    Address,
    /// Policies on what workloads accept.
    Authorization,
    /// Policies on what workloads may connect to; unknown to stock servers.
    EgressAuthorization,
}

impl ResourceType {
    /// All of them, in the order in which a client subscribes: policies before
    /// the workloads that name them.
    pub const ALL: [Self; 3] = [
        Self::Authorization,
        Self::EgressAuthorization,
        Self::Address,
    ];

    /// The name on the wire.
    pub fn url(self) -> &'static str {
        match self {
            Self::Address => names::ADDRESS_TYPE,
            Self::Authorization => names::AUTHORIZATION_TYPE,
            Self::EgressAuthorization => names::EGRESS_AUTHORIZATION_TYPE,
        }
    }

    /// The type of that name, if it is one of ours.
    pub fn from_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// A label value for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Authorization => "authorization",
            Self::EgressAuthorization => "egress_authorization",
        }
    }

    /// Whether a client can do without an answer.
    pub(crate) fn is_optional(self) -> bool {
        self == Self::EgressAuthorization
    }
}
