//! Whether one policy matches one connection.

use std::net::IpAddr;

use culvert_identity::Identity;
use ipnet::IpNet;

use crate::policy::{Action, Match, Policy, Rules, StringMatch};
use crate::workload::Workload;

/// A connection as the conditions see it.
pub(super) struct Subject<'a> {
    pub(super) source_ips: &'a [IpAddr],
    pub(super) peer_identity: Option<&'a Identity>,
    pub(super) peer_workload: Option<&'a Workload>,
    pub(super) destination_ip: IpAddr,
    pub(super) destination_port: u16,
    /// Source and destination are one workload.
    pub(super) is_to_itself: bool,
}

/// The first group that matches. What a NetworkPolicy forbids never matches
/// between a pod and itself: Kubernetes does not block that.
pub(super) fn matching_group(policy: &Policy, subject: &Subject<'_>) -> Option<usize> {
    if subject.is_to_itself && policy.action == Action::Deny && policy.is_network_policy() {
        return None;
    }
    policy
        .groups
        .iter()
        .position(|group| group.rules.iter().all(|rules| rules_match(rules, subject)))
}

fn rules_match(rules: &Rules, subject: &Subject<'_>) -> bool {
    rules.matches.is_empty()
        || rules
            .matches
            .iter()
            .any(|conditions| !conditions.is_empty() && conditions.matches(subject))
}

impl Match {
    /// Whether no field says anything.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        self.ports_match(subject.destination_port)
            && self.peer_matches(subject)
            && field(&self.source_ips, &self.not_source_ips, |net| {
                subject.source_ips.iter().any(|ip| net.contains(ip))
            })
            && field(
                &self.destination_ips,
                &self.not_destination_ips,
                |net: &IpNet| net.contains(&subject.destination_ip),
            )
            && field(&self.peer_sets, &self.not_peer_sets, |set| {
                subject
                    .peer_workload
                    .is_some_and(|peer| peer.is_in_set(set))
            })
    }

    fn ports_match(&self, port: u16) -> bool {
        field(
            &self.destination_ports,
            &self.not_destination_ports,
            |value| *value == port,
        ) && field(
            &self.destination_port_ranges,
            &self.not_destination_port_ranges,
            |range| range.contains(port),
        )
    }

    fn peer_matches(&self, subject: &Subject<'_>) -> bool {
        let identity = subject.peer_identity;
        let namespace = identity.map_or("", Identity::namespace);
        field(
            &self.namespaces,
            &self.not_namespaces,
            |value: &StringMatch| value.matches(namespace),
        ) && field(&self.principals, &self.not_principals, |value| {
            identity.is_some_and(|identity| value.matches(identity.principal()))
        }) && field(
            &self.service_accounts,
            &self.not_service_accounts,
            |value| {
                identity.is_some_and(|identity| {
                    *value.namespace == *identity.namespace()
                        && *value.name == *identity.service_account()
                })
            },
        )
    }
}

/// One field and its negation: some value matches, or there are none; and no
/// negated value matches.
fn field<T>(values: &[T], not_values: &[T], matches: impl Fn(&T) -> bool) -> bool {
    (values.is_empty() || values.iter().any(&matches)) && !not_values.iter().any(&matches)
}
