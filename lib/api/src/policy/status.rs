//! Status of a policy in the form of GEP-713.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `status` of every policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// One entry for each object that the policy is attached to.
    #[serde(default)]
    pub ancestors: Vec<AncestorStatus>,
}

/// What became of the policy at one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AncestorStatus {
    /// The object.
    pub ancestor_ref: AncestorReference,
    /// Who wrote this entry.
    pub controller_name: String,
    /// The conditions.
    #[serde(default)]
    pub conditions: Vec<PolicyCondition>,
}

/// Names the object that a policy is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AncestorReference {
    /// API group; empty for core kinds.
    #[serde(default)]
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace, of namespaced kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// A listener or port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// A condition as in Kubernetes' `metav1.Condition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCondition {
    /// `Accepted` and so on.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// `metadata.generation` that this condition speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` changed last, RFC 3339.
    pub last_transition_time: String,
    /// CamelCase reason.
    pub reason: String,
    /// Sentence for people.
    pub message: String,
}
