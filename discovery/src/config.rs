//! Static configuration.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use culvert_identity::{Identity, TrustDomain};
use culvert_runtime::config::{ConfigError, PROCESS, ProcessConfig, RawConfig, Variable};

use crate::{compile::Settings, publish::Account};

/// The namespace of the mesh's own programs, and of policies for all of it.
pub const ROOT_NAMESPACE: &str = "culvert-system";

/// The service account of discovery.
pub const SERVICE_ACCOUNT: &str = "culvert-discovery";

/// The variables of discovery, besides those that every program has.
pub const VARIABLES: &[Variable] = &[
    Variable::with_default(
        "CULVERT_DISCOVERY_LISTEN",
        "address:port",
        "[::]:15010",
        "where node proxies connect",
    ),
    Variable::required(
        "CULVERT_DISCOVERY_DIRECTORY",
        "directories joined by ':'",
        "Kubernetes objects in YAML or JSON, watched for edits",
    ),
    Variable::optional(
        "CULVERT_DISCOVERY_STATUS_DIR",
        "a directory outside of CULVERT_DISCOVERY_DIRECTORY",
        "where the status of objects is written; nowhere when not set",
    ),
    Variable::required(
        "CULVERT_DISCOVERY_JWKS_FILE",
        "a path",
        "public keys of the issuer of service-account tokens (JWKS)",
    ),
    Variable::with_default(
        "CULVERT_DISCOVERY_NODE_ACCOUNTS",
        "namespace/account pairs joined by commas",
        "culvert-system/culvert-node-proxy",
        "service accounts under which node proxies run",
    ),
    Variable::required(
        "CULVERT_CA_ADDRESS",
        "host:port",
        "the CA, which issues the serving certificate",
    ),
    Variable::with_default(
        "CULVERT_CA_SERVER_NAME",
        "a DNS name",
        "culvert-ca.culvert-system.svc",
        "name that the CA must prove",
    ),
    Variable::required(
        "CULVERT_CA_ROOT_FILE",
        "a path",
        "root bundle by which the CA is verified",
    ),
    Variable::required(
        "CULVERT_CA_TOKEN_FILE",
        "a path",
        "token of this program's service account, audience culvert-ca",
    ),
];

/// How to reach the CA.
#[derive(Clone, Debug)]
pub struct CaConfig {
    /// `host:port`.
    pub address: String,
    /// Name that it must prove.
    pub server_name: String,
    /// Root bundle.
    pub root_file: PathBuf,
    /// Our token.
    pub token_file: PathBuf,
    /// Name of the cluster.
    pub cluster_id: String,
    /// Who we are.
    pub identity: Identity,
}

/// The configuration, ready to use.
#[derive(Debug)]
pub struct Config {
    /// What every program has.
    pub process: ProcessConfig,
    /// What is the same for the whole mesh.
    pub settings: Settings,
    /// Where node proxies connect.
    pub listen: SocketAddr,
    /// Where objects are.
    pub directories: Vec<PathBuf>,
    /// Where statuses go.
    pub status_directory: Option<PathBuf>,
    /// Public keys of the token issuer.
    pub jwks_file: PathBuf,
    /// Service accounts of node proxies.
    pub node_accounts: BTreeSet<Account>,
    /// The CA.
    pub ca: CaConfig,
    /// The values in force, for `/config`.
    pub effective: serde_json::Value,
}

