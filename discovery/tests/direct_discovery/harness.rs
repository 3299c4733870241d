//! Discovery with a CA of the test's own, and clients of it.

use std::{
    convert::Infallible,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use culvert_api::proto::{
    ca::{
        IstioCertificateRequest, IstioCertificateResponse,
        istio_certificate_service_server::{
            IstioCertificateService, IstioCertificateServiceServer,
        },
    },
    discovery::{
        DeltaDiscoveryRequest, Node as WireNode,
        aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
    },
};
use culvert_discovery::{app, config::Config};
use culvert_identity::{Identity, TrustDomain};
use culvert_model::Snapshot;
use culvert_runtime::{ConnectionTracker, Drain, LogHandle, Metrics, Process, Readiness, Tasks};
use culvert_tls::{
    ControlPlaneClient, ControlPlaneServer,
    ca::{Authority, LeafRequest, Validity, public_key_from_csr},
};
use culvert_token::{Bound, JwksReviewer, TokenIssuer, TokenRequest, TokenReviewer};
use culvert_xds::{
    client::{BoxError, Client, ClientConfig},
    session::Node,
};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
};
use tonic::{Request, Response, Status, codegen::Service as _, transport::Endpoint};

const DISCOVERY_NAME: &str = "culvert-discovery.culvert-system.svc";
const CA_NAME: &str = "culvert-ca.culvert-system.svc";
const DEADLINE: Duration = Duration::from_secs(20);

/// A running discovery.
pub(crate) struct Mesh {
    directory: tempfile::TempDir,
    issuer: TokenIssuer,
    address: String,
    roots: String,
    tracker: ConnectionTracker,
    drain: Drain,
    program: oneshot::Receiver<anyhow::Result<()>>,
}

impl Mesh {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("objects")).unwrap();
        let issuer = TokenIssuer::generate().unwrap();
        issuer.write_jwks(&path("jwks.json")).unwrap();
        let tracker = ConnectionTracker::new(1000);
        let (ca, roots) = start_ca(path("jwks.json"), &tracker).await;
        fs::write(path("root.pem"), &roots).unwrap();
        let token = token_of(&issuer, "culvert-discovery", None, "culvert-ca");
        fs::write(path("ca.token"), token).unwrap();

        let config = config(directory.path(), ca);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let drain = Drain::new(Duration::from_secs(5));
        let process = Process {
            component: "discovery",
            log: LogHandle::detached("info"),
            metrics: Metrics::new(),
            readiness: Readiness::new(),
            drain: drain.clone(),
            tasks: Tasks::new(),
        };
        let readiness = process.readiness.clone();
        let (ended, program) = oneshot::channel();
        let run = async move {
            let _ = ended.send(Box::pin(app::serve(process, config, listener)).await);
        };
        tracker.spawn(run).unwrap();
        let ready = async {
            while readiness.unmet().is_empty() {
                tokio::task::yield_now().await;
            }
            readiness.wait_ready().await;
        };
        tokio::time::timeout(DEADLINE, ready)
            .await
            .expect("ready in time");
        Self {
            directory,
            issuer,
            address,
            roots,
            tracker,
            drain,
            program,
        }
    }

    pub(crate) async fn stop(self) {
        self.drain.start("the test is over");
        let ended = tokio::time::timeout(DEADLINE, self.program).await;
        ended
            .expect("an end in time")
            .expect("no panic")
            .expect("a good end");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts a file into the directory of objects as the engine does it.
    pub(crate) fn write(&self, name: &str, yaml: &str) {
        let path = self.path(&format!("objects/{name}.yaml"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, yaml).unwrap();
        fs::rename(temporary, path).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path(&format!("objects/{name}.yaml"))).unwrap();
    }

    /// A lease that was renewed just now.
    pub(crate) fn write_lease(&self, node: &str, lasts: Duration) {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let now = i64::try_from(now.as_micros()).unwrap();
        let now = k8s_openapi::jiff::Timestamp::from_microsecond(now).unwrap();
        let seconds = lasts.as_secs();
        self.write("lease", &format!("apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: {node}, namespace: kube-node-lease}}\nspec: {{leaseDurationSeconds: {seconds}, renewTime: '{now}'}}\n"));
    }

    pub(crate) fn token(&self, account: &str, node: Option<&str>, audience: &str) -> String {
        token_of(&self.issuer, account, node, audience)
    }

    fn tls(&self) -> Arc<ControlPlaneClient> {
        Arc::new(ControlPlaneClient::from_pem(self.roots.as_bytes(), DISCOVERY_NAME).unwrap())
    }

    /// The client of a node's proxy.
    pub(crate) fn client(&self, node: &str) -> NodeClient {
        let token = self.token("culvert-node-proxy", Some(node), "culvert-discovery");
        let (address, tls) = (self.address.clone(), self.tls());
        let connector = move || {
            let (address, tls) = (address.clone(), tls.clone());
            async move { connect(&address, tls).await }
        };
        let client = Client {
            config: ClientConfig::new(wire_node(node), ""),
            connector,
            token: move || Ok::<_, BoxError>(Some(token.clone())),
            observer: (),
        };
        let (snapshots, receiver) = watch::channel(Arc::new(Snapshot::empty()));
        self.tracker.spawn(client.run(snapshots)).unwrap();
        NodeClient { receiver }
    }

    /// One call with this token: how it ends.
    pub(crate) async fn call(&self, node: &str, token: Option<String>) -> Status {
        let channel = connect(&self.address, self.tls()).await.unwrap();
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let wire = wire_node(node);
        let first = DeltaDiscoveryRequest {
            node: Some(WireNode {
                id: wire.id(),
                metadata: Some(prost_types::Struct {
                    fields: [(
                        "NODE_NAME".to_owned(),
                        prost_types::Value {
                            kind: Some(prost_types::value::Kind::StringValue(node.to_owned())),
                        },
                    )]
                    .into(),
                }),
                ..WireNode::default()
            }),
            type_url: culvert_api::names::ADDRESS_TYPE.to_owned(),
            ..DeltaDiscoveryRequest::default()
        };
        let mut request = Request::new(tokio_stream::iter([first]));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        match client.delta_aggregated_resources(request).await {
            Err(status) => status,
            Ok(response) => match response.into_inner().message().await {
                Err(status) => status,
                Ok(message) => panic!("answered with {message:?}"),
            },
        }
    }

    pub(crate) async fn wait_for_status(&self, file: &str, text: &str) {
        let path = self.path(&format!("status/{file}"));
        eventually(&format!("{text} in {file}"), || {
            fs::read_to_string(&path).is_ok_and(|content| content.contains(text))
        })
        .await;
    }

    pub(crate) async fn wait_for_no_status(&self, file: &str) {
        let path = self.path(&format!("status/{file}"));
        eventually(&format!("no {file}"), || !path.exists()).await;
    }
}

