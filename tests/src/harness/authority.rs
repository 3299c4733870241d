//! Asks the CA for certificates as a node proxy would, with tokens that a test
//! chooses.

use anyhow::{Context, Result, bail, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use culvert_api::proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use culvert_identity::Identity;
use culvert_tls::ControlPlaneClient;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::net::TcpStream;

use super::mesh::{Mesh, Part};
use super::peer;
use super::processes::Process;

const PATH: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// Asks, with the token of a node's proxy, for the certificate of `identity`.
/// The outer error means that the question could not be put.
///
/// # Errors
/// When the CA cannot be reached.
pub fn ask_with_token_of(
    mesh: &Mesh,
    node: &str,
    identity: &Identity,
) -> Result<Result<IstioCertificateResponse>> {
    let proxy = mesh.process(Part::NodeProxy(node))?;
    let token_file = variable(&proxy, "CULVERT_CA_TOKEN_FILE")?;
    let token = std::fs::read_to_string(&token_file).with_context(|| token_file.clone())?;
    ask(mesh, node, token.trim(), identity)
}

/// As [`ask_with_token_of`], with any text as the token.
///
/// # Errors
/// When the CA cannot be reached.
pub fn ask(
    mesh: &Mesh,
    node: &str,
    token: &str,
    identity: &Identity,
) -> Result<Result<IstioCertificateResponse>> {
    let proxy = mesh.process(Part::NodeProxy(node))?;
    let address = variable(&proxy, "CULVERT_CA_ADDRESS")?;
    let name = variable(&proxy, "CULVERT_CA_SERVER_NAME")
        .unwrap_or_else(|_| "culvert-ca.culvert-system.svc".to_owned());
    let roots = std::fs::read(variable(&proxy, "CULVERT_CA_ROOT_FILE")?).context("root file")?;
    let client = ControlPlaneClient::from_pem(&roots, &name)?;
    let (_key, csr) = culvert_tls::csr(identity)?;
    let request = IstioCertificateRequest {
        csr,
        validity_duration: 3600,
        metadata: Some(impersonating(identity)),
    };
    peer::inside(&mesh.node_netns(node), || async {
        let tcp = TcpStream::connect(address.as_str())
            .await
            .context("connect to the CA")?;
        let tls = client.connect(tcp).await.context("TLS with the CA")?;
        Ok(unary(tls, token, &request).await)
    })
}

fn variable(process: &Process, name: &str) -> Result<String> {
    process
        .variable(name)
        .with_context(|| format!("the node proxy has no {name}"))
}

fn impersonating(identity: &Identity) -> Struct {
    let value = Value {
        kind: Some(Kind::StringValue(identity.uri().to_owned())),
    };
    Struct {
        fields: [("ImpersonatedIdentity".to_owned(), value)].into(),
    }
}

/// One unary gRPC call, by hand: the bytes are the protocol's, not a library's.
async fn unary<T>(
    io: T,
    token: &str,
    request: &IstioCertificateRequest,
) -> Result<IstioCertificateResponse>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
{
    let (sender, connection) = h2::client::handshake(io)
        .await
        .context("HTTP/2 handshake")?;
    let driver = tokio::task::spawn_local(connection);
    let head = http::Request::post(format!("https://ca{PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {token}"))
        .header("clusterid", "Kubernetes")
        .body(())?;
    let mut sender = sender.ready().await?;
    let (response, mut stream) = sender.send_request(head, false)?;
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(u32::try_from(request.encoded_len())?);
    request.encode(&mut message)?;
    stream.send_data(message.freeze(), true)?;
    let response = response.await.context("answer")?;
    let early = status(response.headers());
    let mut body = response.into_body();
    let mut received = Vec::new();
    while let Some(data) = body.data().await {
        let data: Bytes = data.context("body")?;
        let _ = body.flow_control().release_capacity(data.len());
        received.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.context("trailers")?;
    driver.abort();
    let late = trailers.as_ref().and_then(status);
    match early.or(late) {
        Some((0, _)) => {}
        Some((code, text)) => bail!("grpc-status {code}: {text}"),
        None => bail!("no grpc-status"),
    }
    ensure!(received.len() > 5, "an empty answer");
    IstioCertificateResponse::decode(&received[5..]).context("decode")
}

fn status(headers: &http::HeaderMap) -> Option<(i32, String)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status")?.parse().ok()?;
    Some((code, text("grpc-message").unwrap_or_default().to_owned()))
}
