//! The allowed graph of dependencies (ARCHITECTURE.md, "Code map").

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

/// Which of our crates each may use. What is not here is not allowed.
const OURS: &[(&str, &[&str])] = &[
    ("culvert-identity", &[]),
    ("culvert-model", &["identity"]),
    ("culvert-tls", &["identity"]),
    ("culvert-token", &[]),
    ("culvert-hbone", &[]),
    ("culvert-api", &[]),
    ("culvert-xds", &["api", "identity", "model"]),
    ("culvert-netns", &[]),
    ("culvert-nft", &[]),
    ("culvert-runtime", &[]),
    ("culvert-kubeyaml", &["api"]),
    (
        "culvert-node-proxy",
        &[
            "api", "hbone", "identity", "model", "netns", "runtime", "tls", "xds",
        ],
    ),
    (
        "culvert-discovery",
        &[
            "api", "identity", "kubeyaml", "model", "runtime", "tls", "token", "xds",
        ],
    ),
    (
        "culvert-ca",
        &["api", "identity", "runtime", "tls", "token"],
    ),
    ("culvert-cni", &["api", "netns", "nft", "runtime"]),
    (
        "culvert",
        &[
            "api", "identity", "kubeyaml", "netns", "nft", "runtime", "token",
        ],
    ),
];

/// Which of our crates may use a foreign crate that belongs to one of them.
const FOREIGN: &[(&str, &[&str])] = &[
    ("h2", &["hbone", "node-proxy"]),
    // The node proxy names configuration types; it builds none.
    ("rustls", &["tls", "node-proxy"]),
    ("rustls-webpki", &["tls"]),
    ("netlink-packet-netfilter", &["nft"]),
    ("rtnetlink", &["cni", "culvert"]),
    ("hickory-proto", &["node-proxy", "culvert"]),
    ("kube", &["discovery", "ca", "cni", "culvert"]),
    ("k8s-openapi", &["kubeyaml", "discovery", "culvert"]),
    ("pprof", &["runtime"]),
    (
        "axum",
        &["runtime", "node-proxy", "discovery", "ca", "cni", "culvert"],
    ),
];

/// Dependencies that the graph does not allow.
///
/// # Errors
/// When cargo cannot be asked.
pub fn layering() -> Result<Vec<String>> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(crate::harness::binaries::repository())
        .output()
        .context("cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("packages")?;
    Ok(packages.iter().flat_map(violations_of).collect())
}

fn violations_of(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    if name == "culvert-tests" {
        return Vec::new();
    }
    let Some((_, allowed)) = OURS.iter().find(|(crate_name, _)| *crate_name == name) else {
        return vec![format!(
            "{name} is not in the graph of tests/src/rules/layers.rs"
        )];
    };
    let dependencies = package["dependencies"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let used = dependencies
        .iter()
        .filter(|dependency| dependency["kind"] != "dev");
    used.filter_map(|dependency| {
        let used = dependency["name"].as_str()?;
        forbidden(name, used, allowed).then(|| format!("{name} must not depend on {used}"))
    })
    .collect()
}

fn forbidden(name: &str, used: &str, allowed: &[&str]) -> bool {
    if let Some(ours) = used.strip_prefix("culvert-") {
        return !allowed.contains(&ours);
    }
    let short = name.strip_prefix("culvert-").unwrap_or(name);
    FOREIGN
        .iter()
        .any(|(foreign, users)| *foreign == used && !users.contains(&short))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_listed_is_forbidden() {
        assert!(forbidden("culvert-model", "culvert-api", &["identity"]));
        assert!(!forbidden(
            "culvert-model",
            "culvert-identity",
            &["identity"]
        ));
        assert!(forbidden("culvert-ca", "h2", &[]));
        assert!(!forbidden("culvert-hbone", "h2", &[]));
        assert!(!forbidden("culvert-ca", "serde", &[]));
    }
}
