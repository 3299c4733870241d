//! Programs of the mesh by the names people use, and what they answer.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use culvert_netns::Netns;
use http::Method;
use serde_json::Value;

use crate::admin::{self, Response};
use crate::client::Client;
use crate::engine::components::plan::{admin_port, metrics_port};
use crate::engine::network::addresses::Names;
use crate::state::StateDir;

/// A program of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its full name: `culvert-node-proxy/node-1`.
    pub component: String,
    /// Name of its network namespace.
    netns: String,
}

impl Target {
    /// `node-proxy/NODE`, `cni/NODE`, `discovery` or `ca`.
    pub(crate) fn parse(typed: &str, state: &StateDir) -> Result<Self> {
        let names = Names::new(state.mesh());
        let short = typed.strip_prefix("culvert-").unwrap_or(typed);
        let (program, node) = short
            .split_once('/')
            .map_or((short, None), |(one, node)| (one, Some(node)));
        let netns = match (program, node) {
            ("node-proxy" | "cni", Some(node)) if !node.is_empty() => names.node(node),
            ("discovery" | "ca", None) => names.net(),
            _ => bail!("{typed:?}: expected node-proxy/NODE, cni/NODE, discovery or ca"),
        };
        Ok(Self {
            component: format!("culvert-{short}"),
            netns,
        })
    }

    /// The node proxy of a node.
    pub(crate) fn node_proxy(node: &str, state: &StateDir) -> Self {
        Self {
            component: format!("culvert-node-proxy/{node}"),
            netns: Names::new(state.mesh()).node(node),
        }
    }

    /// Asks its admin port.
    pub(crate) async fn admin(&self, method: Method, path: &str) -> Result<Response> {
        let port = admin_port(&self.component).context("no admin port")?;
        self.ask(port, method, path).await
    }

    /// Its metrics as text.
    pub(crate) async fn metrics(&self) -> Result<String> {
        let port = metrics_port(&self.component).context("no metrics port")?;
        let response = self.ask(port, Method::GET, "/metrics").await?;
        Ok(String::from_utf8_lossy(&response.body).into_owned())
    }

    /// Its effective configuration and all that it works with.
    pub(crate) async fn dump(&self) -> Result<Value> {
        let mut response = self.admin_raw("/config_dump").await?;
        if response.status == http::StatusCode::NOT_FOUND {
            // Programs without a view of the mesh have their configuration only.
            response = self.admin_raw("/config").await?;
        }
        if !response.is_success() {
            bail!(
                "{} answered {}: {}",
                self.component,
                response.status,
                response.text()
            );
        }
        serde_json::from_slice(&response.body)
            .with_context(|| format!("answer of {}", self.component))
    }

    async fn admin_raw(&self, path: &str) -> Result<Response> {
        let port = admin_port(&self.component).context("no admin port")?;
        self.request(port, Method::GET, path).await
    }

    async fn ask(&self, port: u16, method: Method, path: &str) -> Result<Response> {
        let response = self.request(port, method, path).await?;
        if !response.is_success() {
            bail!(
                "{} answered {}: {}",
                self.component,
                response.status,
                response.text()
            );
        }
        Ok(response)
    }

    async fn request(&self, port: u16, method: Method, path: &str) -> Result<Response> {
        let netns = Netns::open_named(&self.netns)
            .with_context(|| format!("{} is not running here", self.component))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        admin::request(&netns, address, method, path)
            .await
            .with_context(|| format!("cannot ask {}", self.component))
    }
}

/// Names of all nodes.
pub(crate) async fn nodes(client: &Client) -> Result<Vec<String>> {
    let nodes = client.objects("Node", None).await?;
    Ok(nodes
        .iter()
        .map(|node| crate::engine::object::name(node).to_owned())
        .collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn targets() {
        let state = StateDir::new(Path::new("/run/culvert"), "t").expect("state");
        let check = |typed: &str, expect: Option<(&str, &str)>| {
            let found = Target::parse(typed, &state).ok();
            let found = found
                .as_ref()
                .map(|one| (one.component.as_str(), one.netns.as_str()));
            assert_eq!(found, expect, "{typed}");
        };
        check(
            "node-proxy/node-1",
            Some(("culvert-node-proxy/node-1", "cv-t-node-1")),
        );
        check("culvert-ca", Some(("culvert-ca", "cv-t-net")));
        check("node-proxy", None);
        check("ca/node-1", None);
        check("web", None);
    }
}
