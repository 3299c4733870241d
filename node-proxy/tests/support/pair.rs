//! A client pod on one node and, on another, the pods of the service that it calls.

use std::net::SocketAddr;

use culvert_model::Change;
use culvert_node_proxy::pods::PodListeners;
use tokio::net::TcpStream;

use crate::mesh::*;

pub(crate) const SERVICE_PORT: u16 = 8080;
pub(crate) const APPLICATION_PORT: u16 = 9090;

pub(crate) struct Pair {
    pub(crate) near: Node,
    pub(crate) far: Node,
    pub(crate) net: [u8; 3],
    ca: Ca,
}

impl Pair {
    /// The client alone; its node can open that many files.
    pub(crate) async fn new(descriptors: u64) -> Self {
        let net = fresh_net();
        let ca = Ca::new();
        let near = Node::with_descriptors(1, descriptors);
        near.certify(ca.issue(&identity("client")));
        let pair = Self {
            near,
            far: Node::new(1),
            net,
            ca,
        };
        pair.apply(vec![
            Change::Service(service(
                "web",
                pair.vip().ip(),
                SERVICE_PORT,
                APPLICATION_PORT,
            )),
            Change::Workload(workload("client", ip(net, 1), &[])),
        ]);
        let listeners = PodListeners {
            outbound: listen(pair.vip()),
            inbound: listen(SocketAddr::new(ip(net, 1), 0)),
            tunnel: listen(SocketAddr::new(ip(net, 1), TUNNEL_PORT)),
        };
        pair.near.add_pod("client", listeners).await;
        pair
    }

    pub(crate) fn apply(&self, changes: Vec<Change>) {
        self.near.state.apply(changes.clone());
        self.far.state.apply(changes);
    }

    pub(crate) fn vip(&self) -> SocketAddr {
        SocketAddr::new(ip(self.net, 101), SERVICE_PORT)
    }

    /// Makes an endpoint known, whoever serves it.
    pub(crate) fn announce(&self, account: &str, host: u8) {
        let behind = [("web", SERVICE_PORT, APPLICATION_PORT)];
        let endpoint = workload(account, ip(self.net, host), &behind);
        self.apply(vec![Change::Workload(endpoint)]);
    }

    /// An endpoint with an application; its tunnels come in at `tunnel_port`.
    pub(crate) async fn serve(&self, account: &str, host: u8, tunnel_port: u16) {
        let at = |port| SocketAddr::new(ip(self.net, host), port);
        self.far.certify(self.ca.issue(&identity(account)));
        let listeners = PodListeners {
            outbound: listen(at(0)),
            inbound: listen(at(9191)),
            tunnel: listen(at(tunnel_port)),
        };
        self.far.add_pod(account, listeners).await;
        drop(echo(at(APPLICATION_PORT)));
        self.announce(account, host);
    }

    pub(crate) async fn dial(&self) -> TcpStream {
        connect(ip(self.net, 1), self.vip()).await
    }
}
