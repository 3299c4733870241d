//! Whether a connection is allowed.

mod evaluate;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use culvert_identity::Identity;

use crate::name::PolicyName;
use crate::policy::{Action, Origin, Policy, Scope};
use crate::snapshot::{PolicyList, Snapshot};
use crate::workload::Workload;

use evaluate::{Subject, matching_group};

/// What a destination knows of a connection that wants in.
#[derive(Debug, Clone, Copy)]
pub struct PeerConnection<'a> {
    /// The address that the connection comes from.
    pub source_ip: IpAddr,
    /// Who the source proved to be; `None` for a plain connection.
    pub source_identity: Option<&'a Identity>,
    /// The workload at the source's address. It only serves for membership in
    /// peer sets, and is ignored where its identity is not the proven one.
    pub source_workload: Option<&'a Workload>,
    /// The pod's own address and the application's port.
    pub destination: SocketAddr,
}

/// What the policies say of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may be made.
    Allow {
        /// The ALLOW policy that matched, where any applies.
        matched: Option<PolicyName>,
        /// Policies that would have matched if they were enforced.
        dry_run: Vec<DryRunMatch>,
    },
    /// It may not.
    Deny(Denial),
}

impl Verdict {
    /// Whether the connection may be made.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// Policies that would have matched if they were enforced.
    pub fn dry_run(&self) -> &[DryRunMatch] {
        match self {
            Self::Allow { dry_run, .. } => dry_run,
            Self::Deny(denial) => &denial.dry_run,
        }
    }
}

/// Why a connection may not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The kind of reason.
    pub reason: DenyReason,
    /// The policy; `None` when nothing matched that had to.
    pub policy: Option<PolicyName>,
    /// Which of the policy's rules matched, counted from 0.
    pub rule: Option<usize>,
    /// The object that a person wrote.
    pub origin: Option<Origin>,
    /// Policies that would have matched if they were enforced.
    pub dry_run: Vec<DryRunMatch>,
}

/// The kinds of reasons for a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenyReason {
    /// A DENY policy matched.
    DenyPolicy,
    /// ALLOW policies apply, and none of them matched.
    NoAllowMatched,
    /// The workload names a policy that is not known.
    PolicyUnknown,
    /// A policy's content could not be read.
    PolicyUnreadable,
}

impl DenyReason {
    /// A label value for metrics, access log and status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::DenyPolicy => "deny_policy",
            Self::NoAllowMatched => "no_allow_matched",
            Self::PolicyUnknown => "policy_unknown",
            Self::PolicyUnreadable => "policy_unreadable",
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            DenyReason::DenyPolicy => "denied by policy",
            DenyReason::NoAllowMatched => return f.write_str("no ALLOW policy matched"),
            DenyReason::PolicyUnknown => "policy not known:",
            DenyReason::PolicyUnreadable => "policy not readable:",
        })?;
        if let Some(policy) = &self.policy {
            write!(f, " {policy}")?;
        }
        if let Some(rule) = self.rule {
            write!(f, " rule {rule}")?;
        }
        if let Some(origin) = &self.origin {
            write!(f, " ({} {}/{})", origin.kind, origin.namespace, origin.name)?;
        }
        Ok(())
    }
}

/// A policy that matched and is only reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRunMatch {
    /// The policy.
    pub policy: PolicyName,
    /// What it would have done.
    pub action: Action,
    /// Which of its rules matched, counted from 0.
    pub rule: usize,
    /// The object that a person wrote.
    pub origin: Option<Origin>,
}

/// Judges a connection that wants into `destination`: a dry-run match is only
/// noted; a DENY that matches refuses; without any ALLOW policy the rest is
/// allowed; with some, one of them has to match.
///
/// A policy that the workload names and that is not known refuses: nobody can
/// tell what it was to forbid. What was made from a NetworkPolicy says nothing
/// of a workload that calls itself.
pub fn authorize(
    snapshot: &Snapshot,
    destination: &Workload,
    connection: &PeerConnection<'_>,
) -> Verdict {
    let source_ip = connection.source_ip.to_canonical();
    let proven = connection.source_identity;
    let peer_workload = connection
        .source_workload
        .filter(|workload| proven.is_none_or(|identity| *identity == workload.identity));
    let subject = Subject {
        source_ips: std::slice::from_ref(&source_ip),
        peer_identity: proven,
        peer_workload,
        is_to_itself: peer_workload.is_some_and(|peer| peer.uid == destination.uid),
        destination_ip: connection.destination.ip().to_canonical(),
        destination_port: connection.destination.port(),
    };
    let index = snapshot.policy_index();
    let mut named = Named::default();
    for name in &destination.authorization_policies {
        match index.get(name) {
            None => named.unknown = named.unknown.or(Some(name)),
            Some(policy) if is_scoped_to(policy, destination) => {}
            Some(policy) => named.policies.push(policy),
        }
    }
    judge(&index.scoped(&destination.namespace), &named, &subject)
}

