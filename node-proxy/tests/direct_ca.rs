//! The certificate client against a CA service in the process, over real TLS and gRPC.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use culvert_api::proto::ca::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use culvert_api::proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use culvert_identity::{Identity, TrustDomain};
use culvert_node_proxy::certs::{Authority, CaClient, CaConfig, IssueError};
use culvert_node_proxy::channel::channel;
use culvert_tls::ca::{Authority as Issuer, LeafRequest, Validity, public_key_from_csr};
use culvert_tls::{ControlPlaneClient, ControlPlaneServer};
use prost_types::value::Kind;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

const SERVER_NAME: &str = "culvert-ca.culvert-system.svc";

fn domain() -> TrustDomain {
    "cluster.local".parse().expect("trust domain")
}

fn id(account: &str) -> Identity {
    Identity::new(&domain(), "shop", account).expect("identity")
}

fn validity() -> Validity {
    Validity::lasting(SystemTime::now(), Duration::from_secs(3600))
}

/// What a request said.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    authorization: String,
    cluster: String,
    impersonated: String,
    seconds: i64,
}

#[derive(Clone)]
struct Service {
    root: Arc<Issuer>,
    intermediate: Arc<Issuer>,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Signs for this account whatever is asked.
    always: Option<&'static str>,
}

#[tonic::async_trait]
impl IstioCertificateService for Service {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let header = |name: &str| {
            let value = request
                .metadata()
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let mut seen = Seen {
            authorization: header("authorization"),
            cluster: header("clusterid"),
            ..Seen::default()
        };
        let message = request.into_inner();
        seen.seconds = message.validity_duration;
        let field = message
            .metadata
            .and_then(|mut m| m.fields.remove("ImpersonatedIdentity"));
        if let Some(Kind::StringValue(text)) = field.and_then(|value| value.kind) {
            seen.impersonated = text;
        }
        self.seen.lock().expect("lock").push(seen.clone());
        if seen.authorization != "Bearer good" {
            return Err(Status::unauthenticated("request authenticate failure"));
        }
        let identity = self
            .always
            .map_or_else(|| seen.impersonated.parse().expect("identity"), id);
        let key = public_key_from_csr(message.csr.as_bytes()).expect("a request");
        let leaf = LeafRequest::new(&identity, validity());
        let issued = self.intermediate.sign(&key, &leaf).expect("signs");
        let chain = [
            &issued.pem,
            self.intermediate.certificate_pem(),
            self.root.certificate_pem(),
        ];
        let cert_chain = chain.map(str::to_owned).to_vec();
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

struct Ca {
    address: SocketAddr,
    root_pem: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

async fn serve(always: Option<&'static str>) -> Ca {
    let root = Issuer::root(&domain(), validity()).expect("root");
    let intermediate = root
        .intermediate(&domain(), validity())
        .expect("intermediate");
    let mut own = LeafRequest::new(&id("ca"), validity());
    own.dns_names = vec![SERVER_NAME.to_owned()];
    let certificate = root
        .issue(&own, &[], root.certificate_pem())
        .expect("own certificate");
    let tls = ControlPlaneServer::new(&certificate);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("bind");
    let address = listener.local_addr().expect("address");
    let root_pem = root.certificate_pem().to_owned();
    let seen = Arc::default();
    let service = Service {
        root: Arc::new(root),
        intermediate: Arc::new(intermediate),
        seen: Arc::clone(&seen),
        always,
    };
    let (sender, incoming) = tokio::sync::mpsc::channel(4);
    let mut tasks = culvert_runtime::Tasks::new();
    tasks.critical("accept", async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust us is one of the tests.
            if let Ok(stream) = tls.accept(stream).await
                && sender.send(Ok::<_, std::io::Error>(stream)).await.is_err()
            {
                return;
            }
        }
    });
    tasks.critical("serve", async move {
        tonic::transport::Server::builder()
            .add_service(IstioCertificateServiceServer::new(service))
            .serve_with_incoming(ReceiverStream::new(incoming))
            .await
    });
    // They end with the test's runtime.
    std::mem::forget(tasks);
    Ca {
        address,
        root_pem,
        seen,
    }
}

struct Client {
    client: CaClient,
    directory: tempfile::TempDir,
}

fn client(ca: &Ca, server_name: &str) -> Client {
    let directory = tempfile::tempdir().expect("directory");
    let token_file = directory.path().join("token");
    std::fs::write(&token_file, "good\n").expect("token");
    let tls = ControlPlaneClient::from_pem(ca.root_pem.as_bytes(), server_name).expect("roots");
    let address = ca.address.to_string();
    let channel = channel(&address, Arc::new(tls)).expect("channel");
    let config = CaConfig {
        address,
        token_file,
        cluster_id: "east".to_owned(),
        lifetime: Some(Duration::from_secs(86_400)),
    };
    Client {
        client: CaClient::new(config, channel),
        directory,
    }
}

#[tokio::test]
async fn a_server_of_another_name_is_not_trusted() {
    let ca = serve(None).await;
    let client = client(&ca, "somebody.else");
    let error = client
        .client
        .issue(&id("cart"))
        .await
        .expect_err("not the CA");
    assert!(matches!(error, IssueError::Unreachable { .. }), "{error:?}");
    assert!(
        ca.seen.lock().expect("lock").is_empty(),
        "no token was shown"
    );
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let mut ca = serve(None).await;
    ca.address = "127.0.0.1:1".parse().expect("address");
    let error = client(&ca, SERVER_NAME)
        .client
        .issue(&id("cart"))
        .await
        .expect_err("nobody");
    assert!(matches!(error, IssueError::Unreachable { .. }), "{error:?}");
    let text = culvert_runtime::chain(&error);
    assert!(text.contains("cannot connect to 127.0.0.1:1"), "{text}");
}

#[tokio::test]
async fn a_refusal_is_told_from_an_outage() {
    let ca = serve(None).await;
    let client = client(&ca, SERVER_NAME);
    std::fs::write(client.directory.path().join("token"), "stale").expect("token");
    let error = client.client.issue(&id("cart")).await.expect_err("refused");
    assert!(matches!(error, IssueError::Refused { .. }), "{error:?}");
    std::fs::remove_file(client.directory.path().join("token")).expect("remove");
    let error = client
        .client
        .issue(&id("cart"))
        .await
        .expect_err("no token");
    assert!(matches!(error, IssueError::Token(_)), "{error:?}");
}

#[tokio::test]
async fn a_certificate_for_somebody_else_is_not_taken() {
    let ca = serve(Some("other")).await;
    let client = client(&ca, SERVER_NAME);
    let error = client
        .client
        .issue(&id("cart"))
        .await
        .expect_err("not ours");
    assert!(matches!(error, IssueError::Answer(_)), "{error:?}");
}

#[tokio::test]
async fn a_certificate_is_asked_for_in_the_pods_name_and_comes_with_chain_and_roots() {
    let ca = serve(None).await;
    let client = client(&ca, SERVER_NAME);
    for account in ["cart", "web"] {
        let issued = client.client.issue(&id(account)).await.expect("issued");
        assert_eq!(*issued.identity(), id(account));
        assert_eq!(issued.chain().count(), 2);
        issued.check(SystemTime::now()).expect("peers accept it");
    }
    let expect = Seen {
        authorization: "Bearer good".to_owned(),
        cluster: "east".to_owned(),
        impersonated: "spiffe://cluster.local/ns/shop/sa/cart".to_owned(),
        seconds: 86_400,
    };
    assert_eq!(ca.seen.lock().expect("lock")[0], expect);
}
