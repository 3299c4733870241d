use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::*;

const TABLE: &[Variable] = &[
    Variable::required("CULVERT_NODE_NAME", "a node name", "this node"),
    Variable::with_default("CULVERT_WORKERS", "a number from 1", "2", "worker threads"),
    Variable::optional(
        "CULVERT_ACCESS_LOG_FILE",
        "a path",
        "where the access log goes",
    ),
    Variable::with_default("CULVERT_DNS", "true|false", "true", "answer DNS"),
    Variable::with_default("CULVERT_TTL", "a duration such as 24h", "24h", "lifetime"),
];

fn read(environment: &[(&'static str, &'static str)]) -> RawConfig {
    RawConfig::read(&[TABLE, PROCESS], environment.iter().copied())
}

#[derive(Debug)]
struct Config {
    node: String,
    workers: NonZeroUsize,
    file: Option<PathBuf>,
    dns: bool,
    ttl: Duration,
    process: ProcessConfig,
}

fn config(mut raw: RawConfig) -> Result<Config, ConfigError> {
    let node = raw.value("CULVERT_NODE_NAME");
    let workers = raw.value("CULVERT_WORKERS");
    let file = raw.optional("CULVERT_ACCESS_LOG_FILE");
    let dns = raw.value("CULVERT_DNS");
    let ttl = raw.value("CULVERT_TTL");
    let process = ProcessConfig::read(&mut raw);
    raw.finish(|| {
        let (node, workers, file) = (node?, workers?, file?);
        Some(Config {
            node,
            workers,
            file,
            dns: dns?,
            ttl: ttl?,
            process: process?,
        })
    })
}

#[test]
fn all_faults_come_together_with_name_value_and_form() {
    let raw = read(&[
        ("CULVERT_WORKERS", "0"),
        ("CULVERT_WROKERS", "4"),
        ("CULVERT_DNS", "yes"),
        ("CULVERT_TTL", "1 fortnight"),
        ("CULVERT_LOG", "a=b=c"),
        ("CULVERT_ADMIN_ADDRESS", "localhost"),
        ("PATH", "/bin"),
    ]);
    let error = config(raw).expect_err("full of faults").to_string();
    for expected in [
        "configuration has 7 fault(s)",
        "CULVERT_WORKERS: `0` is not valid, expected a number from 1",
        "CULVERT_WROKERS: unknown variable",
        "CULVERT_DNS: `yes` is not valid, expected true|false",
        "CULVERT_TTL: `1 fortnight` is not valid",
        "CULVERT_LOG: `a=b=c` is not valid, expected a level",
        "CULVERT_ADMIN_ADDRESS: `localhost` is not valid, expected address:port",
        "CULVERT_NODE_NAME: is required, expected a node name",
    ] {
        assert!(error.contains(expected), "`{expected}` is not in\n{error}");
    }
}

#[test]
fn defaults_hold_and_optional_values_may_be_left_out() {
    let config = config(read(&[("CULVERT_NODE_NAME", "node-1")])).expect("a good configuration");
    assert_eq!(config.node, "node-1");
    assert_eq!(config.workers.get(), 2);
    assert_eq!(config.file, None);
    assert!(config.dns);
    assert_eq!(config.ttl, Duration::from_secs(24 * 3600));
    let admin: SocketAddr = "127.0.0.1:15000".parse().expect("an address");
    assert_eq!(config.process.admin.admin_address, admin);
    assert_eq!(config.process.trust_domain, "cluster.local");
}

#[test]
fn the_effective_configuration_shows_values_defaults_and_gaps() {
    let raw = read(&[("CULVERT_NODE_NAME", "node-1"), ("CULVERT_WORKERS", "3")]);
    assert!(raw.is_set("CULVERT_WORKERS") && !raw.is_set("CULVERT_DNS"));
    let effective = raw.effective();
    assert_eq!(effective["CULVERT_WORKERS"], "3");
    assert_eq!(effective["CULVERT_DNS"], "true");
    assert!(effective["CULVERT_ACCESS_LOG_FILE"].is_null());
}

#[test]
fn faults_across_variables_stop_the_start_too() {
    let mut raw = read(&[("CULVERT_NODE_NAME", "node-1")]);
    raw.fault(
        "CULVERT_CA_ADDRESS",
        "is required unless static certificates are given".to_owned(),
    );
    let error = config(raw).expect_err("a noted fault");
    assert!(
        error
            .to_string()
            .contains("CULVERT_CA_ADDRESS: is required unless")
    );
}

#[test]
fn lists_and_paths_parse() {
    assert_eq!(
        Vec::<PathBuf>::parse("/a:/b"),
        Ok(vec!["/a".into(), "/b".into()])
    );
    assert!(Vec::<PathBuf>::parse("/a:").is_err());
    assert_eq!(
        Vec::<String>::parse("a, b,"),
        Ok(vec!["a".to_owned(), "b".to_owned()])
    );
    assert_eq!(Vec::<String>::parse(""), Ok(Vec::new()));
    assert!(Duration::parse("0s").is_err());
}

#[test]
fn the_table_prints_as_markdown() {
    let text = markdown(&TABLE[..3]);
    assert!(text.contains("| `CULVERT_NODE_NAME` | a node name | required | this node |"));
    assert!(text.contains("| `CULVERT_WORKERS` | a number from 1 | `2` | worker threads |"));
    assert!(text.contains("| `CULVERT_ACCESS_LOG_FILE` | a path | not set |"));
}
