//! Peers that were not built with this crate: other TLS versions, no or other
//! application protocols, no certificate, no TLS at all.

use std::sync::Arc;

use culvert_tls::ca::{LeafRequest, public_key_from_csr};
use culvert_tls::{AnswerError, Fault, IssuedCertificate, client_config, fault, server_config};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::kit::{Mesh, accept, connect};

const NAME: &str = "api.shop.svc";

/// A client that verifies `api` by its DNS name, with or without a certificate.
struct Foreign {
    credentials: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    protocols: Vec<Vec<u8>>,
}

impl Foreign {
    fn config(self, mesh: &Mesh) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let root = mesh.root.certificate_der().to_vec();
        roots.add(root.into()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.credentials {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.protocols;
        Arc::new(config)
    }
}

/// The chain and the key of a leaf as `request` says.
fn credentials(
    mesh: &Mesh,
    request: &LeafRequest,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let pair = rcgen::KeyPair::generate().unwrap();
    let csr = rcgen::CertificateParams::default().serialize_request(&pair);
    let public = public_key_from_csr(csr.unwrap().pem().unwrap().as_bytes()).unwrap();
    let leaf = mesh.intermediate.sign(&public, request).unwrap();
    let chain = [leaf.pem.as_str(), mesh.intermediate.certificate_pem()]
        .map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap());
    let key = PrivateKeyDer::from_pem_slice(pair.serialize_pem().as_bytes()).unwrap();
    (chain.to_vec(), key)
}

/// `api`'s certificate, also good for its DNS name.
fn api(mesh: &Mesh) -> IssuedCertificate {
    let mut request = mesh.request("api");
    request.dns_names = vec![NAME.to_owned()];
    mesh.issue(&request)
}

/// What the server and the client make of `foreign`.
async fn call_api(mesh: &Mesh, foreign: Foreign) -> (Option<Fault>, Option<Fault>) {
    let connector = TlsConnector::from(foreign.config(mesh));
    let (near, far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(NAME).unwrap();
    let (server, client) = tokio::join!(accept(server_config(&api(mesh)), far), async {
        let mut stream = connector.connect(name, near).await?;
        stream.read_u8().await?;
        stream.write_all(b"c").await?;
        stream.flush().await
    });
    let client = client.err().map(|error| fault::classify_io(&error));
    (server.err(), client)
}

#[tokio::test]
async fn a_foreign_client_with_a_good_certificate_is_let_in() {
    let mesh = Mesh::new("cluster.local");
    let foreign = Foreign {
        credentials: Some(credentials(&mesh, &mesh.request("web"))),
        protocols: vec![b"h2".to_vec()],
    };
    assert_eq!(call_api(&mesh, foreign).await, (None, None));
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let mesh = Mesh::new("cluster.local");
    let foreign = Foreign {
        credentials: None,
        protocols: vec![b"h2".to_vec()],
    };
    let expected = (Some(Fault::NoCertificate), Some(Fault::RefusedByPeer));
    assert_eq!(call_api(&mesh, foreign).await, expected);
}

#[tokio::test]
async fn a_certificate_with_dns_names_only_identifies_nobody() {
    let mesh = Mesh::new("cluster.local");
    let request = LeafRequest {
        identity: None,
        dns_names: vec!["web.shop.svc".to_owned()],
        ..mesh.request("web")
    };
    let foreign = Foreign {
        credentials: Some(credentials(&mesh, &request)),
        protocols: vec![b"h2".to_vec()],
    };
    let expected = (Some(Fault::NoIdentity), Some(Fault::RefusedByPeer));
    assert_eq!(call_api(&mesh, foreign).await, expected);

    // Nor can our own side take it into use.
    let (key, csr) = culvert_tls::csr(&mesh.identity("web")).unwrap();
    let public = public_key_from_csr(csr.as_bytes()).unwrap();
    let leaf = mesh.intermediate.sign(&public, &request).unwrap();
    let answer = [leaf.pem.as_str(), mesh.root.certificate_pem()];
    let refused = IssuedCertificate::from_answer(&answer, &key, &mesh.identity("web"));
    assert!(matches!(refused, Err(AnswerError::NoIdentity(_))));
}

#[tokio::test]
async fn another_application_protocol_is_refused() {
    let mesh = Mesh::new("cluster.local");
    let foreign = Foreign {
        credentials: Some(credentials(&mesh, &mesh.request("web"))),
        protocols: vec![b"http/1.1".to_vec()],
    };
    let expected = (Some(Fault::WrongProtocol), Some(Fault::WrongProtocol));
    assert_eq!(call_api(&mesh, foreign).await, expected);
}

#[tokio::test]
async fn no_application_protocol_is_refused_after_the_handshake() {
    let mesh = Mesh::new("cluster.local");
    let foreign = Foreign {
        credentials: Some(credentials(&mesh, &mesh.request("web"))),
        protocols: Vec::new(),
    };
    let (server, client) = call_api(&mesh, foreign).await;
    assert_eq!(server, Some(Fault::WrongProtocol));
    assert!(client.is_some());
}

/// A record with a handshake message of the given type.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap();
    let mut record = vec![22, 3, 3];
    record.extend((length + 4).to_be_bytes());
    record.extend([kind, 0]);
    record.extend(length.to_be_bytes());
    record.extend(body);
    record
}

/// The hello of a client that knows TLS 1.2 only.
fn hello_of_tls12_client() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 2, 0xc0, 0x2b]);
    body.extend([1, 0]);
    let groups = [0, 10, 0, 4, 0, 2, 0, 29];
    let schemes = [0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, 16]);
    body.extend(groups);
    body.extend(schemes);
    record(1, &body)
}

/// The answer of a server that knows TLS 1.2 only.
fn hello_of_tls12_server() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0xc0, 0x2b, 0]);
    record(2, &body)
}

#[tokio::test]
async fn a_client_of_tls_1_2_and_one_without_tls_are_refused() {
    let mesh = Mesh::new("cluster.local");
    for (sent, expected) in [
        (hello_of_tls12_client(), Fault::BadVersion),
        (
            b"GET / HTTP/1.1\r\nHost: api\r\n\r\n".to_vec(),
            Fault::NotTls,
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), Fault::NotTls),
        (vec![0; 64], Fault::NotTls),
        (Vec::new(), Fault::Io),
        (vec![22, 3, 1], Fault::Io),
    ] {
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        near.write_all(&sent).await.unwrap();
        near.shutdown().await.unwrap();
        let refused = accept(server_config(&mesh.certificate("api")), far).await;
        assert_eq!(refused.unwrap_err(), expected, "{sent:?}");
    }
}

#[tokio::test]
async fn a_server_of_tls_1_2_and_one_without_tls_are_refused() {
    let mesh = Mesh::new("cluster.local");
    for (sent, expected) in [
        (hello_of_tls12_server(), Fault::BadVersion),
        (b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(), Fault::NotTls),
        (Vec::new(), Fault::Io),
    ] {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        far.write_all(&sent).await.unwrap();
        far.shutdown().await.unwrap();
        let config = client_config(&mesh.certificate("web"), &[mesh.identity("api")]);
        assert_eq!(
            connect(config, near).await.unwrap_err(),
            expected,
            "{sent:?}"
        );
    }
}