/// Files have no event to wait for here: they are looked at until it holds.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let mut interval = tokio::time::interval(Duration::from_millis(5));
    let waiting = async {
        while !holds() {
            interval.tick().await;
        }
    };
    let result = tokio::time::timeout(DEADLINE, waiting).await;
    result.unwrap_or_else(|_| panic!("in vain: {what}"));
}

/// What a node proxy sees.
pub(crate) struct NodeClient {
    receiver: watch::Receiver<Arc<Snapshot>>,
}

impl NodeClient {
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.receiver.borrow().clone()
    }

    pub(crate) async fn wait_for(&mut self, what: &str, holds: impl Fn(&Snapshot) -> bool) {
        let waiting = self.receiver.wait_for(|snapshot| holds(snapshot));
        match tokio::time::timeout(DEADLINE, waiting).await {
            Ok(result) => drop(result.expect("a running client")),
            Err(_) => panic!("in vain: {what}"),
        }
    }
}

fn config(directory: &Path, ca: String) -> Config {
    let path = |name: &str| directory.join(name);
    let variable = |name: &str, value: String| (name.into(), value.into());
    Config::read([
        variable(
            "CULVERT_DISCOVERY_DIRECTORY",
            path("objects").display().to_string(),
        ),
        variable(
            "CULVERT_DISCOVERY_STATUS_DIR",
            path("status").display().to_string(),
        ),
        variable(
            "CULVERT_DISCOVERY_JWKS_FILE",
            path("jwks.json").display().to_string(),
        ),
        variable("CULVERT_CA_ADDRESS", ca),
        variable(
            "CULVERT_CA_ROOT_FILE",
            path("root.pem").display().to_string(),
        ),
        variable(
            "CULVERT_CA_TOKEN_FILE",
            path("ca.token").display().to_string(),
        ),
        variable("CULVERT_ADMIN_ADDRESS", "127.0.0.1:0".to_owned()),
        variable("CULVERT_METRICS_ADDRESS", "127.0.0.1:0".to_owned()),
        variable("CULVERT_READY_ADDRESS", "127.0.0.1:0".to_owned()),
    ])
    .unwrap()
}

