//! The plugin: what a container runtime executes. It asks the agent and knows
//! nothing itself, but for the few namespaces that must start without an agent.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_netns::Netns;
use serde_json::{Value, json};

use crate::disk::EXEMPT_FILE;
use crate::wire::{AddRequest, DelRequest, GcRequest, Reply};

mod client;
mod config;

pub use config::{ConfigError, NetworkConfig};

use client::ask;

/// Versions of the CNI specification that are spoken, oldest first.
pub const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];

/// The agent's own deadline and some seconds for the way.
const ADD_TIMEOUT: Duration = Duration::from_secs(45);
/// Everything else is answered at once.
const SHORT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the runtime passes in the environment; `main` reads it.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// CNI_COMMAND.
    pub command: String,
    /// CNI_CONTAINERID.
    pub container: String,
    /// CNI_NETNS.
    pub netns: String,
    /// CNI_IFNAME.
    pub interface: String,
    /// CNI_ARGS.
    pub args: String,
}

impl Environment {
    fn arg(&self, name: &str) -> Option<&str> {
        self.args
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, value)| *key == name && !value.is_empty())
            .map(|(_, value)| value)
    }
}

/// An error in the form of the specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginError {
    code: u32,
    message: String,
    details: String,
}

const INCOMPATIBLE_VERSION: u32 = 1;
const INVALID_ENVIRONMENT: u32 = 4;
const INVALID_CONFIG: u32 = 7;
const UNDECODABLE: u32 = 6;
const TRY_AGAIN: u32 = 11;
const NOT_AVAILABLE: u32 = 50;
const LIMITED: u32 = 51;
/// The first number that is a plugin's own: the pod could not be enrolled.
const NOT_ENROLLED: u32 = 100;

impl PluginError {
    fn new(code: u32, message: &str, details: impl Into<String>) -> Self {
        Self {
            code,
            message: message.to_owned(),
            details: details.into(),
        }
    }

    /// The error's number in the specification.
    #[must_use]
    pub fn code(&self) -> u32 {
        self.code
    }

    fn json(&self, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "code": self.code,
            "msg": self.message,
            "details": self.details,
        })
    }
}

/// Carries out one command and writes its result. Gives the exit code.
pub fn run(environment: &Environment, input: &[u8], output: &mut impl Write) -> u8 {
    let config = NetworkConfig::parse(input);
    let version = match &config {
        Ok(config) => config.version.clone(),
        Err(_) => (*VERSIONS.last().expect("invariant: there are versions")).to_owned(),
    };
    let (result, code) = match execute(environment, config) {
        Ok(result) => (result, 0),
        // Whatever is wrong, a pod must be able to go.
        Err(error) if environment.command == "DEL" || environment.command == "GC" => {
            eprintln!("culvert-cni: {}: {}", error.message, error.details);
            (None, 0)
        }
        Err(error) => (Some(error.json(&version)), 1),
    };
    let written = match result {
        Some(value) => writeln!(output, "{value}"),
        None => Ok(()),
    };
    if written.is_ok() { code } else { 1 }
}

fn execute(
    environment: &Environment,
    config: Result<NetworkConfig, ConfigError>,
) -> Result<Option<Value>, PluginError> {
    if environment.command == "VERSION" {
        let version = config.map_or_else(|_| VERSIONS[2].to_owned(), |config| config.version);
        return Ok(Some(
            json!({"cniVersion": version, "supportedVersions": VERSIONS}),
        ));
    }
    let config = config.map_err(|error| {
        let code = match error {
            ConfigError::NotJson(_) | ConfigError::TooLong { .. } => UNDECODABLE,
            ConfigError::Version { .. } => INCOMPATIBLE_VERSION,
            ConfigError::Field { .. } => INVALID_CONFIG,
        };
        PluginError::new(code, "invalid network configuration", error.to_string())
    })?;
    match environment.command.as_str() {
        "ADD" => add(environment, &config).map(Some),
        "DEL" => del(environment, &config).map(|()| None),
        "CHECK" => check(environment, &config).map(|()| None),
        "GC" => gc(&config).map(|()| None),
        "STATUS" => status(&config).map(|()| None),
        other => Err(PluginError::new(
            INVALID_ENVIRONMENT,
            "unknown CNI_COMMAND",
            format!("{other:?}, expected ADD, DEL, CHECK, GC, STATUS or VERSION"),
        )),
    }
}

