//! Static configuration.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use culvert_identity::TrustDomain;
use culvert_runtime::config::{ConfigError, PROCESS, ProcessConfig, RawConfig, Variable};

/// The variables of the CA, besides those that every program has.
pub const VARIABLES: &[Variable] = &[
    Variable::with_default(
        "CULVERT_CA_LISTEN",
        "address:port",
        "[::]:15012",
        "where certificates are asked for",
    ),
    Variable::required(
        "CULVERT_CA_STATE_DIR",
        "a directory of mode 0700",
        "where root, intermediate and the progress of a rotation are kept",
    ),
    Variable::required(
        "CULVERT_CA_JWKS_FILE",
        "a path",
        "public keys of the issuer of service-account tokens (JWKS)",
    ),
    Variable::required(
        "CULVERT_CA_OBJECTS_DIR",
        "a directory",
        "Kubernetes objects in JSON; Pod/ and Node/ say which pods a node may ask for",
    ),
    Variable::with_default(
        "CULVERT_CA_NODE_ACCOUNTS",
        "namespace/account pairs joined by commas",
        "culvert-system/culvert-node-proxy",
        "service accounts that may ask for the identities of pods on their node",
    ),
    Variable::optional(
        "CULVERT_CA_BUNDLE_FILE",
        "a path",
        "where the root bundle is published",
    ),
    Variable::with_default(
        "CULVERT_CA_TTL",
        "a duration such as 24h",
        "24h",
        "lifetime of a certificate when the request names none",
    ),
    Variable::optional(
        "CULVERT_CA_TTL_MAX",
        "a duration such as 24h",
        "longest lifetime of a certificate; the larger of CULVERT_CA_TTL and 24h when not set",
    ),
    Variable::optional(
        "CULVERT_CA_ROTATION_WAIT",
        "a duration such as 24h",
        "from publishing a new root until it signs; CULVERT_CA_TTL_MAX when not set",
    ),
    Variable::with_default(
        "CULVERT_CA_SERVER_NAMES",
        "DNS names joined by commas",
        "culvert-ca.culvert-system.svc",
        "names in the CA's own server certificate",
    ),
];

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Longer than this, and "short-lived" is no longer true: there is no
/// revocation besides expiry.
const TTL_LIMIT: Duration = Duration::from_secs(90 * 24 * 3600);

/// A service account, by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// How long things last.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// A leaf, when the request names no lifetime.
    pub leaf: Duration,
    /// The longest-lived leaf.
    pub leaf_max: Duration,
    /// From publishing a new root until it signs.
    pub rotation_wait: Duration,
    /// A new intermediate.
    pub intermediate: Duration,
    /// A new root.
    pub root: Duration,
}

/// The configuration, ready to use.
#[derive(Debug)]
pub struct Config {
    /// What every program has.
    pub process: ProcessConfig,
    /// The trust domain of every certificate.
    pub trust_domain: TrustDomain,
    /// Where certificates are asked for.
    pub listen: SocketAddr,
    /// Where the authority's state is kept.
    pub state_directory: PathBuf,
    /// Public keys of the token issuer.
    pub jwks_file: PathBuf,
    /// Kubernetes objects.
    pub objects_directory: PathBuf,
    /// Who may ask for the identities of pods on its node.
    pub node_accounts: BTreeSet<Account>,
    /// Where the root bundle is published.
    pub bundle_file: Option<PathBuf>,
    /// How long things last.
    pub lifetimes: Lifetimes,
    /// Names in the server certificate.
    pub server_names: Vec<String>,
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
        let listen = raw.value("CULVERT_CA_LISTEN");
        let state_directory = raw.value("CULVERT_CA_STATE_DIR");
        let jwks_file = raw.value("CULVERT_CA_JWKS_FILE");
        let objects_directory = raw.value("CULVERT_CA_OBJECTS_DIR");
        let node_accounts = raw.value_with("CULVERT_CA_NODE_ACCOUNTS", accounts);
        let bundle_file = raw.optional("CULVERT_CA_BUNDLE_FILE");
        let lifetimes = lifetimes(&mut raw);
        let server_names = raw.value_with("CULVERT_CA_SERVER_NAMES", names);
        raw.finish(|| {
            Some(Self {
                process: process?,
                trust_domain: trust_domain?,
                listen: listen?,
                state_directory: state_directory?,
                jwks_file: jwks_file?,
                objects_directory: objects_directory?,
                node_accounts: node_accounts?,
                bundle_file: bundle_file?,
                lifetimes: lifetimes?,
                server_names: server_names?,
                effective,
            })
        })
    }
}

