//! A real CA on a loopback port, with a token issuer and objects of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use culvert_api::proto::ca::IstioCertificateRequest;
use culvert_api::proto::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use culvert_ca::app::Ca;
use culvert_ca::config::Config;
use culvert_ca::metrics::CaMetrics;
use culvert_identity::Identity;
use culvert_runtime::{Drain, ManualClock, Metrics, Tasks};
use culvert_tls::{ControlPlaneClient, IssuedCertificate};
use culvert_token::{Bound, TokenIssuer, TokenRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const SERVER_NAME: &str = "culvert-ca.culvert-system.svc";

/// Everything around a CA; dropped, it stops.
pub(crate) struct Bench {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) issuer: TokenIssuer,
    pub(crate) clock: ManualClock,
    pub(crate) metrics: Metrics,
    pub(crate) ca: Arc<Ca>,
    pub(crate) address: SocketAddr,
    connection: OnceCell<Channel>,
    _drain: Drain,
    _tasks: Tasks,
}

/// What a token says; the rest is as every node proxy's.
pub(crate) struct Token<'a> {
    pub(crate) account: &'a str,
    pub(crate) node: Option<&'a str>,
    pub(crate) audience: &'a str,
    pub(crate) lifetime: Duration,
}

/// The token of the node proxy of a node.
pub(crate) fn of_node(node: &str) -> Token<'_> {
    Token {
        account: "culvert-node-proxy",
        node: Some(node),
        audience: "culvert-ca",
        lifetime: HOUR,
    }
}

pub(crate) fn identity(namespace: &str, account: &str) -> Identity {
    let trust_domain = "cluster.local".parse().unwrap();
    Identity::new(&trust_domain, namespace, account).unwrap()
}

