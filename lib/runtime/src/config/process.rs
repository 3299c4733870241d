//! The variables that every program has.

use std::time::Duration;

use super::{RawConfig, Variable};
use crate::admin::AdminConfig;
use crate::logging::{LogFormat, check_level};

/// The variables that every program has.
pub const PROCESS: &[Variable] = &[
    Variable::with_default(
        "CULVERT_LOG",
        "a level (error|warn|info|debug|trace), or target=level pairs joined by commas",
        "info",
        "log level at start; POST /logging?level= changes it while the program runs",
    ),
    Variable::with_default(
        "CULVERT_LOG_FORMAT",
        "text|json",
        "text",
        "form of log lines",
    ),
    Variable::with_default(
        "CULVERT_ADMIN_ADDRESS",
        "address:port",
        "127.0.0.1:15000",
        "admin port; keep it on loopback, it can stop the program",
    ),
    Variable::with_default(
        "CULVERT_METRICS_ADDRESS",
        "address:port",
        "[::]:15020",
        "metrics port (/metrics, /stats/prometheus)",
    ),
    Variable::with_default(
        "CULVERT_READY_ADDRESS",
        "address:port",
        "[::]:15021",
        "readiness port (/healthz/ready)",
    ),
    Variable::with_default(
        "CULVERT_TRUST_DOMAIN",
        "a trust domain",
        "cluster.local",
        "trust domain of every identity of this mesh",
    ),
    Variable::with_default(
        "CULVERT_CLUSTER_ID",
        "a name",
        "Kubernetes",
        "name of this cluster in identities of workloads and in metrics",
    ),
    Variable::with_default(
        "CULVERT_CLUSTER_DOMAIN",
        "a DNS domain",
        "cluster.local",
        "domain under which services have names",
    ),
    Variable::with_default(
        "CULVERT_DRAIN_DEADLINE",
        "a duration such as 30s",
        "30s",
        "how long open work may take to finish after SIGTERM",
    ),
];

/// The values of [`PROCESS`].
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// Log level at start.
    pub log_level: String,
    /// Form of log lines.
    pub log_format: LogFormat,
    /// The three ports.
    pub admin: AdminConfig,
    /// Trust domain, not parsed: `culvert_identity::TrustDomain` does.
    pub trust_domain: String,
    /// Name of the cluster.
    pub cluster_id: String,
    /// DNS domain of services.
    pub cluster_domain: String,
    /// How long the drain may take.
    pub drain_deadline: Duration,
}

impl ProcessConfig {
    /// Reads the values; `None` means that a fault was noted.
    pub fn read(raw: &mut RawConfig) -> Option<Self> {
        // Every value is read before any `?`, so that all faults are found.
        let log_level = raw.value_with("CULVERT_LOG", |level| {
            check_level(level)
                .map(|()| level.to_owned())
                .map_err(|_| String::new())
        });
        let log_format = raw.value("CULVERT_LOG_FORMAT");
        let admin_address = raw.value("CULVERT_ADMIN_ADDRESS");
        let metrics_address = raw.value("CULVERT_METRICS_ADDRESS");
        let ready_address = raw.value("CULVERT_READY_ADDRESS");
        let trust_domain = raw.value("CULVERT_TRUST_DOMAIN");
        let cluster_id = raw.value("CULVERT_CLUSTER_ID");
        let cluster_domain = raw.value("CULVERT_CLUSTER_DOMAIN");
        let drain_deadline = raw.value("CULVERT_DRAIN_DEADLINE");
        Some(Self {
            log_level: log_level?,
            log_format: log_format?,
            admin: AdminConfig {
                admin_address: admin_address?,
                metrics_address: metrics_address?,
                ready_address: ready_address?,
            },
            trust_domain: trust_domain?,
            cluster_id: cluster_id?,
            cluster_domain: cluster_domain?,
            drain_deadline: drain_deadline?,
        })
    }
}
