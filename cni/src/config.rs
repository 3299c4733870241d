//! The agent's configuration.

use std::collections::BTreeSet;
use std::path::PathBuf;

use culvert_runtime::config::PROCESS;
use culvert_runtime::{ConfigError, ProcessConfig, RawConfig, Variable};

/// The agent's own variables.
pub const VARIABLES: &[Variable] = &[
    Variable::required(
        "CULVERT_NODE_NAME",
        "a name",
        "name of this node, as in the pods' spec.nodeName",
    ),
    Variable::required(
        "CULVERT_CNI_RUN_DIR",
        "an absolute path",
        "directory of the sockets cni.sock, zds.sock and keeper.sock, and of what the agent keeps",
    ),
    Variable::required(
        "CULVERT_CNI_OBJECTS_DIR",
        "a path",
        "directory with Pod and Namespace objects as JSON files",
    ),
    Variable::required(
        "CULVERT_CNI_STATUS_DIR",
        "a path",
        "directory in which enrollment/<namespace>.<pod>.json tells whether a pod is enrolled",
    ),
    Variable::with_default(
        "CULVERT_CNI_EXEMPT_NAMESPACES",
        "names joined by commas",
        "kube-system,culvert-system",
        "namespaces that are never enrolled and whose pods start without the agent",
    ),
    Variable::with_default(
        "CULVERT_CNI_DNS",
        "true|false",
        "true",
        "redirect DNS queries; the node proxy's CULVERT_DNS must say the same",
    ),
];

/// The agent's configuration, ready to use.
#[derive(Debug, Clone)]
pub struct Config {
    /// What every program has.
    pub process: ProcessConfig,
    /// Name of this node.
    pub node: String,
    /// Directory of the sockets.
    pub run_dir: PathBuf,
    /// Directory of the objects.
    pub objects_dir: PathBuf,
    /// Directory of the statuses.
    pub status_dir: PathBuf,
    /// Namespaces that are never enrolled.
    pub exempt: BTreeSet<String>,
    /// DNS queries are redirected.
    pub dns: bool,
}

impl Config {
    /// Reads the environment, and gives the values in force for `/config` too.
    ///
    /// # Errors
    /// All faults together.
    pub fn read(
        environment: impl IntoIterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    ) -> Result<(Self, serde_json::Value), ConfigError> {
        let mut raw = RawConfig::read(&[PROCESS, VARIABLES], environment);
        let process = ProcessConfig::read(&mut raw);
        let node = raw.value::<String>("CULVERT_NODE_NAME");
        let run_dir = raw.value_with("CULVERT_CNI_RUN_DIR", |text| {
            let path = PathBuf::from(text);
            path.is_absolute()
                .then_some(path)
                .ok_or_else(|| "relative".to_owned())
        });
        let objects_dir = raw.value("CULVERT_CNI_OBJECTS_DIR");
        let status_dir = raw.value("CULVERT_CNI_STATUS_DIR");
        let exempt = raw.value::<Vec<String>>("CULVERT_CNI_EXEMPT_NAMESPACES");
        let dns = raw.value("CULVERT_CNI_DNS");
        let effective = raw.effective();
        let config = raw.finish(|| {
            Some(Self {
                process: process?,
                node: node?,
                run_dir: run_dir?,
                objects_dir: objects_dir?,
                status_dir: status_dir?,
                exempt: exempt?.into_iter().collect(),
                dns: dns?,
            })
        })?;
        Ok((config, effective))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        Config::read(pairs.collect::<Vec<_>>()).map(|(config, _)| config)
    }

    #[test]
    fn all_faults_at_once() {
        let error = read(&[
            ("CULVERT_CNI_RUN_DIR", "run"),
            ("CULVERT_CNI_NAMESPACE", "x"),
        ])
        .expect_err("faults")
        .to_string();
        for expect in [
            "CULVERT_NODE_NAME",
            "CULVERT_CNI_RUN_DIR",
            "CULVERT_CNI_OBJECTS_DIR",
            "CULVERT_CNI_STATUS_DIR",
            "CULVERT_CNI_NAMESPACE",
        ] {
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn exempt_namespaces_by_default() {
        let config = read(&[
            ("CULVERT_NODE_NAME", "node-1"),
            ("CULVERT_CNI_RUN_DIR", "/run/x"),
            ("CULVERT_CNI_OBJECTS_DIR", "/run/x/objects"),
            ("CULVERT_CNI_STATUS_DIR", "/run/x"),
        ])
        .expect("complete");
        let expect = BTreeSet::from(["kube-system", "culvert-system"].map(str::to_owned));
        assert_eq!(config.exempt, expect);
        assert!(config.dns);
    }
}
