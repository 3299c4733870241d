//! Accepting node proxies: TLS with our own certificate, then HTTP/2.

pub mod authenticate;
pub mod ca_client;
pub mod certificate;

use std::{convert::Infallible, fmt, net::SocketAddr, sync::Arc, time::Duration};

use culvert_api::proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use culvert_runtime::{ConnectionTracker, DrainWatch, chain};
use culvert_tls::{ControlPlaneServer, fault};
use culvert_xds::server::{DiscoveryServer, ServerLimits};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{metrics::DiscoveryMetrics, publish::ViewPublisher};
use authenticate::TokenAuthenticator;

/// One connection a node, and as many again for a herd that reconnects.
const CONNECTIONS_MAX: usize = 20_000;
/// A node proxy holds one stream, and two while it is replaced.
const STREAMS_MAX: u32 = 8;
/// A node proxy that is silent for this long and does not answer a ping is gone.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A token and the usual few headers fit many times.
const HEADER_BYTES_MAX: u32 = 32 * 1024;

type Service = AggregatedDiscoveryServiceServer<DiscoveryServer<TokenAuthenticator, ViewPublisher>>;

/// The listening half of discovery.
#[derive(Clone)]
pub struct Server {
    service: Service,
    /// Nothing until the CA has issued the first one.
    tls: watch::Receiver<Option<ControlPlaneServer>>,
    connections: ConnectionTracker,
    metrics: DiscoveryMetrics,
    stop: Arc<watch::Sender<bool>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// Serves what `publisher` publishes to those whom `authenticator` knows.
    pub fn new(
        authenticator: TokenAuthenticator,
        publisher: Arc<ViewPublisher>,
        tls: watch::Receiver<Option<ControlPlaneServer>>,
        metrics: DiscoveryMetrics,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let server =
            DiscoveryServer::new(authenticator, publisher, ServerLimits::default(), stopped);
        Self {
            service: server.into_service(),
            tls,
            connections: ConnectionTracker::new(CONNECTIONS_MAX),
            metrics,
            stop: Arc::new(stop),
        }
    }

    /// Accepts node proxies until the drain starts, then ends their streams:
    /// they go to another replica, or come back.
    ///
    /// # Cancel safety
    /// A dropped server stops to accept; its connections end by themselves.
    pub async fn run(self, listener: TcpListener, drain: DrainWatch) {
        loop {
            let place = self.connections.reserve().await;
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = drain.started() => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    place.spawn(self.clone().connection(stream, address, drain.clone()));
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "cannot accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        self.stop.send_replace(true);
        let deadline = drain.started().await;
        self.connections.wait_drained(deadline).await;
    }

    async fn connection(mut self, stream: TcpStream, address: SocketAddr, drain: DrainWatch) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(error = chain(&error), "cannot set TCP_NODELAY");
        }
        let tls = tokio::select! {
            tls = self.tls.wait_for(Option::is_some) => tls.ok().and_then(|tls| tls.clone()),
            _ = drain.started() => None,
        };
        let Some(tls) = tls else {
            return;
        };
        let stream = match tls.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => {
                let reason = fault::classify_io(&error).reason();
                self.metrics.handshake_failed(reason);
                tracing::debug!(%address, reason, error = chain(&error), "handshake failed");
                return;
            }
        };
        let service = service_fn(|request| self.respond(request));
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            _ = drain.started() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%address, error = chain(&error), "connection ended");
        }
    }

    fn respond(
        &self,
        request: hyper::Request<Incoming>,
    ) -> impl Future<Output = Result<hyper::Response<tonic::body::Body>, Infallible>> + Send + use<>
    {
        use tonic::codegen::Service as _;
        let mut service = self.service.clone();
        service.call(request)
    }
}
