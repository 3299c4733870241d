//! What the person who ran `culvert up` asked for, and the address families that
//! follow from it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::object::{Key, text};
use super::world::World;

/// Settings of one run of the engine, written by `up`, read by `engine`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Directory with the user's objects.
    pub directory: PathBuf,
    /// How many nodes.
    pub nodes: u8,
    /// Whether the mesh's own programs run.
    pub mesh_enabled: bool,
    /// Whether pods reach the world outside.
    pub egress: bool,
    /// Where the other binaries are.
    pub bin_dir: PathBuf,
    /// PATH of containers that have none of their own: that of the person who ran
    /// `culvert up`, so that what works in the shell works in a pod.
    pub search_path: String,
    /// `--image NAME=COMMAND`.
    pub images: BTreeMap<String, Vec<String>>,
    /// `--set key=value`.
    pub values: BTreeMap<String, String>,
}

/// Keys that `--set` takes, with what they mean.
pub(crate) const KEYS: [(&str, &str); 5] = [
    (
        "ipFamilies",
        "families of pods and services: IPv4, IPv6 or IPv4,IPv6",
    ),
    (
        "accessLog",
        "access log of the node proxies: off, text or json",
    ),
    (
        "logLevel",
        "log level of the mesh's programs, such as info or debug",
    ),
    ("workers", "worker threads of each node proxy"),
    (
        "certificateTtl",
        "lifetime of workload certificates, such as 24h",
    ),
];

/// A `--set` that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingError {
    /// Not `key=value`.
    #[error("--set {0}: expected key=value")]
    Shape(String),
    /// No such key.
    #[error("--set {0}: no such setting; known are {known}", known = known_keys())]
    Unknown(String),
    /// The value does not fit.
    #[error("--set {key}={value}: expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What would do.
        expected: &'static str,
    },
}

fn known_keys() -> String {
    KEYS.map(|(key, _)| key).join(", ")
}

/// Reads the `--set` arguments; all faults are reported together.
///
/// # Errors
/// One error for each argument that cannot be used.
pub fn parse_values(arguments: &[String]) -> Result<BTreeMap<String, String>, Vec<SettingError>> {
    let mut values = BTreeMap::new();
    let mut faults = Vec::new();
    for argument in arguments {
        match parse_value(argument) {
            Ok((key, value)) => {
                values.insert(key, value);
            }
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() {
        Ok(values)
    } else {
        Err(faults)
    }
}

fn parse_value(argument: &str) -> Result<(String, String), SettingError> {
    let (key, value) = argument
        .split_once('=')
        .ok_or_else(|| SettingError::Shape(argument.to_owned()))?;
    let expected = match key {
        "ipFamilies" if value.parse::<Families>().is_ok() => None,
        "ipFamilies" => Some("IPv4, IPv6 or IPv4,IPv6"),
        "accessLog" if matches!(value, "off" | "text" | "json") => None,
        "accessLog" => Some("off, text or json"),
        "workers" if value.parse::<u16>().is_ok_and(|workers| workers > 0) => None,
        "workers" => Some("a number of at least 1"),
        "certificateTtl" if humantime::parse_duration(value).is_ok() => None,
        "certificateTtl" => Some("a duration such as 24h"),
        "logLevel" if !value.is_empty() => None,
        "logLevel" => Some("a level such as info or debug"),
        _ => return Err(SettingError::Unknown(key.to_owned())),
    };
    match expected {
        None => Ok((key.to_owned(), value.to_owned())),
        Some(expected) => Err(SettingError::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        }),
    }
}

impl Settings {
    /// One `--set` value.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// The object that tells the controllers about the settings.
    pub(crate) fn as_object(&self) -> Value {
        let families = self.value("ipFamilies").unwrap_or("IPv4,IPv6");
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CLUSTER, "namespace": "kube-system"},
            "data": {"ipFamilies": families},
        })
    }
}

/// Name of the object with the cluster's settings.
const CLUSTER: &str = "culvert-cluster";

/// The families that pods and services have unless they say otherwise.
pub(crate) fn cluster_families(world: &World) -> Families {
    world
        .object(&Key::new("ConfigMap", "kube-system", CLUSTER))
        .and_then(|settings| text(settings, "/data/ipFamilies")?.parse().ok())
        .unwrap_or(Families::BOTH)
}

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Family of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    /// As Kubernetes writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl FromStr for Family {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "IPv4" => Ok(Self::V4),
            "IPv6" => Ok(Self::V6),
            _ => Err(()),
        }
    }
}

/// One or two families, the preferred one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Families {
    first: Option<Family>,
    second: Option<Family>,
}

impl Families {
    /// IPv4 first, then IPv6.
    pub(crate) const BOTH: Self = Self {
        first: Some(Family::V4),
        second: Some(Family::V6),
    };

    /// The families in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = Family> {
        self.first.into_iter().chain(self.second)
    }

    /// The preferred one.
    pub(crate) fn first(self) -> Option<Family> {
        self.first
    }

    /// How many.
    pub(crate) fn len(self) -> usize {
        self.iter().count()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(self) -> bool {
        self.first.is_none()
    }
}

impl FromIterator<Family> for Families {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        let mut all = Self::default();
        for family in families {
            if all.first.is_none() {
                all.first = Some(family);
            } else if all.first != Some(family) && all.second.is_none() {
                all.second = Some(family);
            }
        }
        all
    }
}

impl FromStr for Families {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let families = text
            .split(',')
            .map(Family::from_str)
            .collect::<Result<Self, ()>>()?;
        if families.is_empty() {
            Err(())
        } else {
            Ok(families)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families() {
        let check = |text: &str, expect: Option<&[Family]>| {
            let parsed = text
                .parse::<Families>()
                .ok()
                .map(|all| all.iter().collect::<Vec<_>>());
            assert_eq!(parsed.as_deref(), expect, "{text}");
        };
        check("IPv4", Some(&[Family::V4]));
        check("IPv6, IPv4", Some(&[Family::V6, Family::V4]));
        check("IPv4,IPv4", Some(&[Family::V4]));
        check("", None);
        check("ipv5", None);
    }

    #[test]
    fn values_name_what_is_wrong() {
        let values = ["ipFamilies=IPv6", "accessLog=json"].map(str::to_owned);
        assert_eq!(parse_values(&values).expect("good").len(), 2);
        let faults = parse_values(&["x=1", "y", "workers=0"].map(str::to_owned)).expect_err("bad");
        let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert!(texts[0].contains("ipFamilies"), "{texts:?}");
        assert!(texts[1].contains("expected key=value"), "{texts:?}");
        assert!(texts[2].contains("at least 1"), "{texts:?}");
    }
}
