//! gRPC channels to the control plane: TCP, then TLS that verifies the server's name
//! against a bundle read anew for each connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_tls::{ControlPlaneClient, ControlPlaneError};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Uri};

/// A connection within a cluster takes milliseconds; a lost SYN is repeated twice
/// within this.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Half-open connections are found within a minute.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no connection to the control plane.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Not `host:port`.
    #[error("{address:?} is not of the form host:port")]
    Address {
        /// As it was given.
        address: String,
    },
    /// The name has no address.
    #[error("cannot resolve {address}")]
    Resolve {
        /// What was looked up.
        address: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Nobody answers there.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where.
        address: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server does not prove that it is the one.
    #[error("cannot trust {address}")]
    Tls {
        /// Where.
        address: String,
        /// The cause.
        #[source]
        source: ControlPlaneError,
    },
}

/// A channel that connects when it is first used, and again when it has to.
///
/// # Errors
/// When the address is not of the form `host:port`.
pub fn channel(address: &str, tls: Arc<ControlPlaneClient>) -> Result<Channel, ChannelError> {
    let bad = || ChannelError::Address {
        address: address.to_owned(),
    };
    // TLS is ours, so the library must believe that there is none.
    let uri: Uri = format!("http://{address}").parse().map_err(|_| bad())?;
    if uri.port().is_none() {
        return Err(bad());
    }
    let target: Arc<str> = Arc::from(address);
    let connector = tower::service_fn(move |_: Uri| {
        let (target, tls) = (target.clone(), tls.clone());
        async move { connect(&target, &tls).await.map(TokioIo::new) }
    });
    Ok(Endpoint::from(uri)
        .connect_timeout(2 * CONNECT_DEADLINE)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connector))
}

/// One connection, secured.
///
/// # Errors
/// When the server cannot be reached or does not prove its name.
pub async fn connect(
    address: &str,
    tls: &ControlPlaneClient,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ChannelError> {
    let tcp = connect_tcp(address).await?;
    tls.connect(tcp).await.map_err(|source| ChannelError::Tls {
        address: address.to_owned(),
        source,
    })
}

async fn connect_tcp(address: &str) -> Result<TcpStream, ChannelError> {
    let owned = || address.to_owned();
    let resolving = |source| ChannelError::Resolve {
        address: owned(),
        source,
    };
    let connecting = |source| ChannelError::Connect {
        address: owned(),
        source,
    };
    let candidates: Vec<SocketAddr> = match address.parse() {
        Ok(literal) => vec![literal],
        Err(_) => timeout(CONNECT_DEADLINE, tokio::net::lookup_host(address))
            .await
            .map_err(|_| resolving(io::ErrorKind::TimedOut.into()))?
            .map_err(resolving)?
            .collect(),
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for candidate in candidates {
        match timeout(CONNECT_DEADLINE, TcpStream::connect(candidate)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true).map_err(connecting)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(connecting(last))
}
