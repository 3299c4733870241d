//! Which programs run, where, with which environment. Pure.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::engine::network::addresses::{CONTROL_V4, Names};
use crate::engine::settings::Settings;
use crate::state::StateDir;

/// A program to keep running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Component {
    /// Its name: of its log, and in reports.
    pub name: String,
    /// Name of the network namespace.
    pub netns: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Its environment.
    pub environment: Vec<(String, String)>,
    /// Where it says whether it is ready.
    pub ready_at: SocketAddr,
    /// A file that must be there before it starts.
    pub needs: Option<PathBuf>,
}

/// Ports of one program: admin, metrics, readiness.
#[derive(Debug, Clone, Copy)]
struct Ports {
    admin: u16,
    metrics: u16,
    ready: u16,
}

const CA_PORTS: Ports = Ports {
    admin: 15100,
    metrics: 15120,
    ready: 15121,
};
const DISCOVERY_PORTS: Ports = Ports {
    admin: 15200,
    metrics: 15220,
    ready: 15221,
};
const DNS_READY: u16 = 15321;
const NODE_PROXY_PORTS: Ports = Ports {
    admin: 15000,
    metrics: 15020,
    ready: 15021,
};
/// The agent shares the node's namespace with the node proxy.
const AGENT_PORTS: Ports = Ports {
    admin: 15400,
    metrics: 15420,
    ready: 15421,
};

/// Port of a program's admin endpoint.
pub(crate) fn admin_port(component: &str) -> Option<u16> {
    match component.split('/').next()? {
        "culvert-ca" => Some(CA_PORTS.admin),
        "culvert-discovery" => Some(DISCOVERY_PORTS.admin),
        "culvert-node-proxy" => Some(NODE_PROXY_PORTS.admin),
        "culvert-cni" => Some(AGENT_PORTS.admin),
        _ => None,
    }
}

/// Port of a program's metrics.
pub(crate) fn metrics_port(component: &str) -> Option<u16> {
    match component.split('/').next()? {
        "culvert-ca" => Some(CA_PORTS.metrics),
        "culvert-discovery" => Some(DISCOVERY_PORTS.metrics),
        "culvert-node-proxy" => Some(NODE_PROXY_PORTS.metrics),
        "culvert-cni" => Some(AGENT_PORTS.metrics),
        _ => None,
    }
}

/// What the plan is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// What was asked for.
    pub settings: &'a Settings,
    /// The state directory.
    pub state: &'a StateDir,
    /// Names of namespaces.
    pub names: &'a Names,
    /// This program.
    pub program: &'a str,
    /// Name servers outside, if there is a way out.
    pub forward: &'a [String],
}

/// All programs of a cluster.
pub(crate) fn components(inputs: Inputs<'_>) -> Vec<Component> {
    let mut all = vec![inputs.dns()];
    if inputs.settings.mesh_enabled {
        all.push(inputs.ca());
        all.push(inputs.discovery());
        for node in 1..=inputs.settings.nodes {
            let node = format!("node-{node}");
            all.push(inputs.agent(&node));
            all.push(inputs.node_proxy(&node));
        }
    }
    all
}

