//! Policies in a document.

use culvert_model::{
    Action, Group, Match, Origin, Policy, PolicyName, PortRange, Rules, Scope, ServiceAccount,
    StringMatch,
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::FieldError;

/// A policy. Its rules are three nested lists: any of the outer, all of the middle,
/// any of the inner ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyDocument {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Whom it applies to.
    pub scope: ScopeWord,
    /// What a match means.
    pub action: ActionWord,
    /// Only log.
    pub dry_run: bool,
    /// When it matches.
    pub rules: Vec<Vec<Vec<MatchDocument>>>,
    /// Ours: the object that a person wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginDocument>,
    /// Ours, only shown: it could not be read and refuses everything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreadable: bool,
}

/// Whom a policy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScopeWord {
    /// Everyone.
    Global,
    /// Its namespace.
    Namespace,
    /// Workloads that name it.
    WorkloadSelector,
}

/// What a match means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActionWord {
    /// The connection is allowed.
    Allow,
    /// It is refused.
    Deny,
}

/// The object that a person wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OriginDocument {
    /// Its kind.
    pub kind: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// It only logs, by its nature.
    #[serde(default)]
    pub audit: bool,
}

/// One match; all fields that are given must hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MatchDocument {
    /// The peer's namespace is one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<TextDocument>,
    /// The peer's namespace is none of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_namespaces: Vec<TextDocument>,
    /// The peer's principal is one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub principals: Vec<TextDocument>,
    /// The peer's principal is none of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_principals: Vec<TextDocument>,
    /// The peer's account is one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<AccountDocument>,
    /// The peer's account is none of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_service_accounts: Vec<AccountDocument>,
    /// The peer's address is in one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<String>,
    /// The peer's address is in none of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_source_ips: Vec<String>,
    /// The destination is in one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destination_ips: Vec<String>,
    /// The destination is in none of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_destination_ips: Vec<String>,
    /// The destination's port is one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destination_ports: Vec<u16>,
    /// The destination's port is none of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_destination_ports: Vec<u16>,
    /// Ours: the destination's port is in one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destination_port_ranges: Vec<RangeDocument>,
    /// Ours: the destination's port is in none of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_destination_port_ranges: Vec<RangeDocument>,
    /// Ours: the peer is in one of these sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peer_sets: Vec<String>,
    /// Ours: the peer is in none of these sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_peer_sets: Vec<String>,
}

/// A text that is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextDocument {
    /// The whole of it.
    Exact(String),
    /// Its beginning.
    Prefix(String),
    /// Its end.
    Suffix(String),
    /// That there is one; always an empty list.
    Presence([(); 0]),
}

/// A service account of any trust domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccountDocument {
    /// The namespace.
    pub namespace: String,
    /// The account's name.
    pub service_account: String,
}

/// Ports, ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RangeDocument {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}

impl PolicyDocument {
    pub(super) fn model(self) -> Result<Policy, FieldError> {
        let name = PolicyName::new(self.namespace, self.name);
        let scope = match self.scope {
            ScopeWord::Global => Scope::Global,
            ScopeWord::Namespace => Scope::Namespace,
            ScopeWord::WorkloadSelector => Scope::WorkloadSelector,
        };
        if self.unreadable {
            return Ok(Policy::unreadable(name, scope));
        }
        let action = match self.action {
            ActionWord::Allow => Action::Allow,
            ActionWord::Deny => Action::Deny,
        };
        let groups = self
            .rules
            .into_iter()
            .map(group)
            .collect::<Result<_, _>>()?;
        Ok(Policy {
            dry_run: self.dry_run,
            origin: self.origin.map(|origin| Origin {
                kind: origin.kind.into(),
                namespace: origin.namespace.into(),
                name: origin.name.into(),
                audit: origin.audit,
            }),
            ..Policy::new(name, scope, action, groups)
        })
    }

    pub(super) fn of(policy: &Policy) -> Self {
        let rules = |rules: &Rules| rules.matches.iter().map(MatchDocument::of).collect();
        let group = |group: &Group| group.rules.iter().map(rules).collect();
        Self {
            name: policy.name.name.to_string(),
            namespace: policy.name.namespace.to_string(),
            scope: match policy.scope {
                Scope::Global => ScopeWord::Global,
                Scope::Namespace => ScopeWord::Namespace,
                Scope::WorkloadSelector => ScopeWord::WorkloadSelector,
            },
            action: match policy.action {
                Action::Allow => ActionWord::Allow,
                Action::Deny => ActionWord::Deny,
            },
            dry_run: policy.dry_run,
            rules: policy.groups.iter().map(group).collect(),
            origin: policy.origin.as_ref().map(|origin| OriginDocument {
                kind: origin.kind.to_string(),
                namespace: origin.namespace.to_string(),
                name: origin.name.to_string(),
                audit: origin.audit,
            }),
            unreadable: policy.unreadable,
        }
    }
}

