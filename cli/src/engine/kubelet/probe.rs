//! Probes, made from the node's namespace as a kubelet makes them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use culvert_netns::Netns;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Command;

use crate::engine::controllers::endpoints::container_port;
use crate::engine::object::{list, number, text};

/// A probe as its container asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    /// What to try.
    pub action: Action,
    /// Before the first try.
    pub delay: Duration,
    /// Between tries.
    pub period: Duration,
    /// For one try.
    pub timeout: Duration,
    /// Successes in a row that turn it to good.
    pub successes: u32,
    /// Failures in a row that turn it to bad.
    pub failures: u32,
}

/// What a probe tries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// A command in the container.
    Exec(Vec<String>),
    /// A request.
    Http {
        /// Host, if not the pod.
        host: Option<String>,
        /// Port.
        port: u16,
        /// Path and query.
        path: String,
        /// Headers.
        headers: Vec<(String, String)>,
    },
    /// A connection.
    Tcp {
        /// Host, if not the pod.
        host: Option<String>,
        /// Port.
        port: u16,
    },
}

impl Probe {
    /// The probe in a field of a container.
    ///
    /// # Errors
    /// Names what is missing.
    pub(crate) fn read(
        pod: &Value,
        container: &Value,
        field: &str,
    ) -> Result<Option<Self>, String> {
        let Some(probe) = container.get(field) else {
            return Ok(None);
        };
        let seconds =
            |key: &str, default: u64| Duration::from_secs(number(probe, key).unwrap_or(default));
        let count = |key: &str, default: u32| {
            number(probe, key)
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(default)
                .max(1)
        };
        Ok(Some(Self {
            action: action(pod, probe).map_err(|why| format!("{field}: {why}"))?,
            delay: seconds("/initialDelaySeconds", 0),
            period: seconds("/periodSeconds", 10).max(Duration::from_secs(1)),
            timeout: seconds("/timeoutSeconds", 1).max(Duration::from_secs(1)),
            successes: count("/successThreshold", 1),
            failures: count("/failureThreshold", 3),
        }))
    }
}

fn action(pod: &Value, probe: &Value) -> Result<Action, String> {
    if let Some(exec) = probe.get("exec") {
        let command: Vec<_> = list(exec, "/command")
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        return if command.is_empty() {
            Err("exec.command: empty".to_owned())
        } else {
            Ok(Action::Exec(command))
        };
    }
    let host = |at: &Value| text(at, "/host").map(str::to_owned);
    if let Some(get) = probe.get("httpGet") {
        let port = port(pod, get)?;
        if text(get, "/scheme") == Some("HTTPS") {
            // The certificate would not be checked anyway: that someone listens counts.
            return Ok(Action::Tcp {
                host: host(get),
                port,
            });
        }
        let headers = list(get, "/httpHeaders").iter().filter_map(|header| {
            Some((
                text(header, "/name")?.to_owned(),
                text(header, "/value")?.to_owned(),
            ))
        });
        let path = text(get, "/path").unwrap_or("/");
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        return Ok(Action::Http {
            host: host(get),
            port,
            path,
            headers: headers.collect(),
        });
    }
    if let Some(socket) = probe.get("tcpSocket").or_else(|| probe.get("grpc")) {
        return Ok(Action::Tcp {
            host: host(socket),
            port: port(pod, socket)?,
        });
    }
    Err("expected exec, httpGet, tcpSocket or grpc".to_owned())
}

fn port(pod: &Value, at: &Value) -> Result<u16, String> {
    let found = match at.get("port") {
        Some(Value::String(wanted)) => wanted
            .parse()
            .ok()
            .or_else(|| container_port(pod, wanted, None)),
        Some(number) => number.as_u64(),
        None => None,
    };
    found
        .and_then(|port| u16::try_from(port).ok())
        .ok_or_else(|| {
            format!(
                "port: {} is no port of the pod",
                at.get("port").unwrap_or(&Value::Null)
            )
        })
}

/// Where probes are made from and to.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The node's namespace.
    pub node: Netns,
    /// The pod's address.
    pub address: Option<IpAddr>,
    /// This program, and the run specification of the container.
    pub run: (PathBuf, PathBuf),
}

