//! The mesh's own programs and the cluster's DNS server: what runs where with which
//! environment, and a supervisor that starts again what ends.

pub(crate) mod plan;
pub(crate) mod supervisor;
pub(crate) mod tokens;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// State of one program, for `status` and `check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ComponentStatus {
    /// `starting`, `ready`, `not ready` or `stopped`.
    pub state: String,
    /// Process id, while it runs.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u32,
    /// Why it is not ready.
    pub reason: String,
}

/// States of all programs by name.
pub(crate) type Statuses = BTreeMap<String, ComponentStatus>;
