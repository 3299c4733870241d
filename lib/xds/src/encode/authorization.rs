//! Policies.

use culvert_api::names;
use culvert_api::proto::culvert as ours;
use culvert_api::proto::security as wire;
use culvert_api::proto::workload::Extension;
use culvert_model::{
    Action, Group, Match, Origin, Policy, PortRange, Rules, Scope, ServiceAccount, StringMatch,
};
use ipnet::IpNet;

use super::address::{extension, ip_bytes};

/// A policy's message.
pub fn policy(from: &Policy) -> wire::Authorization {
    wire::Authorization {
        name: from.name.name.to_string(),
        namespace: from.name.namespace.to_string(),
        scope: match from.scope {
            Scope::Global => wire::Scope::Global,
            Scope::Namespace => wire::Scope::Namespace,
            Scope::WorkloadSelector => wire::Scope::WorkloadSelector,
        }
        .into(),
        action: match from.action {
            Action::Allow => wire::Action::Allow,
            Action::Deny => wire::Action::Deny,
        }
        .into(),
        groups: from.groups.iter().map(group).collect(),
        dry_run: from.dry_run,
        extensions: from.origin.iter().map(origin).collect(),
    }
}

fn origin(from: &Origin) -> Extension {
    let message = ours::Origin {
        kind: from.kind.to_string(),
        namespace: from.namespace.to_string(),
        name: from.name.to_string(),
        audit: from.audit,
    };
    extension(names::ORIGIN, "Origin", &message)
}

fn group(from: &Group) -> wire::Group {
    let rules = |rules: &Rules| wire::Rules {
        matches: rules.matches.iter().map(conditions).collect(),
    };
    wire::Group {
        rules: from.rules.iter().map(rules).collect(),
    }
}

fn conditions(from: &Match) -> wire::Match {
    wire::Match {
        namespaces: strings(&from.namespaces),
        not_namespaces: strings(&from.not_namespaces),
        principals: strings(&from.principals),
        not_principals: strings(&from.not_principals),
        source_ips: nets(&from.source_ips),
        not_source_ips: nets(&from.not_source_ips),
        destination_ips: nets(&from.destination_ips),
        not_destination_ips: nets(&from.not_destination_ips),
        destination_ports: ports(&from.destination_ports),
        not_destination_ports: ports(&from.not_destination_ports),
        service_accounts: accounts(&from.service_accounts),
        not_service_accounts: accounts(&from.not_service_accounts),
        extensions: further(from).into_iter().collect(),
    }
}

fn further(from: &Match) -> Option<Extension> {
    let message = ours::PeerMatch {
        sets: from.peer_sets.iter().map(ToString::to_string).collect(),
        not_sets: from.not_peer_sets.iter().map(ToString::to_string).collect(),
        destination_port_ranges: ranges(&from.destination_port_ranges),
        not_destination_port_ranges: ranges(&from.not_destination_port_ranges),
    };
    (message != ours::PeerMatch::default())
        .then(|| extension(names::PEER_MATCH, "PeerMatch", &message))
}

fn strings(from: &[StringMatch]) -> Vec<wire::StringMatch> {
    use wire::string_match::MatchType;
    from.iter()
        .map(|value| wire::StringMatch {
            match_type: Some(match value {
                StringMatch::Exact(text) => MatchType::Exact(text.to_string()),
                StringMatch::Prefix(text) => MatchType::Prefix(text.to_string()),
                StringMatch::Suffix(text) => MatchType::Suffix(text.to_string()),
                StringMatch::Presence => MatchType::Presence(()),
            }),
        })
        .collect()
}

fn nets(from: &[IpNet]) -> Vec<wire::Address> {
    from.iter()
        .map(|net| wire::Address {
            address: ip_bytes(net.addr()),
            length: u32::from(net.prefix_len()),
        })
        .collect()
}

fn ports(from: &[u16]) -> Vec<u32> {
    from.iter().copied().map(u32::from).collect()
}

fn accounts(from: &[ServiceAccount]) -> Vec<wire::ServiceAccountMatch> {
    from.iter()
        .map(|account| wire::ServiceAccountMatch {
            namespace: account.namespace.to_string(),
            service_account: account.name.to_string(),
        })
        .collect()
}

fn ranges(from: &[PortRange]) -> Vec<ours::PortRange> {
    from.iter()
        .map(|range| ours::PortRange {
            first: u32::from(range.first),
            last: u32::from(range.last),
        })
        .collect()
}