fn add(environment: &Environment, config: &NetworkConfig) -> Result<Value, PluginError> {
    let container = container(environment)?;
    if environment.netns.is_empty() {
        let details = "CNI_NETNS is empty";
        return Err(PluginError::new(
            INVALID_ENVIRONMENT,
            "no namespace",
            details,
        ));
    }
    let Some(previous) = config.previous.clone() else {
        let details = "prevResult is missing: list culvert-cni after the plugin that makes the \
                       interface";
        return Err(PluginError::new(INVALID_CONFIG, "not chained", details));
    };
    let (Some(namespace), Some(name)) = (
        environment.arg("K8S_POD_NAMESPACE"),
        environment.arg("K8S_POD_NAME"),
    ) else {
        // No pod, so no label that could ask for the mesh.
        return Ok(previous);
    };
    // The mesh's own parts must start whatever state the agent is in.
    if is_own_namespace(&environment.netns) || is_exempt(&config.run_dir, namespace) {
        return Ok(previous);
    }
    let request = AddRequest {
        netns: environment.netns.clone().into(),
        pod_name: name.to_owned(),
        pod_namespace: namespace.to_owned(),
        pod_uid: environment.arg("K8S_POD_UID").map(str::to_owned),
        container_id: container.to_owned(),
        ips: config.addresses(),
    };
    let socket = config.run_dir.join("cni.sock");
    match ask(&socket, "/cmdadd", &request, ADD_TIMEOUT) {
        Ok(Reply { error: None, .. }) => Ok(previous),
        Ok(Reply {
            error: Some(error), ..
        }) => {
            let message = format!("pod {namespace}/{name} cannot join the mesh");
            Err(PluginError::new(NOT_ENROLLED, &message, error))
        }
        Err(error) => Err(PluginError::new(
            TRY_AGAIN,
            "the culvert-cni agent of this node is not there",
            culvert_runtime::chain(&error),
        )),
    }
}

fn del(environment: &Environment, config: &NetworkConfig) -> Result<(), PluginError> {
    let request = DelRequest {
        container_id: container(environment)?.to_owned(),
    };
    simple(config, "/cmddel", &request, TRY_AGAIN)
}

fn check(environment: &Environment, config: &NetworkConfig) -> Result<(), PluginError> {
    if config.previous.is_none() {
        let details = "CHECK needs prevResult";
        return Err(PluginError::new(INVALID_CONFIG, "not chained", details));
    }
    if environment.arg("K8S_POD_NAME").is_none() || is_own_namespace(&environment.netns) {
        return Ok(());
    }
    let request = DelRequest {
        container_id: container(environment)?.to_owned(),
    };
    simple(config, "/cmdcheck", &request, NOT_ENROLLED)
}

fn gc(config: &NetworkConfig) -> Result<(), PluginError> {
    // Without the list nothing can be told to be left over.
    let Some(valid) = config.valid_attachments.clone() else {
        return Ok(());
    };
    simple(config, "/gc", &GcRequest { valid }, TRY_AGAIN)
}

fn status(config: &NetworkConfig) -> Result<(), PluginError> {
    let socket = config.run_dir.join("cni.sock");
    match ask(&socket, "/status", &json!({}), SHORT_TIMEOUT) {
        Ok(Reply { error: None, .. }) => Ok(()),
        Ok(Reply {
            error: Some(error), ..
        }) => Err(PluginError::new(
            LIMITED,
            "pods of the mesh cannot start now",
            error,
        )),
        Err(error) => Err(PluginError::new(
            NOT_AVAILABLE,
            "the culvert-cni agent of this node is not there",
            culvert_runtime::chain(&error),
        )),
    }
}

fn simple<T: serde::Serialize>(
    config: &NetworkConfig,
    path: &str,
    request: &T,
    refusal: u32,
) -> Result<(), PluginError> {
    let socket = config.run_dir.join("cni.sock");
    match ask(&socket, path, request, SHORT_TIMEOUT) {
        Ok(Reply { error: None, .. }) => Ok(()),
        Ok(Reply {
            error: Some(error), ..
        }) => Err(PluginError::new(refusal, "the agent refused", error)),
        Err(error) => Err(PluginError::new(
            TRY_AGAIN,
            "the culvert-cni agent of this node is not there",
            culvert_runtime::chain(&error),
        )),
    }
}

/// As the specification has it: letters and digits, then also `_.-`.
fn container(environment: &Environment) -> Result<&str, PluginError> {
    let id = environment.container.as_str();
    let good = id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.len() <= 256
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if good {
        Ok(id)
    } else {
        let details = format!("CNI_CONTAINERID is {id:?}");
        Err(PluginError::new(
            INVALID_ENVIRONMENT,
            "invalid container",
            details,
        ))
    }
}

/// A pod with the node's network.
fn is_own_namespace(path: &str) -> bool {
    let same = Netns::open(path).and_then(|pod| Ok(pod == Netns::current()?));
    same.unwrap_or(false)
}

/// The agent keeps the list, so that what it needs itself can start without it.
fn is_exempt(run_dir: &Path, namespace: &str) -> bool {
    let file: PathBuf = run_dir.join(EXEMPT_FILE);
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().any(|line| line.trim() == namespace)
}

#[cfg(test)]
mod tests;
