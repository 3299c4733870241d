//! Specs and status of Culvert's own Kubernetes kinds, group
//! `policy.culvert.dev`. Field names and values are those that people know from
//! other meshes. Unknown fields are refused: a misspelt field of a policy must
//! never be silently without effect.

mod authorization;
mod peer_authentication;
mod status;

pub use authorization::{
    Action, AuthorizationPolicySpec, Condition, From, Operation, PortValue, Rule, Source, To,
};
pub use peer_authentication::{MutualTls, MutualTlsMode, PeerAuthenticationSpec};
pub use status::{AncestorReference, AncestorStatus, PolicyCondition, PolicyStatus};

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// API group of the policies.
pub const GROUP: &str = "policy.culvert.dev";
/// Served version of the policies.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of the policies.
pub const API_VERSION: &str = "policy.culvert.dev/v1alpha1";
/// Kind of [`AuthorizationPolicySpec`].
pub const AUTHORIZATION_POLICY: &str = "AuthorizationPolicy";
/// Kind of [`PeerAuthenticationSpec`].
pub const PEER_AUTHENTICATION: &str = "PeerAuthentication";
/// `status.ancestors[].controllerName` of what Culvert writes.
pub const CONTROLLER_NAME: &str = "culvert.dev/discovery";
/// Annotation that makes a policy only report what it would do.
pub const DRY_RUN_ANNOTATION: &str = "culvert.dev/dry-run";

/// Chooses workloads of the policy's namespace by their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadSelector {
    /// Labels that a workload must carry, all of them.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
}

/// The object that a policy is attached to (GEP-713); same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TargetReference {
    /// API group; empty for core kinds such as Service.
    #[serde(default)]
    pub group: String,
    /// Kind of the target.
    pub kind: String,
    /// Name of the target.
    pub name: String,
    /// A listener or port of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

#[cfg(test)]
mod tests;