fn group(document: Vec<Vec<MatchDocument>>) -> Result<Group, FieldError> {
    let rules = document.into_iter().map(|matches| {
        let matches = matches
            .into_iter()
            .map(MatchDocument::model)
            .collect::<Result<_, _>>()?;
        Ok(Rules { matches })
    });
    Ok(Group {
        rules: rules.collect::<Result<_, FieldError>>()?,
    })
}

impl MatchDocument {
    fn model(self) -> Result<Match, FieldError> {
        let texts = |all: Vec<TextDocument>| all.into_iter().map(TextDocument::model).collect();
        let accounts = |all: Vec<AccountDocument>| {
            let model = |account: AccountDocument| ServiceAccount {
                namespace: account.namespace.into(),
                name: account.service_account.into(),
            };
            all.into_iter().map(model).collect()
        };
        let ranges = |all: Vec<RangeDocument>| {
            all.into_iter()
                .map(|RangeDocument { first, last }| PortRange { first, last })
                .collect()
        };
        let sets = |all: Vec<String>| all.into_iter().map(Into::into).collect();
        Ok(Match {
            namespaces: texts(self.namespaces),
            not_namespaces: texts(self.not_namespaces),
            principals: texts(self.principals),
            not_principals: texts(self.not_principals),
            service_accounts: accounts(self.service_accounts),
            not_service_accounts: accounts(self.not_service_accounts),
            source_ips: nets("sourceIps", &self.source_ips)?,
            not_source_ips: nets("notSourceIps", &self.not_source_ips)?,
            destination_ips: nets("destinationIps", &self.destination_ips)?,
            not_destination_ips: nets("notDestinationIps", &self.not_destination_ips)?,
            destination_ports: self.destination_ports,
            not_destination_ports: self.not_destination_ports,
            destination_port_ranges: ranges(self.destination_port_ranges),
            not_destination_port_ranges: ranges(self.not_destination_port_ranges),
            peer_sets: sets(self.peer_sets),
            not_peer_sets: sets(self.not_peer_sets),
        })
    }

    fn of(of: &Match) -> Self {
        let texts = |all: &[StringMatch]| all.iter().map(TextDocument::of).collect();
        let accounts = |all: &[ServiceAccount]| {
            let document = |account: &ServiceAccount| AccountDocument {
                namespace: account.namespace.to_string(),
                service_account: account.name.to_string(),
            };
            all.iter().map(document).collect()
        };
        let nets = |all: &[IpNet]| all.iter().map(ToString::to_string).collect();
        let ranges = |all: &[PortRange]| {
            all.iter()
                .map(|r| RangeDocument {
                    first: r.first,
                    last: r.last,
                })
                .collect()
        };
        let sets = |all: &[std::sync::Arc<str>]| all.iter().map(ToString::to_string).collect();
        Self {
            namespaces: texts(&of.namespaces),
            not_namespaces: texts(&of.not_namespaces),
            principals: texts(&of.principals),
            not_principals: texts(&of.not_principals),
            service_accounts: accounts(&of.service_accounts),
            not_service_accounts: accounts(&of.not_service_accounts),
            source_ips: nets(&of.source_ips),
            not_source_ips: nets(&of.not_source_ips),
            destination_ips: nets(&of.destination_ips),
            not_destination_ips: nets(&of.not_destination_ips),
            destination_ports: of.destination_ports.clone(),
            not_destination_ports: of.not_destination_ports.clone(),
            destination_port_ranges: ranges(&of.destination_port_ranges),
            not_destination_port_ranges: ranges(&of.not_destination_port_ranges),
            peer_sets: sets(&of.peer_sets),
            not_peer_sets: sets(&of.not_peer_sets),
        }
    }
}

fn nets(field: &'static str, texts: &[String]) -> Result<Vec<IpNet>, FieldError> {
    let parse = |text: &String| {
        let net = text
            .parse()
            .or_else(|_| text.parse().map(|ip: std::net::IpAddr| ip.into()));
        net.map_err(|_| FieldError::new(field, &format!("{text:?} is not a CIDR")))
    };
    texts.iter().map(parse).collect()
}

impl TextDocument {
    fn model(self) -> StringMatch {
        match self {
            Self::Exact(text) => StringMatch::Exact(text.into()),
            Self::Prefix(text) => StringMatch::Prefix(text.into()),
            Self::Suffix(text) => StringMatch::Suffix(text.into()),
            Self::Presence([]) => StringMatch::Presence,
        }
    }

    fn of(of: &StringMatch) -> Self {
        match of {
            StringMatch::Exact(text) => Self::Exact(text.to_string()),
            StringMatch::Prefix(text) => Self::Prefix(text.to_string()),
            StringMatch::Suffix(text) => Self::Suffix(text.to_string()),
            StringMatch::Presence => Self::Presence([]),
        }
    }
}
