//! `PeerAuthentication`: whether a workload accepts plaintext.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WorkloadSelector;

/// Spec of a `PeerAuthentication`. The narrowest wins: workload before
/// namespace before mesh (root namespace, no selector); of equals the oldest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeerAuthenticationSpec {
    /// Workloads that it applies to; all of the namespace without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// The mode of all ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls: Option<MutualTls>,
    /// Modes of single workload ports; only together with a selector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub port_level_mtls: BTreeMap<String, MutualTls>,
}

/// Holder of a mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MutualTls {
    /// The mode.
    #[serde(default)]
    pub mode: MutualTlsMode,
}

/// What a workload accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum MutualTlsMode {
    /// Take the mode of the next wider scope.
    #[default]
    Unset,
    /// Plaintext is accepted beside tunnels. In this mesh the same as
    /// PERMISSIVE: peers in the mesh go on to use tunnels.
    Disable,
    /// Tunnels and plaintext are accepted.
    Permissive,
    /// Only tunnels are accepted.
    Strict,
}
