//! Envoy as the other end of the tunnel: HTTP/2 CONNECT over mutual TLS 1.3 with
//! certificates of the mesh's CA.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use culvert_netns::Netns;
use serde_json::{Value, json};

use super::binaries;
use super::certificates::PemFiles;
use super::command::{self, Running};

const TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3";
const NETWORK: &str = "type.googleapis.com/envoy.extensions.filters.network";

/// A client: what connects to `listen` comes out at `authority`, through a
/// tunnel to `tunnel` (an address of the server, port 15008).
#[derive(Debug, Clone)]
pub struct ClientEnd<'a> {
    /// Port on loopback.
    pub listen: u16,
    /// Address of the tunnel port.
    pub tunnel: &'a str,
    /// The `:authority` of the CONNECT.
    pub authority: &'a str,
    /// The identity that the server must have.
    pub server: &'a str,
}

/// Configuration of client ends.
#[must_use]
pub fn client(ends: &[ClientEnd<'_>], files: &PemFiles) -> Value {
    let listeners: Vec<Value> = ends.iter().map(client_listener).collect();
    let clusters: Vec<Value> = ends.iter().map(|end| client_cluster(end, files)).collect();
    json!({"static_resources": {"listeners": listeners, "clusters": clusters}})
}

fn client_listener(end: &ClientEnd<'_>) -> Value {
    json!({
        "name": format!("in-{}", end.listen),
        "address": address("127.0.0.1", end.listen),
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": format!("{NETWORK}.tcp_proxy.v3.TcpProxy"),
                "stat_prefix": "in",
                "cluster": format!("tunnel-{}", end.listen),
                "tunneling_config": {"hostname": end.authority},
            },
        }]}],
    })
}

fn client_cluster(end: &ClientEnd<'_>, files: &PemFiles) -> Value {
    let name = format!("tunnel-{}", end.listen);
    let mut tls = tls(files, "UpstreamTlsContext");
    tls["typed_config"]["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"] =
        json!([{"san_type": "URI", "matcher": {"exact": end.server}}]);
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            },
        },
        "circuit_breakers": {"thresholds": [
            {"max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000},
        ]},
        "load_assignment": assignment(&name, end.tunnel, 15008),
        "transport_socket": tls,
    })
}

/// Configuration of the server end: a CONNECT leads to its port on loopback.
#[must_use]
pub fn server(ports: &[u16], files: &PemFiles) -> Value {
    let routes: Vec<Value> = ports.iter().map(|port| server_route(*port)).collect();
    let clusters: Vec<Value> = ports.iter().map(|port| server_cluster(*port)).collect();
    let mut tls = tls(files, "DownstreamTlsContext");
    tls["typed_config"]["require_client_certificate"] = json!(true);
    let connect = json!({"upgrade_type": "CONNECT"});
    json!({"static_resources": {
        "listeners": [{
            "name": "tunnel",
            "address": address("0.0.0.0", 15008),
            "filter_chains": [{"transport_socket": tls, "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": format!("{NETWORK}.http_connection_manager.v3.HttpConnectionManager"),
                    "stat_prefix": "tunnel",
                    "codec_type": "HTTP2",
                    "http2_protocol_options": {"allow_connect": true},
                    "upgrade_configs": [connect],
                    "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    }}],
                    "route_config": {"virtual_hosts": [
                        {"name": "all", "domains": ["*"], "routes": routes},
                    ]},
                },
            }]}],
        }],
        "clusters": clusters,
    }})
}

fn server_route(port: u16) -> Value {
    let authority = json!({"name": ":authority", "string_match": {"suffix": format!(":{port}")}});
    json!({
        "match": {"connect_matcher": {}, "headers": [authority]},
        "route": {"cluster": format!("port-{port}"), "timeout": "0s", "upgrade_configs": [
            {"upgrade_type": "CONNECT", "connect_config": {}},
        ]},
    })
}

fn server_cluster(port: u16) -> Value {
    let name = format!("port-{port}");
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [
            {"max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000},
        ]},
        "load_assignment": assignment(&name, "127.0.0.1", port),
    })
}

fn address(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}

fn assignment(cluster: &str, host: &str, port: u16) -> Value {
    let endpoint = json!({"endpoint": {"address": address(host, port)}});
    json!({"cluster_name": cluster, "endpoints": [{"lb_endpoints": [endpoint]}]})
}

fn tls(files: &PemFiles, kind: &str) -> Value {
    json!({"name": "envoy.transport_sockets.tls", "typed_config": {
        "@type": format!("{TLS}.{kind}"),
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_3",
                "tls_maximum_protocol_version": "TLSv1_3",
            },
            "tls_certificates": [{
                "certificate_chain": {"filename": files.chain},
                "private_key": {"filename": files.key},
            }],
            "validation_context": {"trusted_ca": {"filename": files.roots}},
        },
    }})
}

/// Starts Envoy with one worker inside a network namespace. It is killed when
/// the result is dropped.
///
/// # Errors
/// When it is not installed or cannot be started.
pub fn start(namespace: &str, configuration: &Value, work: &Path, name: &str) -> Result<Running> {
    let program = binaries::tool("envoy")?;
    let file = work.join(format!("{name}.json"));
    std::fs::write(&file, configuration.to_string()).with_context(|| file.display().to_string())?;
    let netns = Netns::open_named(namespace).with_context(|| namespace.to_owned())?;
    // A child starts in the network namespace of the thread that made it.
    netns.run(|| {
        command::start(
            Command::new(&program)
                .arg("--config-path")
                .arg(&file)
                .args([
                    "--concurrency",
                    "1",
                    "--log-level",
                    "warn",
                    "--disable-hot-restart",
                ]),
        )
    })?
}
