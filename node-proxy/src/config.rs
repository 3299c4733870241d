//! Static configuration, from `CULVERT_*` variables.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use culvert_identity::TrustDomain;
use culvert_runtime::config::{PROCESS, ProcessConfig, RawConfig, Variable};

use crate::access_log::Format;

/// The variables of the node proxy, besides those of every program.
pub const VARIABLES: &[Variable] = &[
    Variable::optional(
        "CULVERT_NODE_NAME",
        "a node's name",
        "name of this node; required with discovery",
    ),
    Variable::optional(
        "CULVERT_ZDS_SOCKET",
        "a path",
        "the CNI agent's socket for pods; required without CULVERT_STATIC_PODS",
    ),
    Variable::optional(
        "CULVERT_KEEPER_SOCKET",
        "a path",
        "the CNI agent's socket for listeners; without it connections are refused while no node \
         proxy runs",
    ),
    Variable::optional(
        "CULVERT_DISCOVERY_ADDRESS",
        "host:port",
        "where discovery is; required without CULVERT_STATIC_STATE",
    ),
    Variable::with_default(
        "CULVERT_DISCOVERY_SERVER_NAME",
        "a DNS name",
        "culvert-discovery.culvert-system.svc",
        "the name that discovery's certificate must have",
    ),
    Variable::optional(
        "CULVERT_DISCOVERY_ROOT_FILE",
        "a path",
        "PEM bundle to verify discovery with; required with discovery",
    ),
    Variable::optional(
        "CULVERT_DISCOVERY_TOKEN_FILE",
        "a path",
        "service-account token for discovery; required with discovery",
    ),
    Variable::optional(
        "CULVERT_CA_ADDRESS",
        "host:port",
        "where the CA is; required without CULVERT_STATIC_CERTIFICATES",
    ),
    Variable::with_default(
        "CULVERT_CA_SERVER_NAME",
        "a DNS name",
        "culvert-ca.culvert-system.svc",
        "the name that the CA's certificate must have",
    ),
    Variable::optional(
        "CULVERT_CA_ROOT_FILE",
        "a path",
        "PEM bundle to verify the CA with, also trusted for tunnels; required with a CA",
    ),
    Variable::optional(
        "CULVERT_CA_TOKEN_FILE",
        "a path",
        "service-account token for the CA; required with a CA",
    ),
    Variable::optional(
        "CULVERT_WORKERS",
        "a number from 1 to 256",
        "threads for traffic; half of the machine's cores, rounded up, when it is not set",
    ),
    Variable::with_default(
        "CULVERT_DNS",
        "true|false",
        "true",
        "answer the names of the mesh",
    ),
    Variable::with_default(
        "CULVERT_DNS_RESOLV_CONF",
        "a path",
        "/etc/resolv.conf",
        "servers that all other names are asked of",
    ),
    Variable::with_default(
        "CULVERT_ACCESS_LOG",
        "off|text|json",
        "text",
        "form of the access log",
    ),
    Variable::optional(
        "CULVERT_ACCESS_LOG_FILE",
        "a path",
        "access log; standard output if not set",
    ),
    Variable::with_default(
        "CULVERT_NETWORK",
        "a name",
        "",
        "network of this node's pods",
    ),
    Variable::optional(
        "CULVERT_STATIC_STATE",
        "a path",
        "YAML file of workloads, services and policies in place of discovery",
    ),
    Variable::optional(
        "CULVERT_STATIC_CERTIFICATES",
        "a directory",
        "<namespace>.<service account>.{crt,key} and ca.crt in place of the CA",
    ),
    Variable::optional(
        "CULVERT_STATIC_PODS",
        "a path",
        "YAML list of pods (uid, name, namespace, serviceAccount, netns) in place of the CNI agent",
    ),
];

/// More threads than this only contend.
const WORKERS_MAX: usize = 256;

/// The configuration, ready to use.
#[derive(Debug, Clone)]
pub struct Config {
    /// What every program has.
    pub process: ProcessConfig,
    /// The mesh's trust domain.
    pub trust_domain: TrustDomain,
    /// This node.
    pub node: String,
    /// The network of this node's pods.
    pub network: String,
    /// Where the mesh's state comes from.
    pub state: StateSource,
    /// Where certificates come from.
    pub certificates: CertificateSource,
    /// Where pods come from.
    pub pods: PodSource,
    /// Threads for traffic.
    pub workers: NonZeroUsize,
    /// None when names are not answered; else the file of other servers.
    pub dns: Option<PathBuf>,
    /// Form of the access log.
    pub access_log: Format,
    /// Its file; standard output when there is none.
    pub access_log_file: Option<PathBuf>,
}