impl Inputs<'_> {
    fn binary(&self, name: &str) -> String {
        self.settings.bin_dir.join(name).display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.state.path(name).display().to_string()
    }

    fn common(&self, ports: Ports) -> Vec<(String, String)> {
        let level = self.settings.value("logLevel").unwrap_or("info");
        let pairs = [
            ("CULVERT_LOG", level.to_owned()),
            ("CULVERT_LOG_FORMAT", "text".to_owned()),
            (
                "CULVERT_ADMIN_ADDRESS",
                format!("127.0.0.1:{}", ports.admin),
            ),
            ("CULVERT_METRICS_ADDRESS", format!("[::]:{}", ports.metrics)),
            ("CULVERT_READY_ADDRESS", format!("[::]:{}", ports.ready)),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).to_vec()
    }

    fn ca(&self) -> Component {
        let mut environment = self.common(CA_PORTS);
        let mut set = |key: &str, value: String| environment.push((key.to_owned(), value));
        set("CULVERT_CA_LISTEN", "[::]:15012".to_owned());
        set("CULVERT_CA_STATE_DIR", self.path("ca"));
        set("CULVERT_CA_JWKS_FILE", self.path("jwks.json"));
        set("CULVERT_CA_OBJECTS_DIR", self.path("objects"));
        set("CULVERT_CA_BUNDLE_FILE", self.path("root-cert.pem"));
        if let Some(lifetime) = self.settings.value("certificateTtl") {
            set("CULVERT_CA_TTL", lifetime.to_owned());
        }
        Component {
            name: "culvert-ca".to_owned(),
            netns: self.names.net(),
            command: vec![self.binary("culvert-ca")],
            environment,
            ready_at: ([127, 0, 0, 1], CA_PORTS.ready).into(),
            needs: None,
        }
    }

    fn ca_access(&self, token: String) -> Vec<(String, String)> {
        let pairs = [
            ("CULVERT_CA_ADDRESS", format!("{CONTROL_V4}:15012")),
            (
                "CULVERT_CA_SERVER_NAME",
                "culvert-ca.culvert-system.svc".to_owned(),
            ),
            ("CULVERT_CA_ROOT_FILE", self.path("root-cert.pem")),
            ("CULVERT_CA_TOKEN_FILE", token),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).to_vec()
    }

    fn discovery(&self) -> Component {
        let mut environment = self.common(DISCOVERY_PORTS);
        environment.extend(self.ca_access(self.path("tokens/discovery.ca.token")));
        let mut set = |key: &str, value: String| environment.push((key.to_owned(), value));
        set("CULVERT_DISCOVERY_LISTEN", "[::]:15010".to_owned());
        set("CULVERT_DISCOVERY_DIRECTORY", self.path("objects"));
        set("CULVERT_DISCOVERY_STATUS_DIR", self.path("status"));
        set("CULVERT_DISCOVERY_JWKS_FILE", self.path("jwks.json"));
        Component {
            name: "culvert-discovery".to_owned(),
            netns: self.names.net(),
            command: vec![self.binary("culvert-discovery")],
            environment,
            ready_at: ([127, 0, 0, 1], DISCOVERY_PORTS.ready).into(),
            needs: Some(self.state.path("root-cert.pem")),
        }
    }

    fn agent(&self, node: &str) -> Component {
        let directory = self.state.node(node);
        let mut environment = self.common(AGENT_PORTS);
        let mut set = |key: &str, value: String| environment.push((key.to_owned(), value));
        set("CULVERT_NODE_NAME", node.to_owned());
        set("CULVERT_CNI_RUN_DIR", directory.display().to_string());
        set("CULVERT_CNI_OBJECTS_DIR", self.path("objects"));
        set("CULVERT_CNI_STATUS_DIR", directory.display().to_string());
        Component {
            name: format!("culvert-cni/{node}"),
            netns: self.names.node(node),
            command: vec![self.binary("culvert-cni"), "agent".to_owned()],
            environment,
            ready_at: ([127, 0, 0, 1], AGENT_PORTS.ready).into(),
            needs: None,
        }
    }

    fn node_proxy(&self, node: &str) -> Component {
        let directory = self.state.node(node);
        let file = |name: &str| directory.join(name).display().to_string();
        let mut environment = self.common(NODE_PROXY_PORTS);
        environment.extend(self.ca_access(file("tokens/ca.token")));
        let mut set = |key: &str, value: String| environment.push((key.to_owned(), value));
        set("CULVERT_NODE_NAME", node.to_owned());
        set("CULVERT_ZDS_SOCKET", file("zds.sock"));
        set("CULVERT_KEEPER_SOCKET", file("keeper.sock"));
        set("CULVERT_DISCOVERY_ADDRESS", format!("{CONTROL_V4}:15010"));
        set(
            "CULVERT_DISCOVERY_SERVER_NAME",
            "culvert-discovery.culvert-system.svc".to_owned(),
        );
        set("CULVERT_DISCOVERY_ROOT_FILE", self.path("root-cert.pem"));
        set(
            "CULVERT_DISCOVERY_TOKEN_FILE",
            file("tokens/discovery.token"),
        );
        set("CULVERT_DNS_RESOLV_CONF", file("resolv.conf"));
        set(
            "CULVERT_ACCESS_LOG",
            self.settings
                .value("accessLog")
                .unwrap_or("text")
                .to_owned(),
        );
        set("CULVERT_ACCESS_LOG_FILE", file("access.log"));
        if let Some(workers) = self.settings.value("workers") {
            set("CULVERT_WORKERS", workers.to_owned());
        }
        Component {
            name: format!("culvert-node-proxy/{node}"),
            netns: self.names.node(node),
            command: vec![self.binary("culvert-node-proxy")],
            environment,
            ready_at: ([127, 0, 0, 1], NODE_PROXY_PORTS.ready).into(),
            needs: Some(self.state.path("root-cert.pem")),
        }
    }

    fn dns(&self) -> Component {
        let mut command = vec![
            self.program.to_owned(),
            "dns".to_owned(),
            "--objects".to_owned(),
            self.path("objects"),
        ];
        command.extend(["--ready".to_owned(), format!("127.0.0.1:{DNS_READY}")]);
        for server in self.forward {
            command.extend(["--forward".to_owned(), server.clone()]);
        }
        Component {
            name: "culvert-dns".to_owned(),
            netns: self.names.net(),
            command,
            environment: Vec::new(),
            ready_at: ([127, 0, 0, 1], DNS_READY).into(),
            needs: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    use super::*;

    fn settings(mesh_enabled: bool) -> Settings {
        Settings {
            directory: "/dir".into(),
            nodes: 2,
            mesh_enabled,
            egress: false,
            bin_dir: "/bin".into(),
            search_path: String::new(),
            images: BTreeMap::new(),
            values: BTreeMap::new(),
        }
    }

    fn plan(mesh_enabled: bool) -> Vec<Component> {
        let state = StateDir::new(Path::new("/run/culvert"), "t").expect("state");
        let (settings, names) = (settings(mesh_enabled), Names::new("t"));
        components(Inputs {
            settings: &settings,
            state: &state,
            names: &names,
            program: "/bin/culvert",
            forward: &[],
        })
    }

    #[test]
    fn without_the_mesh_only_dns_runs() {
        let names: Vec<_> = plan(false).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["culvert-dns"]);
    }

    #[test]
    fn no_two_programs_of_a_namespace_share_a_port() {
        let all = plan(true);
        assert_eq!(all.len(), 7);
        let mut seen = BTreeSet::new();
        for component in &all {
            let ports = component.environment.iter().filter(|(key, _)| {
                ["ADMIN_ADDRESS", "METRICS_ADDRESS", "READY_ADDRESS"]
                    .iter()
                    .any(|end| key.ends_with(end))
            });
            for (_, address) in ports {
                let port = address.rsplit(':').next().unwrap_or_default().to_owned();
                assert!(
                    seen.insert((component.netns.clone(), port)),
                    "{address} twice"
                );
            }
        }
    }
}