impl Lifetimes {
    /// Intermediates live well over three leaves, roots for ten years.
    #[must_use]
    pub fn of_leaves(leaf: Duration, leaf_max: Duration, rotation_wait: Duration) -> Self {
        Self {
            leaf,
            leaf_max,
            rotation_wait,
            intermediate: (90 * DAY).max(6 * leaf_max),
            root: 3650 * DAY,
        }
    }
}

fn lifetimes(raw: &mut RawConfig) -> Option<Lifetimes> {
    let leaf: Option<Duration> = raw.value("CULVERT_CA_TTL");
    let leaf_max: Option<Option<Duration>> = raw.optional("CULVERT_CA_TTL_MAX");
    let wait: Option<Option<Duration>> = raw.optional("CULVERT_CA_ROTATION_WAIT");
    let leaf = leaf?;
    let leaf_max = leaf_max?.unwrap_or(leaf.max(DAY));
    if leaf > leaf_max {
        let text = "is longer than CULVERT_CA_TTL_MAX".to_owned();
        raw.fault("CULVERT_CA_TTL", text);
    }
    if leaf_max > TTL_LIMIT {
        raw.fault("CULVERT_CA_TTL_MAX", "is longer than 90 days".to_owned());
    }
    let wait = wait?.unwrap_or(leaf_max);
    Some(Lifetimes::of_leaves(leaf, leaf_max, wait))
}

fn accounts(text: &str) -> Result<BTreeSet<Account>, String> {
    let words = text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    words
        .map(|word| match word.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Account {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(format!("`{word}` is not namespace/account")),
        })
        .collect()
}

fn names(text: &str) -> Result<Vec<String>, String> {
    let words = text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let names: Vec<_> = words.map(str::to_owned).collect();
    if names.is_empty() {
        return Err("no name".to_owned());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let mut environment = vec![
            ("CULVERT_CA_STATE_DIR", "/var/lib/culvert"),
            ("CULVERT_CA_JWKS_FILE", "/run/jwks.json"),
            ("CULVERT_CA_OBJECTS_DIR", "/run/objects"),
        ];
        environment.extend(more);
        let pairs = environment.into_iter().map(|(k, v)| (k.into(), v.into()));
        Config::read(pairs)
    }

    #[test]
    fn faults_come_together() {
        let error = read(&[
            ("CULVERT_CA_NODE_ACCOUNTS", "a/b,node-proxy"),
            ("CULVERT_CA_TTL", "48h"),
            ("CULVERT_CA_TTL_MAX", "2h"),
            ("CULVERT_TRUST_DOMAIN", "Not A Domain"),
            ("CULVERT_CA_LISTEN", "15012"),
            ("CULVERT_CA_SERVER_NAMES", " , "),
            ("CULVERT_CA_TLT", "1h"),
        ]);
        let error = error.unwrap_err().to_string();
        for expected in [
            "CULVERT_CA_NODE_ACCOUNTS",
            "`node-proxy` is not namespace/account",
            "CULVERT_CA_TTL: is longer than CULVERT_CA_TTL_MAX",
            "CULVERT_TRUST_DOMAIN",
            "CULVERT_CA_LISTEN",
            "CULVERT_CA_SERVER_NAMES",
            "CULVERT_CA_TLT: unknown variable",
        ] {
            assert!(error.contains(expected), "{expected} is not in\n{error}");
        }
    }

    #[test]
    fn defaults_hold() {
        let config = read(&[]).unwrap();
        assert_eq!(config.lifetimes.leaf, DAY);
        assert_eq!(config.lifetimes.leaf_max, DAY);
        assert_eq!(config.lifetimes.rotation_wait, DAY);
        assert_eq!(config.node_accounts.len(), 1);
        let config = read(&[("CULVERT_CA_TTL", "48h")]).unwrap();
        assert_eq!(config.lifetimes.leaf_max, 2 * DAY);
        let config = read(&[("CULVERT_CA_TTL", "1m"), ("CULVERT_CA_TTL_MAX", "2m")]).unwrap();
        assert_eq!(config.lifetimes.leaf_max.as_secs(), 120);
        assert!(config.lifetimes.intermediate >= 3 * config.lifetimes.leaf_max);
    }
}