fn wire_node(node: &str) -> Node {
    Node {
        ip: "127.0.0.1".parse().unwrap(),
        name: format!("culvert-node-proxy-{node}"),
        namespace: "culvert-system".to_owned(),
        node_name: node.to_owned(),
        cluster_id: "Kubernetes".to_owned(),
        metadata: [].into(),
    }
}

fn token_of(issuer: &TokenIssuer, account: &str, node: Option<&str>, audience: &str) -> String {
    let bound = |name: &str| Bound {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
    };
    let pod = bound("pod");
    let node = node.map(bound);
    let request = TokenRequest {
        namespace: "culvert-system",
        service_account: account,
        pod: Some(&pod),
        node: node.as_ref(),
        audience,
        lifetime: Duration::from_secs(3600),
    };
    issuer.issue(&request, SystemTime::now()).unwrap()
}

async fn connect(
    address: &str,
    tls: Arc<ControlPlaneClient>,
) -> Result<tonic::transport::Channel, BoxError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let address = address.to_owned();
    let connector = tower::service_fn(move |_| {
        let (tls, address) = (tls.clone(), address.clone());
        async move {
            let tcp = TcpStream::connect(address).await?;
            tls.connect(tcp)
                .await
                .map(TokioIo::new)
                .map_err(io::Error::other)
        }
    });
    Ok(endpoint.connect_with_connector(connector).await?)
}

// === A CA that issues what discovery asks for. ===

struct TestCa {
    intermediate: Authority,
    roots: String,
    reviewer: JwksReviewer,
}

fn validity() -> Validity {
    Validity::lasting(SystemTime::now(), Duration::from_secs(3600))
}

fn leaf(identity: &Identity, name: &str) -> LeafRequest {
    LeafRequest {
        dns_names: vec![name.to_owned()],
        ..LeafRequest::new(identity, validity())
    }
}

#[tonic::async_trait]
impl IstioCertificateService for TestCa {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let token = culvert_xds::server::bearer_token(request.metadata())?.to_owned();
        let caller = self.reviewer.review(&token, "culvert-ca").await;
        let caller = caller.map_err(|error| Status::unauthenticated(error.to_string()))?;
        let domain: TrustDomain = "cluster.local".parse().unwrap();
        let identity = Identity::new(&domain, &caller.namespace, &caller.service_account).unwrap();
        let key = public_key_from_csr(request.into_inner().csr.as_bytes());
        let key = key.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let issued = self
            .intermediate
            .sign(&key, &leaf(&identity, DISCOVERY_NAME))
            .unwrap();
        Ok(Response::new(IstioCertificateResponse {
            cert_chain: vec![
                issued.pem,
                self.intermediate.certificate_pem().to_owned(),
                self.roots.clone(),
            ],
        }))
    }
}

/// Gives the address and the root bundle.
async fn start_ca(jwks: PathBuf, tracker: &ConnectionTracker) -> (String, String) {
    let domain: TrustDomain = "cluster.local".parse().unwrap();
    let root = Authority::root(&domain, validity()).unwrap();
    let intermediate = root.intermediate(&domain, validity()).unwrap();
    let roots = root.certificate_pem().to_owned();
    let identity = Identity::new(&domain, "culvert-system", "culvert-ca").unwrap();
    let own = intermediate
        .issue(
            &leaf(&identity, CA_NAME),
            &[intermediate.certificate_pem()],
            &roots,
        )
        .unwrap();
    let tls = ControlPlaneServer::new(&own);
    let service = IstioCertificateServiceServer::new(TestCa {
        intermediate,
        roots: roots.clone(),
        reviewer: JwksReviewer::from_file(jwks),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accept = async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let Ok(stream) = tls.accept(tcp).await else {
                continue;
            };
            let service = service_fn(|request| {
                let mut service = service.clone();
                async move {
                    service
                        .call(request)
                        .await
                        .map_err(|never: Infallible| never)
                }
            });
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        }
    };
    tracker.spawn(accept).unwrap();
    (address, roots)
}

// === Objects. ===

pub(crate) fn pod(name: &str, node: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: web}}}}\nspec: {{nodeName: {node}, containers: [{{name: c, image: i}}]}}\nstatus: {{podIPs: [{{ip: {ip}}}], conditions: [{{type: Ready, status: 'True'}}]}}\n"
    )
}

pub(crate) fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{clusterIP: 10.96.0.1, selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}\n"
    )
}

pub(crate) fn namespace_policy(namespace: &str, name: &str, source: &str) -> String {
    format!(
        "apiVersion: policy.culvert.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{action: DENY, rules: [{{from: [{{source: {{namespaces: [{source}]}}}}]}}]}}\n"
    )
}
