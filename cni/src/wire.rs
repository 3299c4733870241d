//! What plugin and agent say to each other over `cni.sock`.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// POST /cmdadd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AddRequest {
    /// Path of the pod's network namespace.
    pub netns: PathBuf,
    /// The pod's name.
    pub pod_name: String,
    /// The pod's namespace.
    pub pod_namespace: String,
    /// The pod's UID, where the runtime names it.
    #[serde(rename = "PodUID", default)]
    pub pod_uid: Option<String>,
    /// The sandbox's id.
    #[serde(rename = "ContainerID")]
    pub container_id: String,
    /// The pod's addresses.
    #[serde(rename = "IPs")]
    pub ips: Vec<PodIp>,
}

/// An address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PodIp {
    /// Index or name of the interface.
    #[serde(default)]
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// Its gateway.
    #[serde(default)]
    pub gateway: String,
}

/// POST /cmddel and /cmdcheck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DelRequest {
    /// The sandbox's id.
    #[serde(rename = "ContainerID")]
    pub container_id: String,
}

/// POST /gc.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct GcRequest {
    /// Ids of all sandboxes that are still there.
    pub valid: Vec<String>,
}

/// The answer to all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the pod is enrolled (/cmdadd).
    #[serde(default)]
    pub enrolled: bool,
    /// Why it is not.
    #[serde(default)]
    pub reason: String,
}
