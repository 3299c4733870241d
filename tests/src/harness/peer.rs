//! A peer of our own making at the tunnel port: it speaks TLS and HTTP/2 as well
//! or as badly as a test wants, from inside a network namespace.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use culvert_identity::Identity;
use culvert_netns::Netns;
use culvert_tls::IssuedCertificate;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const LIMIT: Duration = Duration::from_secs(10);

/// What to ask of a tunnel port.
#[derive(Debug)]
pub struct Attempt<'a> {
    /// Who we say we are.
    pub certificate: &'a IssuedCertificate,
    /// Whom we accept.
    pub server: &'a Identity,
    /// The tunnel port.
    pub tunnel: SocketAddr,
    /// The `:authority` of the CONNECT.
    pub authority: &'a str,
}

/// How the other end answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The CONNECT was answered with this status, and with these bytes after 200.
    Status(u16, Vec<u8>),
    /// TCP, TLS or HTTP/2 ended before an answer.
    Closed(String),
}

impl Answer {
    /// Whether bytes of an application came back.
    #[must_use]
    pub fn got_through(&self) -> bool {
        matches!(self, Self::Status(200, _))
    }
}

/// Runs a future on a runtime of its own inside a named network namespace.
///
/// # Errors
/// When the namespace cannot be entered, or the future's own error.
pub fn inside<T, F>(namespace: &str, body: impl FnOnce() -> F + Send) -> Result<T>
where
    T: Send,
    F: Future<Output = Result<T>>,
{
    let netns = Netns::open_named(namespace).with_context(|| namespace.to_owned())?;
    netns.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        tokio::task::LocalSet::new().block_on(&runtime, body())
    })?
}

/// Makes one CONNECT from `namespace` and reads what comes.
///
/// # Errors
/// When the attempt itself could not be made; a refusal is an [`Answer`].
pub fn attempt(namespace: &str, attempt: &Attempt<'_>) -> Result<Answer> {
    inside(namespace, || async {
        let refused = |error: &dyn std::fmt::Display| Ok(Answer::Closed(error.to_string()));
        match tokio::time::timeout(LIMIT, connect(attempt)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => refused(&format!("{error:#}")),
            Err(_) => refused(&"no answer in time"),
        }
    })
}

async fn connect(attempt: &Attempt<'_>) -> Result<Answer> {
    let tls = handshake(attempt.certificate, attempt.server, attempt.tunnel).await?;
    let (sender, connection) = h2::client::handshake(tls)
        .await
        .context("HTTP/2 handshake")?;
    let driver = tokio::task::spawn_local(connection);
    let request = http::Request::builder()
        .method(http::Method::CONNECT)
        .uri(attempt.authority)
        .body(())
        .context("CONNECT")?;
    let mut sender = sender.ready().await.context("ready")?;
    let (response, mut stream) = sender.send_request(request, false).context("send")?;
    let response = response.await.context("answer")?;
    let status = response.status().as_u16();
    let mut received = Vec::new();
    if status == 200 {
        stream
            .send_data(Bytes::from_static(b"over the hills\n"), true)
            .context("data")?;
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            received.extend_from_slice(&data.context("read")?);
        }
    }
    driver.abort();
    Ok(Answer::Status(status, received))
}

async fn handshake(
    certificate: &IssuedCertificate,
    server: &Identity,
    tunnel: SocketAddr,
) -> Result<TlsStream<TcpStream>> {
    let config = culvert_tls::client_config(certificate, std::slice::from_ref(server));
    let tcp = TcpStream::connect(tunnel).await.context("TCP")?;
    let name = ServerName::IpAddress(tunnel.ip().into());
    TlsConnector::from(Arc::clone(&config))
        .connect(name, tcp)
        .await
        .context("TLS")
}

/// Does the handshake and sends bytes that are no HTTP/2; gives what came back
/// until the other end closed.
///
/// # Errors
/// When the handshake fails or the other end keeps the connection.
pub fn send_garbage(namespace: &str, attempt: &Attempt<'_>, bytes: &[u8]) -> Result<usize> {
    inside(namespace, || async {
        let whole = async {
            let mut tls = handshake(attempt.certificate, attempt.server, attempt.tunnel).await?;
            tls.write_all(bytes).await.context("write")?;
            let mut received = Vec::new();
            // However the connection ends, it must end.
            let _ = tls.read_to_end(&mut received).await;
            Ok(received.len())
        };
        tokio::time::timeout(LIMIT, whole)
            .await
            .context("the connection stayed open")?
    })
}
