//! Policies. Stricter than what the wire's other readers do: a condition that
//! cannot be read is never left out, because without it a policy says more, or
//! less, than its author meant.

use std::sync::Arc;

use culvert_api::names;
use culvert_api::proto::culvert as ours;
use culvert_api::proto::security as wire;
use culvert_api::proto::workload::Extension;
use culvert_model::{
    Action, Group, Match, Origin, Policy, PolicyName, PortRange, Rules, Scope, ServiceAccount,
    StringMatch,
};
use ipnet::IpNet;
use prost::Message;

use super::address::range;
use super::fault::{At, FieldError, FieldFault, list, port};

/// Names of extensions that are ours begin with this.
const OUR_PREFIX: &str = "culvert.dev/";

pub(super) fn policy(message: wire::Authorization) -> Result<Policy, FieldError> {
    let key = format!("{}/{}", message.namespace, message.name);
    let name: PolicyName = key.parse().map_err(FieldFault::Name).at("name")?;
    Ok(Policy {
        name,
        scope: scope(message.scope).at("scope")?,
        action: match wire::Action::try_from(message.action) {
            Ok(wire::Action::Allow) => Action::Allow,
            Ok(wire::Action::Deny) => Action::Deny,
            Err(_) => return Err(FieldFault::UnknownEnum(message.action)).at("action"),
        },
        dry_run: message.dry_run,
        groups: list("groups", message.groups, group)?,
        origin: origin(&message.extensions)?,
        unreadable: false,
    })
}

pub(super) fn scope(number: i32) -> Result<Scope, FieldFault> {
    match wire::Scope::try_from(number) {
        Ok(wire::Scope::Global) => Ok(Scope::Global),
        Ok(wire::Scope::Namespace) => Ok(Scope::Namespace),
        Ok(wire::Scope::WorkloadSelector) => Ok(Scope::WorkloadSelector),
        Err(_) => Err(FieldFault::UnknownEnum(number)),
    }
}

fn origin(extensions: &[Extension]) -> Result<Option<Origin>, FieldError> {
    let Some(index) = extensions
        .iter()
        .position(|extension| extension.name == names::ORIGIN)
    else {
        return Ok(None);
    };
    let origin = ours::Origin::decode(body(&extensions[index]))
        .map_err(FieldFault::NotProtobuf)
        .at_index("extensions", index)?;
    Ok(Some(Origin {
        kind: origin.kind.into(),
        namespace: origin.namespace.into(),
        name: origin.name.into(),
        audit: origin.audit,
    }))
}

fn body(extension: &Extension) -> &[u8] {
    extension.config.as_ref().map_or(&[][..], |any| &any.value)
}

fn group(message: wire::Group) -> Result<Group, FieldError> {
    Ok(Group {
        rules: list("rules", message.rules, |rules| {
            list("matches", rules.matches, conditions).map(|matches| Rules { matches })
        })?,
    })
}

fn conditions(message: wire::Match) -> Result<Match, FieldError> {
    let further = further_conditions(&message.extensions)?;
    Ok(Match {
        namespaces: list("namespaces", message.namespaces, string)?,
        not_namespaces: list("not_namespaces", message.not_namespaces, string)?,
        principals: list("principals", message.principals, string)?,
        not_principals: list("not_principals", message.not_principals, string)?,
        service_accounts: accounts(message.service_accounts),
        not_service_accounts: accounts(message.not_service_accounts),
        source_ips: list("source_ips", &message.source_ips, net)?,
        not_source_ips: list("not_source_ips", &message.not_source_ips, net)?,
        destination_ips: list("destination_ips", &message.destination_ips, net)?,
        not_destination_ips: list("not_destination_ips", &message.not_destination_ips, net)?,
        destination_ports: list("destination_ports", message.destination_ports, port)?,
        not_destination_ports: list("not_destination_ports", message.not_destination_ports, port)?,
        ..further
    })
}

/// The conditions that our extension adds to a match. One that is ours and not
/// known to this version is an error: it may be what narrows the match.
fn further_conditions(extensions: &[Extension]) -> Result<Match, FieldError> {
    let mut read = Match::default();
    for (index, extension) in extensions.iter().enumerate() {
        if extension.name != names::PEER_MATCH {
            if extension.name.starts_with(OUR_PREFIX) {
                let fault = FieldFault::UnknownExtension(extension.name.clone());
                return Err(fault).at_index("extensions", index);
            }
            continue;
        }
        let peer = ours::PeerMatch::decode(body(extension))
            .map_err(FieldFault::NotProtobuf)
            .at_index("extensions", index)?;
        let ranges = list(
            "destination_port_ranges",
            peer.destination_port_ranges,
            port_range,
        );
        let not_ranges = list(
            "not_destination_port_ranges",
            peer.not_destination_port_ranges,
            port_range,
        );
        read.peer_sets = peer.sets.into_iter().map(Arc::from).collect();
        read.not_peer_sets = peer.not_sets.into_iter().map(Arc::from).collect();
        read.destination_port_ranges = ranges.at_index("extensions", index)?;
        read.not_destination_port_ranges = not_ranges.at_index("extensions", index)?;
    }
    Ok(read)
}

fn string(message: wire::StringMatch) -> Result<StringMatch, FieldError> {
    use wire::string_match::MatchType;
    Ok(match message.match_type {
        None => return Err(FieldError::new("match_type", FieldFault::Missing)),
        Some(MatchType::Exact(text)) => StringMatch::Exact(text.into()),
        Some(MatchType::Prefix(text)) => StringMatch::Prefix(text.into()),
        Some(MatchType::Suffix(text)) => StringMatch::Suffix(text.into()),
        Some(MatchType::Presence(())) => StringMatch::Presence,
    })
}

fn accounts(messages: Vec<wire::ServiceAccountMatch>) -> Vec<ServiceAccount> {
    messages
        .into_iter()
        .map(|message| ServiceAccount {
            namespace: message.namespace.into(),
            name: message.service_account.into(),
        })
        .collect()
}

fn net(message: &wire::Address) -> Result<IpNet, FieldFault> {
    range(&message.address, message.length)
}

fn port_range(message: ours::PortRange) -> Result<PortRange, FieldError> {
    let first = port(message.first).at("first")?;
    let last = port(message.last).at("last")?;
    if first > last {
        return Err(FieldFault::PortRange { first, last }.into());
    }
    Ok(PortRange { first, last })
}