impl Config {
    /// Reads the environment, all faults together.
    ///
    /// # Errors
    /// Every variable that is missing, unknown or not of the expected form.
    pub fn read(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut raw = RawConfig::read(&[VARIABLES, PROCESS], environment);
        let effective = raw.effective();
        let process = ProcessConfig::read(&mut raw);
        let trust_domain = raw.value_with("CULVERT_TRUST_DOMAIN", |text| {
            text.parse::<TrustDomain>()
                .map_err(|error| error.to_string())
        });
        let listen = raw.value("CULVERT_DISCOVERY_LISTEN");
        let directories = raw.value::<Vec<PathBuf>>("CULVERT_DISCOVERY_DIRECTORY");
        let status_directory = raw.optional::<PathBuf>("CULVERT_DISCOVERY_STATUS_DIR");
        let jwks_file = raw.value("CULVERT_DISCOVERY_JWKS_FILE");
        let node_accounts = raw.value_with("CULVERT_DISCOVERY_NODE_ACCOUNTS", accounts);
        let address = raw.value("CULVERT_CA_ADDRESS");
        let server_name = raw.value("CULVERT_CA_SERVER_NAME");
        let root_file = raw.value("CULVERT_CA_ROOT_FILE");
        let token_file = raw.value("CULVERT_CA_TOKEN_FILE");
        if let (Some(directories), Some(Some(status))) = (&directories, &status_directory)
            && directories
                .iter()
                .any(|directory| is_below(status, directory))
        {
            // Our own writing would be read as objects.
            let fault = "lies inside CULVERT_DISCOVERY_DIRECTORY".to_owned();
            raw.fault("CULVERT_DISCOVERY_STATUS_DIR", fault);
        }
        raw.finish(|| {
            let process = process?;
            let trust_domain = trust_domain?;
            let identity = Identity::new(&trust_domain, ROOT_NAMESPACE, SERVICE_ACCOUNT).ok()?;
            Some(Self {
                settings: Settings {
                    trust_domain,
                    cluster_id: Arc::from(process.cluster_id.as_str()),
                    cluster_domain: Arc::from(process.cluster_domain.as_str()),
                    root_namespace: ROOT_NAMESPACE.into(),
                },
                listen: listen?,
                directories: directories?,
                status_directory: status_directory?,
                jwks_file: jwks_file?,
                node_accounts: node_accounts?,
                ca: CaConfig {
                    address: address?,
                    server_name: server_name?,
                    root_file: root_file?,
                    token_file: token_file?,
                    cluster_id: process.cluster_id.clone(),
                    identity,
                },
                process,
                effective,
            })
        })
    }
}

fn is_below(path: &Path, directory: &Path) -> bool {
    path.starts_with(directory)
}

fn accounts(text: &str) -> Result<BTreeSet<Account>, String> {
    let accounts = text
        .split(',')
        .map(|pair| match pair.trim().split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Account {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err(format!("{pair:?} is not of the form namespace/account")),
        });
    accounts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(extra: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let base = [
            ("CULVERT_DISCOVERY_DIRECTORY", "/a:/b"),
            ("CULVERT_DISCOVERY_JWKS_FILE", "/jwks"),
            ("CULVERT_CA_ADDRESS", "ca:15012"),
            ("CULVERT_CA_ROOT_FILE", "/root"),
            ("CULVERT_CA_TOKEN_FILE", "/token"),
        ];
        let all = base.iter().chain(extra);
        Config::read(all.map(|(key, value)| (OsString::from(key), OsString::from(value))))
    }

    #[test]
    fn the_least_that_must_be_set_is_enough() {
        let config = read(&[]).unwrap();
        assert_eq!(config.directories, [Path::new("/a"), Path::new("/b")]);
        assert_eq!(
            config.ca.identity.uri(),
            "spiffe://cluster.local/ns/culvert-system/sa/culvert-discovery"
        );
        assert_eq!(config.node_accounts.len(), 1);
    }

    #[test]
    fn faults_come_together() {
        let error = read(&[
            ("CULVERT_DISCOVERY_NODE_ACCOUNTS", "nobody"),
            ("CULVERT_DISCOVERY_STATUS_DIR", "/a/status"),
            ("CULVERT_DISCOVERY_DIRECTROY", "/c"),
        ])
        .unwrap_err()
        .to_string();
        for part in ["NODE_ACCOUNTS", "lies inside", "DIRECTROY"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
