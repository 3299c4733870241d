//! HTTP requests to the programs of the mesh, from inside the network namespace
//! they listen in.

use std::net::SocketAddr;
use std::time::Duration;

use culvert_netns::{Netns, NetnsError};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};

/// Time for one request: a dump of a large mesh takes a while, a dead program must
/// not hold a command for ever.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Largest answer that is read.
const BODY_BYTES_MAX: usize = 256 << 20;

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

/// No answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    /// The namespace.
    #[error("cannot enter the network namespace")]
    Netns(#[from] NetnsError),
    /// The connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The exchange.
    #[error("request failed")]
    Http(#[from] hyper::Error),
    /// The body.
    #[error("cannot read the answer: {0}")]
    Body(String),
    /// The request itself.
    #[error("malformed request")]
    Request(#[from] http::Error),
    /// Time is over.
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl Response {
    /// Whether the status is 2xx.
    pub(crate) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// The body as text, on one line when it is short.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body)
            .trim()
            .replace('\n', "; ")
    }
}

/// Asks with GET.
pub(crate) async fn get(
    netns: &Netns,
    address: SocketAddr,
    path: &str,
) -> Result<Response, AdminError> {
    request(netns, address, Method::GET, path).await
}

/// Asks.
pub(crate) async fn request(
    netns: &Netns,
    address: SocketAddr,
    method: Method,
    path: &str,
) -> Result<Response, AdminError> {
    let exchange = async {
        let open = move || {
            if address.is_ipv4() {
                TcpSocket::new_v4()
            } else {
                TcpSocket::new_v6()
            }
        };
        let connect = |source| AdminError::Connect { address, source };
        let socket = netns.run(open)?.map_err(connect)?;
        let stream = socket.connect(address).await.map_err(connect)?;
        send(stream, method, path, address).await
    };
    tokio::time::timeout(TIMEOUT, exchange)
        .await
        .unwrap_or(Err(AdminError::Timeout))
}

async fn send(
    stream: TcpStream,
    method: Method,
    path: &str,
    address: SocketAddr,
) -> Result<Response, AdminError> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address.to_string())
        .header("connection", "close")
        .body(Full::<Bytes>::default())?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| AdminError::Body(error.to_string()))?;
        Ok(Response {
            status,
            body: body.to_bytes(),
        })
    };
    tokio::pin!(exchange, connection);
    tokio::select! {
        result = &mut exchange => result,
        ended = &mut connection => {
            ended?;
            exchange.await
        }
    }
}
