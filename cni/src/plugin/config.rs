//! The network configuration on standard input: bytes of another program.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde_json::Value;

use super::VERSIONS;
use crate::wire::PodIp;

/// A real configuration has a few kilobytes; a list of attachments to keep more.
const BYTES_MAX: usize = 4 << 20;

/// What the plugin needs of its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Version of the specification that the runtime speaks.
    pub version: String,
    /// Where the agent's sockets are.
    pub run_dir: PathBuf,
    /// The result of the plugins before this one, to be passed on as it is.
    pub previous: Option<Value>,
    /// Container ids of all living attachments (GC).
    pub valid_attachments: Option<Vec<String>>,
}

/// Why a configuration is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not JSON.
    #[error("it is no JSON object")]
    NotJson(#[source] serde_json::Error),
    /// It is too long.
    #[error("it has {bytes} bytes, more than {BYTES_MAX}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The version is another.
    #[error("cniVersion is {found:?}, expected one of {VERSIONS:?}")]
    Version {
        /// The version.
        found: String,
    },
    /// A field is missing or of the wrong type.
    #[error("{field} is missing or wrong: expected {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// What should be there.
        expected: &'static str,
    },
}

impl NetworkConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// When it is not one, or of a version that is not spoken.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        if bytes.len() > BYTES_MAX {
            return Err(ConfigError::TooLong { bytes: bytes.len() });
        }
        let value: serde_json::Map<String, Value> =
            serde_json::from_slice(bytes).map_err(ConfigError::NotJson)?;
        let version = value
            .get("cniVersion")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !VERSIONS.contains(&version) {
            return Err(ConfigError::Version {
                found: version.to_owned(),
            });
        }
        let run_dir = value.get("runDir").and_then(Value::as_str);
        let run_dir = run_dir.filter(|path| path.starts_with('/'));
        let Some(run_dir) = run_dir else {
            return Err(ConfigError::Field {
                field: "runDir",
                expected: "the absolute path of the agent's run directory",
            });
        };
        let previous = match value.get("prevResult") {
            None | Some(Value::Null) => None,
            Some(result) if result.is_object() => Some(result.clone()),
            Some(_) => {
                return Err(ConfigError::Field {
                    field: "prevResult",
                    expected: "an object",
                });
            }
        };
        Ok(Self {
            version: version.to_owned(),
            run_dir: run_dir.into(),
            previous,
            valid_attachments: value.get("cni.dev/valid-attachments").and_then(attachments),
        })
    }

    /// The pod's addresses in the result of the plugins before this one.
    #[must_use]
    pub fn addresses(&self) -> Vec<PodIp> {
        let previous = self.previous.as_ref();
        let ips = previous.and_then(|result| result.get("ips")?.as_array());
        ips.into_iter().flatten().filter_map(address).collect()
    }
}

fn address(entry: &Value) -> Option<PodIp> {
    let text = entry.get("address")?.as_str()?;
    let ip: IpAddr = match text.parse::<IpNet>() {
        Ok(net) => net.addr(),
        Err(_) => text.parse().ok()?,
    };
    let gateway = entry.get("gateway").and_then(Value::as_str);
    Some(PodIp {
        interface: entry
            .get("interface")
            .map(Value::to_string)
            .unwrap_or_default(),
        address: ip,
        gateway: gateway.map(str::to_owned).unwrap_or_default(),
    })
}

fn attachments(list: &Value) -> Option<Vec<String>> {
    let list = list.as_array()?;
    let ids = list
        .iter()
        .filter_map(|entry| entry.get("containerID")?.as_str().map(str::to_owned));
    Some(ids.collect())
}
