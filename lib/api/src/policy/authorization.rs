//! `AuthorizationPolicy`: who may connect to what.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{TargetReference, WorkloadSelector};

/// Spec of an `AuthorizationPolicy`. With neither selector nor targets it
/// applies to its namespace, or to the mesh in the root namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthorizationPolicySpec {
    /// Services or Gateways that the policy is attached to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_refs: Vec<TargetReference>,
    /// Workloads that the policy is attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// What happens to a connection that a rule matches.
    #[serde(default)]
    pub action: Action,
    /// Report verdicts without enforcing them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The rules; any of them may match. ALLOW without rules allows nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// Effect of a matching rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Action {
    /// Allow the connection; what no ALLOW policy matches is refused.
    #[default]
    Allow,
    /// Refuse the connection, whatever an ALLOW policy says.
    Deny,
    /// Only record that the rule matched.
    Audit,
}

/// One rule: sources AND operations AND conditions. Empty parts match all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Where the connection comes from; any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<From>,
    /// What it asks for; any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<To>,
    /// Further conditions; all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<Condition>,
}

/// An entry of `from`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct From {
    /// The source.
    #[serde(default)]
    pub source: Source,
}

/// An entry of `to`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct To {
    /// The operation.
    #[serde(default)]
    pub operation: Operation,
}

/// Properties of the peer. Fields are AND-ed, values of one field OR-ed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Source {
    /// Identities, without `spiffe://`; `*`, `prefix*` and `*suffix` are understood.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub principals: Vec<String>,
    /// Identities that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_principals: Vec<String>,
    /// Subjects of a request's token (needs a waypoint).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub request_principals: Vec<String>,
    /// Subjects of a request's token that do not match (needs a waypoint).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_request_principals: Vec<String>,
    /// Namespaces of the peer's identity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Namespaces that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_namespaces: Vec<String>,
    /// Service accounts, `name` (in the policy's namespace) or `namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<String>,
    /// Service accounts that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_service_accounts: Vec<String>,
    /// Addresses of the connection's source, `10.0.0.1` or `10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_blocks: Vec<String>,
    /// Addresses that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_ip_blocks: Vec<String>,
    /// Client addresses taken from request headers (needs a waypoint).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote_ip_blocks: Vec<String>,
    /// Client addresses that do not match (needs a waypoint).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_remote_ip_blocks: Vec<String>,
}

/// Properties of what is asked for. Only ports can be judged without a waypoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Operation {
    /// Ports of the workload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortValue>,
    /// Ports that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_ports: Vec<PortValue>,
    /// Hosts of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Hosts that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_hosts: Vec<String>,
    /// Methods of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Methods that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_methods: Vec<String>,
    /// Paths of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Paths that do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_paths: Vec<String>,
}

/// A port as people write it: `8080` or `"8080"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PortValue {
    /// A number.
    Number(i64),
    /// A number written as text.
    Text(String),
}

impl PortValue {
    /// The port, if it is one.
    pub fn port(&self) -> Option<u16> {
        let port = match self {
            Self::Number(number) => u16::try_from(*number).ok()?,
            Self::Text(text) if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok()?,
            Self::Text(_) => return None,
        };
        (port != 0).then_some(port)
    }
}

impl std::fmt::Display for PortValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// An entry of `when`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    /// Name of the attribute, such as `source.ip` or `destination.port`.
    pub key: String,
    /// Values of which one must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Values of which none may match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_values: Vec<String>,
}