/// Judges a connection that `source` wants to make to an address, behind which
/// the workload stands if it is known. Only the egress policies that the source
/// names apply; one that is not known refuses. As in [`authorize`], a workload
/// that calls itself is no matter of NetworkPolicies.
pub fn authorize_egress(
    snapshot: &Snapshot,
    source: &Workload,
    destination: SocketAddr,
    destination_workload: Option<&Workload>,
) -> Verdict {
    let subject = Subject {
        source_ips: &source.addresses,
        peer_identity: destination_workload.map(|workload| &workload.identity),
        peer_workload: destination_workload,
        is_to_itself: destination_workload.is_some_and(|peer| peer.uid == source.uid),
        destination_ip: destination.ip().to_canonical(),
        destination_port: destination.port(),
    };
    let mut named = Named::default();
    for name in &source.egress_policies {
        match snapshot.egress_policy(name) {
            None => named.unknown = named.unknown.or(Some(name)),
            Some(policy) => named.policies.push(policy),
        }
    }
    judge(&std::iter::empty(), &named, &subject)
}

/// Policies that a workload names, and the first name behind which there is none.
#[derive(Default)]
struct Named<'a> {
    policies: Vec<&'a Arc<Policy>>,
    unknown: Option<&'a PolicyName>,
}

/// Whether a policy applies to the workload without being named by it.
fn is_scoped_to(policy: &Policy, workload: &Workload) -> bool {
    match policy.scope {
        Scope::Global => true,
        Scope::Namespace => policy.name.namespace == workload.namespace,
        Scope::WorkloadSelector => false,
    }
}

fn judge<'a>(
    scoped: &(impl Iterator<Item = &'a PolicyList> + Clone),
    named: &Named<'a>,
    subject: &Subject<'_>,
) -> Verdict {
    let part = |action: Action, dry_run: bool| {
        let scoped = scoped
            .clone()
            .flat_map(move |list| match (action, dry_run) {
                (Action::Deny, true) => list.dry_deny.iter(),
                (Action::Deny, false) => list.deny.iter(),
                (Action::Allow, true) => list.dry_allow.iter(),
                (Action::Allow, false) => list.allow.iter(),
            });
        let of_part =
            move |policy: &&'a Arc<Policy>| policy.action == action && policy.dry_run == dry_run;
        scoped.chain(named.policies.iter().copied().filter(of_part))
    };

    let mut noted = Vec::new();
    note_matches(part(Action::Deny, true), subject, &mut noted);
    for policy in part(Action::Deny, false) {
        if let Some(rule) = matching_group(policy, subject) {
            return deny(policy, rule, noted);
        }
    }
    if let Some(unknown) = named.unknown {
        return Verdict::Deny(Denial {
            reason: DenyReason::PolicyUnknown,
            policy: Some(unknown.clone()),
            rule: None,
            origin: None,
            dry_run: noted,
        });
    }
    note_matches(part(Action::Allow, true), subject, &mut noted);
    let mut any_allow = false;
    for policy in part(Action::Allow, false) {
        any_allow = true;
        if matching_group(policy, subject).is_some() {
            return Verdict::Allow {
                matched: Some(policy.name.clone()),
                dry_run: noted,
            };
        }
    }
    if any_allow {
        return Verdict::Deny(Denial {
            reason: DenyReason::NoAllowMatched,
            policy: None,
            rule: None,
            origin: None,
            dry_run: noted,
        });
    }
    Verdict::Allow {
        matched: None,
        dry_run: noted,
    }
}

fn deny(policy: &Policy, rule: usize, dry_run: Vec<DryRunMatch>) -> Verdict {
    Verdict::Deny(Denial {
        reason: if policy.unreadable {
            DenyReason::PolicyUnreadable
        } else {
            DenyReason::DenyPolicy
        },
        policy: Some(policy.name.clone()),
        rule: (!policy.unreadable).then_some(rule),
        origin: policy.origin.clone(),
        dry_run,
    })
}

fn note_matches<'a>(
    policies: impl Iterator<Item = &'a Arc<Policy>>,
    subject: &Subject<'_>,
    noted: &mut Vec<DryRunMatch>,
) {
    for policy in policies {
        if let Some(rule) = matching_group(policy, subject) {
            noted.push(DryRunMatch {
                policy: policy.name.clone(),
                action: policy.action,
                rule,
                origin: policy.origin.clone(),
            });
        }
    }
}
