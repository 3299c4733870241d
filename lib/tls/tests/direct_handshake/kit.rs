//! Two meshes' worth of certificates and a handshake over memory.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use culvert_identity::{Identity, TrustDomain};
use culvert_tls::ca::{Authority, LeafRequest, Validity};
use culvert_tls::{Fault, IssuedCertificate, fault};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// A trust domain with its own root and intermediate, both a month old.
pub(crate) struct Mesh {
    pub(crate) trust_domain: TrustDomain,
    pub(crate) root: Authority,
    pub(crate) intermediate: Authority,
}

impl Mesh {
    pub(crate) fn new(trust_domain: &str) -> Self {
        let trust_domain: TrustDomain = trust_domain.parse().unwrap();
        let now = SystemTime::now();
        let validity = Validity {
            not_before: now - 30 * DAY,
            not_after: now + 300 * DAY,
        };
        let root = Authority::root(&trust_domain, validity).unwrap();
        let intermediate = root.intermediate(&trust_domain, validity).unwrap();
        Self {
            trust_domain,
            root,
            intermediate,
        }
    }

    pub(crate) fn identity(&self, account: &str) -> Identity {
        Identity::new(&self.trust_domain, "shop", account).unwrap()
    }

    pub(crate) fn request(&self, account: &str) -> LeafRequest {
        let validity = Validity::lasting(SystemTime::now(), DAY);
        LeafRequest::new(&self.identity(account), validity)
    }

    pub(crate) fn issue(&self, request: &LeafRequest) -> IssuedCertificate {
        let above = [self.intermediate.certificate_pem()];
        let roots = self.root.certificate_pem();
        self.intermediate.issue(request, &above, roots).unwrap()
    }

    pub(crate) fn certificate(&self, account: &str) -> IssuedCertificate {
        self.issue(&self.request(account))
    }

    /// A certificate of this mesh whose holder trusts `other`'s root.
    pub(crate) fn certificate_trusting(&self, account: &str, other: &Self) -> IssuedCertificate {
        let above = [self.intermediate.certificate_pem()];
        let roots = other.root.certificate_pem();
        let request = self.request(account);
        self.intermediate.issue(&request, &above, roots).unwrap()
    }
}

pub(crate) fn server_name() -> ServerName<'static> {
    ServerName::try_from("10.0.0.1").unwrap()
}

/// What each end makes of the connection, after one byte went each way.
pub(crate) struct Outcome {
    pub(crate) server: Result<Identity, Fault>,
    pub(crate) client: Result<Identity, Fault>,
    pub(crate) facts: Option<Facts>,
}

/// What the server saw of an established connection.
#[derive(Debug, PartialEq)]
pub(crate) struct Facts {
    pub(crate) server_name: Option<String>,
    pub(crate) suite: String,
    pub(crate) group: String,
    pub(crate) kind: HandshakeKind,
}

pub(crate) async fn handshake(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> Outcome {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (server, client) = tokio::join!(accept(server, far), connect(client, near));
    let (server, facts) = match server {
        Ok((identity, facts)) => (Ok(identity), Some(facts)),
        Err(fault) => (Err(fault), None),
    };
    Outcome {
        server,
        client,
        facts,
    }
}

pub(crate) async fn accept(
    config: Arc<ServerConfig>,
    io: DuplexStream,
) -> Result<(Identity, Facts), Fault> {
    let accepted = TlsAcceptor::from(config).accept(io).await;
    let mut stream = accepted.map_err(|error| fault::classify_io(&error))?;
    let connection = stream.get_ref().1;
    let facts = Facts {
        server_name: connection.server_name().map(str::to_owned),
        suite: format!(
            "{:?}",
            connection.negotiated_cipher_suite().unwrap().suite()
        ),
        group: format!(
            "{:?}",
            connection.negotiated_key_exchange_group().unwrap().name()
        ),
        kind: connection.handshake_kind().unwrap(),
    };
    let peer = culvert_tls::verified_peer(connection)?;
    stream.write_all(b"s").await.unwrap();
    stream.flush().await.unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).await.unwrap();
    Ok((peer, facts))
}

/// The client learns only from the first read that its certificate was refused.
pub(crate) async fn connect(
    config: Arc<ClientConfig>,
    io: DuplexStream,
) -> Result<Identity, Fault> {
    let classify = |error: std::io::Error| fault::classify_io(&error);
    let connecting = TlsConnector::from(config).connect(server_name(), io);
    let mut stream = connecting.await.map_err(classify)?;
    let mut byte = [0];
    stream.read_exact(&mut byte).await.map_err(classify)?;
    stream.write_all(b"c").await.map_err(classify)?;
    stream.flush().await.map_err(classify)?;
    culvert_tls::verified_peer(stream.get_ref().1)
}

/// Two certificates meet; the client expects `expected` at the other end.
pub(crate) async fn meet(
    server: &IssuedCertificate,
    client: &IssuedCertificate,
    expected: &[Identity],
) -> Outcome {
    let client = culvert_tls::client_config(client, expected);
    handshake(culvert_tls::server_config(server), client).await
}
