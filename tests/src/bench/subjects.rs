//! Who talks to whom in each subject, and which processes carry it.

use anyhow::{Context, Result};
use culvert_netns::{Netns, write_sysctl};
use serde::Serialize;

use crate::harness::certificates::{Signer, identity};
use crate::harness::command::Running;
use crate::harness::envoy::{self, ClientEnd};
use crate::harness::mesh::{LIMIT, Mesh, Part};
use crate::harness::processes::Process;
use crate::harness::wait::wait_until;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Pods that are not in the mesh.
    Direct,
    /// Through the tunnel, two nodes.
    Culvert,
    /// Both pods on one node.
    CulvertSameNode,
    /// Two Envoys with the same kind of tunnel.
    EnvoyPair,
}

impl Subject {
    /// All but the direct way.
    pub const PROXIED: [Self; 3] = [Self::Culvert, Self::CulvertSameNode, Self::EnvoyPair];

    /// The pod that the client program runs in.
    #[must_use]
    pub fn client(self) -> &'static str {
        match self {
            Self::Direct => "client.direct",
            Self::Culvert | Self::CulvertSameNode => "client.mesh",
            Self::EnvoyPair => "client-envoy.direct",
        }
    }

    fn server(self) -> &'static str {
        match self {
            Self::Direct => "server.direct",
            Self::Culvert => "server.mesh",
            Self::CulvertSameNode => "near.mesh",
            Self::EnvoyPair => "server-envoy.direct",
        }
    }
}

/// Where iperf3 listens.
pub(crate) const BULK_PORT: u16 = 7000;
/// The ports of the three servers; Envoy has one listener a port.
pub(crate) const PORTS: [u16; 3] = [8080, BULK_PORT, 9000];
const ENVOY_OFFSET: u16 = 10_000;

/// Addresses and processes of all subjects.
#[derive(Debug)]
pub(crate) struct Places {
    servers: Vec<(Subject, String)>,
    proxies: [Process; 2],
    envoys: Vec<Running>,
}

impl Places {
    pub(crate) fn new(mesh: &Mesh, with_envoy: bool) -> Result<Self> {
        let address = |subject: Subject| -> Result<(Subject, String)> {
            Ok((
                subject,
                mesh.pod(subject.server())?.address(false)?.to_owned(),
            ))
        };
        let all = [
            Subject::Direct,
            Subject::Culvert,
            Subject::CulvertSameNode,
            Subject::EnvoyPair,
        ];
        let servers = all.into_iter().map(address).collect::<Result<Vec<_>>>()?;
        let proxies = [
            mesh.process(Part::NodeProxy("node-1"))?,
            mesh.process(Part::NodeProxy("node-2"))?,
        ];
        let mut places = Self {
            servers,
            proxies,
            envoys: Vec::new(),
        };
        for subject in all {
            reuse_ports(mesh, subject.client())?;
        }
        if with_envoy {
            places.envoys = start_envoys(mesh, places.address(Subject::EnvoyPair)?)?;
        }
        Ok(places)
    }

    fn address(&self, subject: Subject) -> Result<&str> {
        let (_, address) = self
            .servers
            .iter()
            .find(|(known, _)| *known == subject)
            .context("every subject has a server")?;
        Ok(address)
    }

    /// Host and port at which the client finds a server's port.
    pub(crate) fn target(&self, subject: Subject, port: u16) -> Result<(String, u16)> {
        Ok(match subject {
            Subject::EnvoyPair => ("127.0.0.1".to_owned(), port + ENVOY_OFFSET),
            _ => (self.address(subject)?.to_owned(), port),
        })
    }

    /// Starts the node proxies anew, so that memory is measured from a fresh one:
    /// they are killed, and come back.
    pub(crate) fn restart_proxies(&mut self, mesh: &Mesh) -> Result<()> {
        for (number, proxy) in self.proxies.iter_mut().enumerate() {
            let node = format!("node-{}", number + 1);
            let dead = mesh.kill(Part::NodeProxy(&node))?;
            *proxy = mesh.wait_returned(Part::NodeProxy(&node), &dead)?;
        }
        wait_until("traffic through the new node proxies", LIMIT, || {
            let target = format!("{}:9000", self.address(Subject::Culvert)?);
            let said = mesh.testkit(Subject::Culvert.client(), &["talk", &target])?;
            Ok(said.status.success())
        })
    }

    /// The processes that carry the subject's bytes, one a side.
    pub(crate) fn carriers(&self, subject: Subject) -> Vec<Process> {
        match subject {
            Subject::Direct => Vec::new(),
            Subject::Culvert => self.proxies.to_vec(),
            Subject::CulvertSameNode => vec![self.proxies[0].clone()],
            Subject::EnvoyPair => {
                let ids = self
                    .envoys
                    .iter()
                    .filter_map(|envoy| i32::try_from(envoy.id()).ok());
                ids.filter_map(Process::read).collect()
            }
        }
    }
}

/// A client of thousands of connections a second would run out of ports, since
/// each stays in TIME-WAIT for a minute, and wrk never ends once it could not
/// connect.
fn reuse_ports(mesh: &Mesh, client: &str) -> Result<()> {
    let name = mesh.pod_netns(&mesh.pod(client)?);
    let netns = Netns::open_named(&name).with_context(|| name.clone())?;
    netns
        .run(|| {
            write_sysctl("net.ipv4.ip_local_port_range", "16384 65000")?;
            write_sysctl("net.ipv4.tcp_tw_reuse", "1")
        })?
        .with_context(|| format!("ports of {client}"))
}

fn start_envoys(mesh: &Mesh, server: &str) -> Result<Vec<Running>> {
    let signer = Signer::of_mesh(mesh)?;
    let work = mesh.manifests().work()?;
    let client_files = signer.pem_files(&identity("direct", "client")?, &work)?;
    let server_id = identity("direct", "server")?;
    let server_files = signer.pem_files(&server_id, &work)?;
    let ends: Vec<(u16, String)> = PORTS
        .iter()
        .map(|port| (*port, format!("{server}:{port}")))
        .collect();
    let clients: Vec<ClientEnd<'_>> = ends
        .iter()
        .map(|(port, authority)| ClientEnd {
            listen: port + ENVOY_OFFSET,
            tunnel: server,
            authority,
            server: server_id.uri(),
        })
        .collect();
    let near = mesh.pod_netns(&mesh.pod(Subject::EnvoyPair.client())?);
    let far = mesh.pod_netns(&mesh.pod(Subject::EnvoyPair.server())?);
    let far_end = envoy::server(&PORTS, &server_files);
    let far_end = envoy::start(&far, &far_end, &work, "envoy-server")?;
    let near_end = envoy::start(
        &near,
        &envoy::client(&clients, &client_files),
        &work,
        "envoy-client",
    )?;
    wait_until("the pair of Envoys", LIMIT, || {
        let target = format!("127.0.0.1:{}", 9000 + ENVOY_OFFSET);
        let said = mesh.testkit(
            Subject::EnvoyPair.client(),
            &["talk", &target, "--limit", "5"],
        )?;
        Ok(said.status.success())
    })?;
    Ok(vec![near_end, far_end])
}