/// Tries once; the error says why it failed.
pub(crate) async fn attempt(probe: &Probe, target: &Target) -> Result<(), String> {
    let tried = async {
        match &probe.action {
            Action::Exec(command) => exec(target, command).await,
            Action::Tcp { host, port } => connect(target, host.as_deref(), *port).await.map(drop),
            Action::Http {
                host,
                port,
                path,
                headers,
            } => {
                let stream = connect(target, host.as_deref(), *port).await?;
                let authority = match (host, target.address) {
                    (Some(host), _) => format!("{host}:{port}"),
                    (None, Some(address)) => SocketAddr::new(address, *port).to_string(),
                    (None, None) => return Err("the pod has no address".to_owned()),
                };
                get(stream, &authority, path, headers).await
            }
        }
    };
    tokio::time::timeout(probe.timeout, tried)
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", probe.timeout.as_secs())))
}

async fn exec(target: &Target, command: &[String]) -> Result<(), String> {
    let (program, spec) = &target.run;
    let status = Command::new(program)
        .arg("run")
        .arg(spec)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the command ended with {status}"))
    }
}

async fn connect(target: &Target, host: Option<&str>, port: u16) -> Result<TcpStream, String> {
    let address = match host {
        Some(host) => Some(
            host.parse()
                .map_err(|_| format!("host {host:?}: expected an address"))?,
        ),
        None => target.address,
    };
    let address = SocketAddr::new(address.ok_or("the pod has no address")?, port);
    let open = move || {
        if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }
    };
    let node = target.node.clone();
    // A socket belongs to the namespace in which it is opened, for good.
    let socket = tokio::task::spawn_blocking(move || node.run(open))
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    socket
        .connect(address)
        .await
        .map_err(|error| format!("connect to {address}: {error}"))
}

async fn get(
    stream: TcpStream,
    authority: &str,
    path: &str,
    headers: &[(String, String)],
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| text(&error))?;
    let mut request = http::Request::get(path)
        .header("user-agent", "culvert-probe")
        .header("accept", "*/*");
    let own_host = headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"));
    if !own_host {
        request = request.header("host", authority);
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request
        .body(Empty::<hyper::body::Bytes>::new())
        .map_err(|error| text(&error))?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| text(&error))?;
        let status = response.status();
        // Read a little of the body so that the server is not reset while it writes.
        let _ = response.into_body().frame().await;
        if status.is_success() || status.is_redirection() {
            Ok(())
        } else {
            Err(format!("status {status}"))
        }
    };
    tokio::select! {
        result = exchange => result,
        // The connection's end alone is no answer; let the exchange say what it saw.
        _ = connection => Err("the connection ended before an answer".to_owned()),
    }
}

/// Counts answers in a row.
#[derive(Debug, Default)]
pub(crate) struct Streak {
    good: u32,
    bad: u32,
}

impl Streak {
    /// Takes one answer; answers with the state that it turns the probe to.
    pub(crate) fn take(&mut self, probe: &Probe, good: bool) -> Option<bool> {
        if good {
            self.bad = 0;
            self.good = self.good.saturating_add(1);
            (self.good >= probe.successes).then_some(true)
        } else {
            self.good = 0;
            self.bad = self.bad.saturating_add(1);
            (self.bad >= probe.failures).then_some(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(probe: &Value) -> Result<Option<Probe>, String> {
        let pod =
            json!({"spec": {"containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]}});
        Probe::read(&pod, &json!({"readinessProbe": probe}), "readinessProbe")
    }

    #[test]
    fn named_ports_and_defaults() {
        let probe = read(&json!({"httpGet": {"port": "web", "path": "x"}}))
            .expect("good")
            .expect("one");
        let Action::Http { port, path, .. } = &probe.action else {
            panic!("{probe:?}")
        };
        assert_eq!((*port, path.as_str()), (8080, "/x"));
        assert_eq!(
            (
                probe.period.as_secs(),
                probe.timeout.as_secs(),
                probe.failures
            ),
            (10, 1, 3)
        );
    }

    #[test]
    fn faults_are_named() {
        let error = read(&json!({"tcpSocket": {"port": "nope"}})).expect_err("bad");
        assert!(error.contains("readinessProbe: port: \"nope\""), "{error}");
        assert!(read(&json!({"x": {}})).is_err());
        assert!(read(&json!({"exec": {"command": []}})).is_err());
    }

    #[test]
    fn thresholds() {
        let probe =
            read(&json!({"tcpSocket": {"port": 1}, "failureThreshold": 2, "successThreshold": 2}));
        let probe = probe.expect("good").expect("one");
        let mut streak = Streak::default();
        assert_eq!(streak.take(&probe, true), None);
        assert_eq!(streak.take(&probe, true), Some(true));
        assert_eq!(streak.take(&probe, false), None);
        assert_eq!(streak.take(&probe, true), None, "the row is broken");
        assert_eq!(streak.take(&probe, false), None);
        assert_eq!(streak.take(&probe, false), Some(false));
    }
}
