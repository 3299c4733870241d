//! Calls the real CNI plugin, as a container runtime does, after the engine's own
//! primary step has made the interface.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::engine::network::addresses::{GATEWAY_V4, GATEWAY_V6, INTERFACE};
use crate::engine::object::text;

/// Version of the specification that is spoken.
const CNI_VERSION: &str = "1.1.0";
/// Time for one call: the plugin waits for the node proxy's listeners, and a
/// kubelet gives up after two minutes.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// One pod's attachment.
#[derive(Debug, Clone)]
pub(crate) struct Attachment {
    /// The plugin.
    pub plugin: PathBuf,
    /// Run directory of the node's agent.
    pub run_dir: PathBuf,
    /// Id of the sandbox: the pod's unique id.
    pub container: String,
    /// Path of the pod's namespace.
    pub netns: PathBuf,
    /// Namespace and name of the pod.
    pub pod: (String, String),
    /// The pod's link-layer address.
    pub mac: String,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
}

/// The plugin did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CniError {
    /// It cannot be started.
    #[error("cannot start the CNI plugin {plugin}")]
    Start {
        /// The plugin.
        plugin: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It does not come to an end.
    #[error("the CNI plugin did not answer {0} within {seconds} s", seconds = CALL_TIMEOUT.as_secs())]
    Timeout(&'static str),
    /// It refused.
    #[error("CNI {command} failed (code {code}): {message}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The code of the specification.
        code: i64,
        /// What the plugin says.
        message: String,
    },
}

impl Attachment {
    /// Enrolls the pod if its labels say so.
    pub(crate) async fn add(&self) -> Result<(), CniError> {
        self.call("ADD").await
    }

    /// Takes the pod out.
    pub(crate) async fn del(&self) -> Result<(), CniError> {
        self.call("DEL").await
    }

    async fn call(&self, command: &'static str) -> Result<(), CniError> {
        let start = |source| CniError::Start {
            plugin: self.plugin.clone(),
            source,
        };
        let (namespace, pod) = &self.pod;
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};\
             K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={id}",
            id = self.container
        );
        let mut child = Command::new(&self.plugin)
            .env_clear()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &self.container)
            .env("CNI_NETNS", &self.netns)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_ARGS", args)
            .env("CNI_PATH", self.plugin.parent().unwrap_or(&self.plugin))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(start)?;
        let input = self.configuration().to_string();
        let call = async {
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(input.as_bytes()).await?;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(CALL_TIMEOUT, call)
            .await
            .map_err(|_| CniError::Timeout(command))?
            .map_err(start)?;
        if output.status.success() {
            return Ok(());
        }
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let spoken = [text(&answer, "/msg"), text(&answer, "/details")];
        let spoken: Vec<_> = spoken
            .into_iter()
            .flatten()
            .filter(|text| !text.is_empty())
            .collect();
        let message = if spoken.is_empty() {
            String::from_utf8_lossy(&output.stderr).trim().to_owned()
        } else {
            spoken.join(": ")
        };
        let code = answer
            .get("code")
            .and_then(Value::as_i64)
            .unwrap_or(i64::from(output.status.code().unwrap_or(-1)));
        Err(CniError::Refused {
            command,
            code,
            message,
        })
    }

    /// Configuration with the result of the primary step.
    fn configuration(&self) -> Value {
        let ips: Vec<_> = self
            .addresses
            .iter()
            .map(|address| match address {
                IpAddr::V4(_) => {
                    json!({"address": format!("{address}/32"), "gateway": GATEWAY_V4, "interface": 0})
                }
                IpAddr::V6(_) => {
                    json!({"address": format!("{address}/128"), "gateway": GATEWAY_V6, "interface": 0})
                }
            })
            .collect();
        let routes: Vec<_> = self
            .addresses
            .iter()
            .map(|address| match address {
                IpAddr::V4(_) => json!({"dst": "0.0.0.0/0", "gw": GATEWAY_V4}),
                IpAddr::V6(_) => json!({"dst": "::/0", "gw": GATEWAY_V6}),
            })
            .collect();
        json!({
            "cniVersion": CNI_VERSION,
            "name": "culvert",
            "type": "culvert-cni",
            "runDir": self.run_dir,
            "prevResult": {
                "cniVersion": CNI_VERSION,
                "interfaces": [{"name": INTERFACE, "mac": self.mac, "sandbox": self.netns}],
                "ips": ips,
                "routes": routes,
                "dns": {},
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn attachment(directory: &std::path::Path, script: &str) -> Attachment {
        let plugin = directory.join("plugin");
        std::fs::write(&plugin, format!("#!/bin/sh\n{script}\n")).expect("script");
        std::fs::set_permissions(&plugin, PermissionsExt::from_mode(0o755)).expect("mode");
        Attachment {
            plugin,
            run_dir: "/run/x".into(),
            container: "u1".to_owned(),
            netns: "/run/netns/x".into(),
            pod: ("shop".to_owned(), "web".to_owned()),
            mac: "0a:58:0a:f4:01:02".to_owned(),
            addresses: vec![
                "10.244.1.2".parse().expect("ip"),
                "fd00::2".parse().expect("ip"),
            ],
        }
    }

    #[tokio::test]
    async fn the_plugin_gets_what_the_specification_asks() {
        let directory = tempfile::tempdir().expect("directory");
        let seen = directory.path().join("seen");
        let script = format!("env > {seen}; cat >> {seen}", seen = seen.display());
        attachment(directory.path(), &script)
            .add()
            .await
            .expect("added");
        let text = std::fs::read_to_string(seen).expect("seen");
        for expect in [
            "CNI_COMMAND=ADD",
            "K8S_POD_NAME=web",
            "\"prevResult\"",
            "fd00::2/128",
        ] {
            assert!(text.contains(expect), "{expect} in {text}");
        }
    }

    #[tokio::test]
    async fn a_refusal_speaks() {
        let directory = tempfile::tempdir().expect("directory");
        let script = r#"cat >/dev/null; echo '{"code": 11, "msg": "agent not ready"}'; exit 1"#;
        let error = attachment(directory.path(), script)
            .add()
            .await
            .expect_err("refused");
        assert_eq!(
            error.to_string(),
            "CNI ADD failed (code 11): agent not ready"
        );
    }
}