impl Bench {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory, TokenIssuer::generate().unwrap(), &[]).await
    }

    /// Starts on what an earlier one left in the directory.
    pub(crate) async fn restart(self) -> Self {
        let Self {
            directory,
            issuer,
            ca,
            mut _tasks,
            _drain,
            ..
        } = self;
        _drain.stop("restart");
        _tasks.wait(&_drain).await.unwrap();
        drop(ca);
        Self::start_in(directory, issuer, &[]).await
    }

    pub(crate) async fn start_in(
        directory: tempfile::TempDir,
        issuer: TokenIssuer,
        more: &[(&str, &str)],
    ) -> Self {
        issuer
            .write_jwks(&directory.path().join("jwks.json"))
            .unwrap();
        std::fs::create_dir_all(directory.path().join("objects/Pod")).unwrap();
        std::fs::create_dir_all(directory.path().join("objects/Node")).unwrap();
        let config = config(directory.path(), more);
        let clock = ManualClock::new(SystemTime::now());
        let metrics = Metrics::new();
        let counts = CaMetrics::new(&metrics);
        let ca = Arc::new(Ca::open(&config, Arc::new(clock.clone()), counts).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let drain = Drain::new(Duration::from_secs(5));
        let mut tasks = Tasks::new();
        tasks.critical("serve", ca.server().run(listener, drain.watch()));
        let bench = Self {
            directory,
            issuer,
            clock,
            metrics,
            ca,
            address,
            connection: OnceCell::new(),
            _drain: drain,
            _tasks: tasks,
        };
        bench.node("node-1");
        bench.node("node-2");
        bench
    }

    pub(crate) fn bundle_file(&self) -> PathBuf {
        self.directory.path().join("root-cert.pem")
    }

    pub(crate) fn bundle(&self) -> String {
        std::fs::read_to_string(self.bundle_file()).unwrap()
    }

    fn node(&self, name: &str) {
        let object = serde_json::json!({"metadata": {"name": name, "uid": format!("uid-{name}")}});
        self.write("Node", &format!("_.{name}.json"), &object);
    }

    /// Writes a running pod of namespace `shop`.
    pub(crate) fn pod(&self, name: &str, node: &str, account: &str) {
        let object = serde_json::json!({
            "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}")},
            "spec": {"nodeName": node, "serviceAccountName": account},
            "status": {"phase": "Running"},
        });
        self.write("Pod", &format!("shop.{name}.json"), &object);
    }

    pub(crate) fn write(&self, kind: &str, file: &str, object: &serde_json::Value) {
        let directory = self.directory.path().join("objects").join(kind);
        let aside = directory.join("aside");
        std::fs::write(&aside, object.to_string()).unwrap();
        std::fs::rename(&aside, directory.join(file)).unwrap();
    }

    pub(crate) fn token(&self, token: &Token<'_>) -> String {
        self.token_of(&self.issuer, token)
    }

    pub(crate) fn token_of(&self, issuer: &TokenIssuer, token: &Token<'_>) -> String {
        use culvert_runtime::Clock as _;
        let bound = token.node.map(|name| Bound {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
        });
        let request = TokenRequest {
            namespace: "culvert-system",
            service_account: token.account,
            pod: None,
            node: bound.as_ref(),
            audience: token.audience,
            lifetime: token.lifetime,
        };
        issuer.issue(&request, self.clock.now()).unwrap()
    }

    /// A channel that trusts what the bundle file holds now.
    pub(crate) async fn channel(&self) -> Channel {
        let tls = ControlPlaneClient::from_file(self.bundle_file(), SERVER_NAME).unwrap();
        let tls = Arc::new(tls);
        let address = self.address;
        let connector = tower::service_fn(move |_: http::Uri| {
            let tls = Arc::clone(&tls);
            async move {
                let stream = TcpStream::connect(address).await?;
                let stream = tls.connect(stream).await.map_err(std::io::Error::other)?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_static("http://culvert-ca");
        endpoint.connect_with_connector(connector).await.unwrap()
    }

    /// Asks with a token, a CSR and perhaps an identity. One connection serves
    /// all: the CA's clock may be ahead of the one that TLS looks at.
    pub(crate) async fn ask(
        &self,
        token: &str,
        csr: &str,
        requested: Option<&str>,
    ) -> Result<Vec<String>, Status> {
        let channel = self.connection.get_or_init(|| self.channel()).await;
        let mut client = IstioCertificateServiceClient::new(channel.clone());
        let request = request(token, csr, requested, 0);
        let answer = client.create_certificate(request).await?;
        Ok(answer.into_inner().cert_chain)
    }

    /// Asks as the node proxy of `node` does, and reads the answer as it does.
    pub(crate) async fn certificate(
        &self,
        node: &str,
        wanted: &Identity,
    ) -> Result<IssuedCertificate, Status> {
        let (key, csr) = culvert_tls::csr(wanted).unwrap();
        let token = self.token(&of_node(node));
        let chain = self.ask(&token, &csr, Some(wanted.uri())).await?;
        Ok(IssuedCertificate::from_answer(&chain, &key, wanted).unwrap())
    }

    /// Waits until the metrics hold this line.
    pub(crate) async fn wait_for_metric(&self, line: &str) {
        let holds = async {
            while !self
                .metrics
                .encode()
                .unwrap()
                .lines()
                .any(|found| found == line)
            {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(10), holds).await;
        assert!(
            waited.is_ok(),
            "{line} is not in\n{}",
            self.metrics.encode().unwrap()
        );
    }

    /// How often requests were refused for this reason.
    pub(crate) fn refusals(&self, reason: &str) -> usize {
        let text = self.metrics.encode().unwrap();
        let series = format!("culvert_ca_refusals_total{{reason=\"{reason}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.map_or(0, |value| value.parse().unwrap())
    }
}

pub(crate) fn request(
    token: &str,
    csr: &str,
    requested: Option<&str>,
    seconds: i64,
) -> Request<IstioCertificateRequest> {
    let metadata = requested.map(|identity| prost_types::Struct {
        fields: std::iter::once((
            "ImpersonatedIdentity".to_owned(),
            prost_types::Value {
                kind: Some(prost_types::value::Kind::StringValue(identity.to_owned())),
            },
        ))
        .collect(),
    });
    let mut request = Request::new(IstioCertificateRequest {
        csr: csr.to_owned(),
        validity_duration: seconds,
        metadata,
    });
    let value = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

/// A refusal, which must tell the caller nothing but its kind.
pub(crate) fn assert_opaque(status: &Status, code: Code) {
    assert_eq!(status.code(), code, "{status:?}");
    let known = [
        "request is not authenticated",
        "request is not permitted",
        "certificate request is not acceptable",
    ];
    assert!(known.contains(&status.message()), "{status:?}");
    assert!(status.details().is_empty() && status.metadata().get("reason").is_none());
}

fn config(directory: &Path, more: &[(&str, &str)]) -> Config {
    let path = |name: &str| directory.join(name).into_os_string();
    let mut environment = vec![
        ("CULVERT_CA_STATE_DIR".into(), path("ca")),
        ("CULVERT_CA_JWKS_FILE".into(), path("jwks.json")),
        ("CULVERT_CA_OBJECTS_DIR".into(), path("objects")),
        ("CULVERT_CA_BUNDLE_FILE".into(), path("root-cert.pem")),
    ];
    environment.extend(more.iter().map(|(name, value)| (name.into(), value.into())));
    Config::read(environment).unwrap()
}
