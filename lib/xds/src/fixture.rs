//! A discovery server on a loopback port, for the tests of client and server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_model::{Policy, Service, Workload};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint, Server};

use crate::client::BoxError;
use crate::encode;
use crate::resource::{ClientView, Resource};
use crate::server::{
    Authenticator, ClientNode, DiscoveryServer, Publisher, ServerLimits, bearer_token,
};
use crate::session::{Node, Rejection};

/// 20 s: never reached unless something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn node() -> Node {
    Node {
        ip: [10, 0, 0, 1].into(),
        name: "proxy-1".to_owned(),
        namespace: "culvert-system".to_owned(),
        node_name: "node-1".to_owned(),
        cluster_id: "Kubernetes".to_owned(),
        metadata: [].into(),
    }
}

/// Takes the token `good`, and nothing else.
pub(crate) struct OneToken;

impl Authenticator for OneToken {
    type Caller = String;

    async fn authenticate(&self, metadata: &MetadataMap) -> Result<String, Status> {
        match bearer_token(metadata)? {
            "good" => Ok("caller".to_owned()),
            _ => Err(Status::unauthenticated("not this one")),
        }
    }
}

/// Publishes what it is told to, to every node but `node-x`, and notes what happens.
pub(crate) struct Board {
    view: Mutex<ClientView>,
    changes: watch::Sender<u64>,
    notes: watch::Sender<Vec<String>>,
}

impl Board {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            view: Mutex::default(),
            changes: watch::Sender::new(0),
            notes: watch::Sender::new(Vec::new()),
        })
    }

    pub(crate) fn publish(&self, addresses: Vec<Resource>, policies: Vec<Resource>) {
        let set =
            |resources: Vec<Resource>| Arc::new(resources.into_iter().map(Arc::new).collect());
        let view = ClientView {
            addresses: set(addresses),
            authorizations: set(policies),
            egress_authorizations: Arc::default(),
        };
        *self.view.lock().expect("no panic before") = view;
        self.changes.send_modify(|count| *count += 1);
    }

    fn note(&self, text: String) {
        self.notes.send_modify(|notes| notes.push(text));
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    pub(crate) async fn noted(&self, text: &str) {
        let mut notes = self.notes.subscribe();
        let found = notes.wait_for(|notes| notes.iter().any(|note| note.contains(text)));
        let found = tokio::time::timeout(PATIENCE, found).await;
        assert!(found.is_ok(), "{text:?} is not in {:?}", self.notes());
    }
}

impl Publisher for Board {
    type Caller = String;

    fn admit(&self, client: &ClientNode<String>) -> Result<(), Status> {
        if client.node_name() == "node-x" {
            return Err(Status::permission_denied("not this node"));
        }
        Ok(())
    }

    fn view(&self, _client: &ClientNode<String>) -> ClientView {
        self.view.lock().expect("no panic before").clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn connected(&self, client: &ClientNode<String>) {
        let ClientNode { caller, .. } = client;
        self.note(format!("connected {} as {caller}", client.node_name()));
    }

    fn disconnected(&self, client: &ClientNode<String>) {
        self.note(format!("disconnected {}", client.node_name()));
    }

    fn pushed(&self, _client: &ClientNode<String>, type_url: &str, resources: usize) {
        let kind = type_url.rsplit('.').next().unwrap_or_default();
        self.note(format!("pushed {resources} of {kind}"));
    }

    fn rejected(&self, _client: &ClientNode<String>, _type_url: &str, rejection: &Rejection) {
        self.note(format!(
            "rejected {}: {}",
            rejection.resource, rejection.reason
        ));
    }
}

/// A port, and who serves on it.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
}

pub(crate) async fn listen() -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    Listening { address, listener }
}

impl Listening {
    /// Serves until `stop` becomes true.
    pub(crate) async fn serve(
        self,
        board: Arc<Board>,
        limits: ServerLimits,
        stop: watch::Receiver<bool>,
    ) {
        let mut stopped = stop.clone();
        let service = DiscoveryServer::new(OneToken, board, limits, stop).into_service();
        let served = Server::builder()
            .add_service(service)
            .serve_with_incoming_shutdown(TcpListenerStream::new(self.listener), async move {
                stopped
                    .wait_for(|stop| *stop)
                    .await
                    .expect("the sender lives");
            })
            .await;
        served.expect("a clean end");
    }
}

pub(crate) async fn channel(address: SocketAddr) -> Result<Channel, BoxError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(endpoint.connect().await?)
}

pub(crate) fn service(name: &str, canonical: bool) -> Resource {
    let mut service = Service::new(name.parse().expect(name), "s");
    service.canonical = canonical;
    encode::service_resource(&service)
}

pub(crate) fn workload(name: &str) -> Resource {
    let identity = "spiffe://td/ns/a/sa/x".parse().expect("valid");
    encode::workload_resource(&Workload::new(name.into(), "w", identity))
}

pub(crate) fn policy(name: &str) -> Resource {
    use culvert_model::{Action, Scope};
    let name = name.parse().expect(name);
    encode::policy_resource(&Policy::new(
        name,
        Scope::Namespace,
        Action::Deny,
        Vec::new(),
    ))
}

pub(crate) fn unreadable(name: &str) -> Resource {
    Resource::new(name, vec![0xff], Vec::new())
}