/// A server of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPlane {
    /// `host:port`.
    pub address: String,
    /// The name that it must prove.
    pub server_name: String,
    /// Roots to verify it with.
    pub root_file: PathBuf,
    /// Our token for it.
    pub token_file: PathBuf,
}

/// Where the mesh's state comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateSource {
    /// A file.
    File(PathBuf),
    /// Discovery.
    Discovery(ControlPlane),
}

/// Where certificates come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// A directory.
    Directory(PathBuf),
    /// The CA.
    Ca(ControlPlane),
}

/// Where pods come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSource {
    /// A file.
    File(PathBuf),
    /// The CNI agent.
    Agent {
        /// Its socket for pods.
        zds: PathBuf,
        /// Its socket for listeners.
        keeper: Option<PathBuf>,
    },
}

impl Config {
    /// An environment as typed by the user, with the variables of this program.
    pub fn raw<N, V>(environment: impl IntoIterator<Item = (N, V)>) -> RawConfig
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        RawConfig::read(&[PROCESS, VARIABLES], environment)
    }

    /// Reads all values; faults are noted in `raw`, and come out of its end.
    pub fn read(raw: &mut RawConfig) -> Option<Self> {
        // Every value is read before any `?`, so that all faults are found.
        let process = ProcessConfig::read(raw);
        let trust_domain = process
            .as_ref()
            .and_then(|process| trust_domain(raw, process));
        let state = state_source(raw);
        let needs_node = !matches!(state, Some(StateSource::File(_)));
        let node = raw.optional::<String>("CULVERT_NODE_NAME").flatten();
        if needs_node && node.is_none() {
            missing(raw, "CULVERT_NODE_NAME", "with discovery");
        }
        let certificates = certificate_source(raw);
        let pods = pod_source(raw);
        let workers = raw.optional_with("CULVERT_WORKERS", workers);
        let dns = raw.value::<bool>("CULVERT_DNS");
        let resolv_conf = raw.value::<PathBuf>("CULVERT_DNS_RESOLV_CONF");
        let access_log = raw.value_with("CULVERT_ACCESS_LOG", |text| {
            text.parse::<Format>().map_err(|_| String::new())
        });
        let access_log_file = raw.optional("CULVERT_ACCESS_LOG_FILE");
        let network = raw.value("CULVERT_NETWORK");
        Some(Self {
            process: process?,
            trust_domain: trust_domain?,
            node: node.unwrap_or_default(),
            network: network?,
            state: state?,
            certificates: certificates?,
            pods: pods?,
            workers: workers?.unwrap_or_else(default_workers),
            dns: dns?.then_some(resolv_conf?),
            access_log: access_log?,
            access_log_file: access_log_file?,
        })
    }
}

fn trust_domain(raw: &mut RawConfig, process: &ProcessConfig) -> Option<TrustDomain> {
    match process.trust_domain.parse() {
        Ok(domain) => Some(domain),
        Err(error) => {
            let text = format!("`{}` is not valid ({error})", process.trust_domain);
            raw.fault("CULVERT_TRUST_DOMAIN", text);
            None
        }
    }
}

fn state_source(raw: &mut RawConfig) -> Option<StateSource> {
    match raw.optional("CULVERT_STATIC_STATE")? {
        Some(file) => Some(StateSource::File(file)),
        None => control_plane(raw, &DISCOVERY).map(StateSource::Discovery),
    }
}

fn certificate_source(raw: &mut RawConfig) -> Option<CertificateSource> {
    match raw.optional("CULVERT_STATIC_CERTIFICATES")? {
        Some(directory) => Some(CertificateSource::Directory(directory)),
        None => control_plane(raw, &CA).map(CertificateSource::Ca),
    }
}

fn pod_source(raw: &mut RawConfig) -> Option<PodSource> {
    let keeper = raw.optional("CULVERT_KEEPER_SOCKET");
    if let Some(file) = raw.optional("CULVERT_STATIC_PODS")? {
        return Some(PodSource::File(file));
    }
    let zds = raw.optional("CULVERT_ZDS_SOCKET")?;
    if zds.is_none() {
        missing(raw, "CULVERT_ZDS_SOCKET", "without CULVERT_STATIC_PODS");
    }
    Some(PodSource::Agent {
        zds: zds?,
        keeper: keeper?,
    })
}

/// The variables of one server of the control plane.
struct Names {
    when: &'static str,
    address: &'static str,
    server_name: &'static str,
    root_file: &'static str,
    token_file: &'static str,
}

