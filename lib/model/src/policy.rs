//! A compiled L4 authorization policy.

use std::sync::Arc;

use ipnet::IpNet;

use crate::name::PolicyName;

/// What a workload accepts, or what it may connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The key.
    pub name: PolicyName,
    /// Which workloads it applies to.
    pub scope: Scope,
    /// What a match means.
    pub action: Action,
    /// Whether it is only reported, not enforced.
    pub dry_run: bool,
    /// It matches when one of these does; with none it never matches.
    pub groups: Vec<Group>,
    /// The object that a person wrote.
    pub origin: Option<Origin>,
    /// Whether its content could not be read. It is then a denial of everything
    /// in its scope, because nobody knows what it was to forbid.
    pub unreadable: bool,
}

impl Policy {
    /// An enforced policy without origin.
    pub fn new(name: PolicyName, scope: Scope, action: Action, groups: Vec<Group>) -> Self {
        Self {
            name,
            scope,
            action,
            dry_run: false,
            groups,
            origin: None,
            unreadable: false,
        }
    }

    /// Whether it was made from a Kubernetes NetworkPolicy.
    pub fn is_network_policy(&self) -> bool {
        self.origin
            .as_ref()
            .is_some_and(|origin| &*origin.kind == Origin::NETWORK_POLICY)
    }

    /// What stands in for a policy whose content could not be read.
    pub fn unreadable(name: PolicyName, scope: Scope) -> Self {
        Self {
            unreadable: true,
            ..Self::new(name, scope, Action::Deny, vec![Group::default()])
        }
    }
}

/// Which workloads a policy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All.
    Global,
    /// Those of the policy's namespace.
    Namespace,
    /// Those that name it.
    WorkloadSelector,
}

/// What a match means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Accept; and while such a policy applies, refuse what none of them matches.
    Allow,
    /// Refuse.
    Deny,
}

/// One rule as a person wrote it: matches when all of its parts do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    /// AND-ed; with none the group matches everything.
    pub rules: Vec<Rules>,
}

/// One part of a rule: matches when one of its matches does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// OR-ed; with none it is true.
    pub matches: Vec<Match>,
}

/// Conditions on one connection. Fields are AND-ed, the values of a field OR-ed,
/// and of a `not_` field none may match. An empty field says nothing; a match
/// whose fields are all empty is skipped.
///
/// The peer is the source for a policy on what a workload accepts, and the
/// destination for a policy on what it may connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Match {
    /// The peer's namespace.
    pub namespaces: Vec<StringMatch>,
    /// Not the peer's namespace.
    pub not_namespaces: Vec<StringMatch>,
    /// The peer's identity without `spiffe://`.
    pub principals: Vec<StringMatch>,
    /// Not the peer's identity.
    pub not_principals: Vec<StringMatch>,
    /// The peer's service account.
    pub service_accounts: Vec<ServiceAccount>,
    /// Not the peer's service account.
    pub not_service_accounts: Vec<ServiceAccount>,
    /// The source's address.
    pub source_ips: Vec<IpNet>,
    /// Not the source's address.
    pub not_source_ips: Vec<IpNet>,
    /// The destination's address.
    pub destination_ips: Vec<IpNet>,
    /// Not the destination's address.
    pub not_destination_ips: Vec<IpNet>,
    /// The application's port.
    pub destination_ports: Vec<u16>,
    /// Not the application's port.
    pub not_destination_ports: Vec<u16>,
    /// Ranges of the application's port.
    pub destination_port_ranges: Vec<PortRange>,
    /// Not in these ranges.
    pub not_destination_port_ranges: Vec<PortRange>,
    /// Peer sets that the peer is a member of.
    pub peer_sets: Vec<Arc<str>>,
    /// Peer sets that the peer is no member of.
    pub not_peer_sets: Vec<Arc<str>>,
}

/// A test of one text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StringMatch {
    /// Equal.
    Exact(Arc<str>),
    /// Starts with.
    Prefix(Arc<str>),
    /// Ends with.
    Suffix(Arc<str>),
    /// Anything but the empty text.
    Presence,
}

impl StringMatch {
    /// Whether the text passes.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *text,
            Self::Prefix(prefix) => text.starts_with(&**prefix),
            Self::Suffix(suffix) => text.ends_with(&**suffix),
            Self::Presence => !text.is_empty(),
        }
    }
}

/// A service account in any trust domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// Ports from first to last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port.
    pub last: u16,
}

impl PortRange {
    /// Whether the port lies within.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// The object that a person wrote, from which a policy was made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// For example `NetworkPolicy` or `AuthorizationPolicy`.
    pub kind: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Whether it asks for a record only.
    pub audit: bool,
}

impl Origin {
    /// The kind of a Kubernetes NetworkPolicy.
    pub const NETWORK_POLICY: &str = "NetworkPolicy";
}