const DISCOVERY: Names = Names {
    when: "without CULVERT_STATIC_STATE",
    address: "CULVERT_DISCOVERY_ADDRESS",
    server_name: "CULVERT_DISCOVERY_SERVER_NAME",
    root_file: "CULVERT_DISCOVERY_ROOT_FILE",
    token_file: "CULVERT_DISCOVERY_TOKEN_FILE",
};

const CA: Names = Names {
    when: "without CULVERT_STATIC_CERTIFICATES",
    address: "CULVERT_CA_ADDRESS",
    server_name: "CULVERT_CA_SERVER_NAME",
    root_file: "CULVERT_CA_ROOT_FILE",
    token_file: "CULVERT_CA_TOKEN_FILE",
};

fn control_plane(raw: &mut RawConfig, names: &Names) -> Option<ControlPlane> {
    let address = raw.optional_with(names.address, host_and_port);
    let server_name = raw.value(names.server_name);
    let root_file = raw.optional(names.root_file);
    let token_file = raw.optional(names.token_file);
    let mut needed = |name, is_missing: bool| {
        if is_missing {
            missing(raw, name, names.when);
        }
    };
    needed(names.address, matches!(address, Some(None)));
    needed(names.root_file, matches!(root_file, Some(None)));
    needed(names.token_file, matches!(token_file, Some(None)));
    Some(ControlPlane {
        address: address??,
        server_name: server_name?,
        root_file: root_file??,
        token_file: token_file??,
    })
}

fn missing(raw: &mut RawConfig, name: &'static str, when: &str) {
    raw.fault(name, format!("is required {when}"));
}

fn host_and_port(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(_)) => Ok(text.to_owned()),
        _ => Err(String::new()),
    }
}

fn workers(text: &str) -> Result<NonZeroUsize, String> {
    let number: NonZeroUsize = text.parse().map_err(|_| String::new())?;
    if number.get() <= WORKERS_MAX {
        Ok(number)
    } else {
        Err("too many".to_owned())
    }
}

/// Half of the cores: the other half is the applications'.
fn default_workers() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(cores.div_ceil(2).min(WORKERS_MAX)).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(environment: &[(&str, &str)]) -> Result<Config, String> {
        let mut raw = Config::raw(environment.iter().copied());
        let config = Config::read(&mut raw);
        raw.finish(|| config).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_environment_names_all_that_is_missing() {
        let error = read(&[]).expect_err("much is missing");
        for name in [
            "CULVERT_NODE_NAME",
            "CULVERT_ZDS_SOCKET",
            "CULVERT_DISCOVERY_ADDRESS",
            "CULVERT_DISCOVERY_ROOT_FILE",
            "CULVERT_DISCOVERY_TOKEN_FILE",
            "CULVERT_CA_ADDRESS",
            "CULVERT_CA_ROOT_FILE",
            "CULVERT_CA_TOKEN_FILE",
        ] {
            assert!(
                error.contains(&format!("{name}: is required")),
                "{name}: {error}"
            );
        }
        assert_eq!(error.lines().count(), 9, "{error}");
    }

    #[test]
    fn values_that_cannot_be_are_faults() {
        let error = read(&[
            ("CULVERT_STATIC_STATE", "s"),
            ("CULVERT_STATIC_CERTIFICATES", "c"),
            ("CULVERT_STATIC_PODS", "p"),
            ("CULVERT_WORKERS", "0"),
            ("CULVERT_DNS", "maybe"),
            ("CULVERT_ACCESS_LOG", "xml"),
            ("CULVERT_TRUST_DOMAIN", "not a domain"),
            ("CULVERT_NOSUCH", "x"),
        ])
        .expect_err("five faults");
        assert_eq!(error.lines().count(), 6, "{error}");
        let error = read(&[("CULVERT_CA_ADDRESS", "nowhere")]).expect_err("no port");
        assert!(error.contains("`nowhere` is not valid"), "{error}");
    }

    #[test]
    fn files_take_the_place_of_the_control_plane() {
        let config = read(&[
            ("CULVERT_STATIC_STATE", "s"),
            ("CULVERT_STATIC_CERTIFICATES", "c"),
            ("CULVERT_STATIC_PODS", "p"),
            ("CULVERT_DNS", "false"),
        ])
        .expect("enough");
        assert_eq!(config.state, StateSource::File("s".into()));
        assert_eq!(config.pods, PodSource::File("p".into()));
        assert_eq!((config.dns, config.access_log), (None, Format::Text));
    }
}
