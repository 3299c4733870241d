//! Accepting callers: TLS with the CA's own certificate, then HTTP/2.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::ca::istio_certificate_service_server::IstioCertificateServiceServer;
use culvert_runtime::{ConnectionTracker, DrainWatch, chain};
use culvert_tls::{ControlPlaneServer, fault};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tonic::server::NamedService;

use crate::metrics::CaMetrics;
use crate::service::CertificateService;

/// One connection a node, and some to spare for a herd that reconnects.
const CONNECTIONS_MAX: usize = 4096;

/// A node asks for eight certificates at a time.
const STREAMS_MAX: u32 = 64;

/// A request holds a CSR and a name.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// A caller that is silent for this long and does not answer a ping is gone.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a caller is, for the log.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The listening half of the CA.
#[derive(Debug, Clone)]
pub struct Server {
    tls: ControlPlaneServer,
    service: IstioCertificateServiceServer<CertificateService>,
    connections: ConnectionTracker,
    metrics: CaMetrics,
}

impl Server {
    /// Serves `service` behind `tls`.
    #[must_use]
    pub fn new(tls: ControlPlaneServer, service: CertificateService, metrics: CaMetrics) -> Self {
        let service = IstioCertificateServiceServer::from_arc(Arc::new(service))
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        Self {
            tls,
            service,
            connections: ConnectionTracker::new(CONNECTIONS_MAX),
            metrics,
        }
    }

    /// Accepts callers until the drain starts, then lets open requests finish.
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
        let deadline = drain.started().await;
        self.connections.wait_drained(deadline).await;
    }

    async fn connection(self, stream: TcpStream, address: SocketAddr, drain: DrainWatch) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(error = chain(&error), "cannot set TCP_NODELAY");
        }
        let stream = match self.tls.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => {
                let reason = fault::classify_io(&error).reason();
                self.metrics.handshake_failed(reason);
                tracing::debug!(%address, reason, error = chain(&error), "handshake failed");
                return;
            }
        };
        let service = service_fn(|request| self.respond(request, address));
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(32 * 1024)
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
        mut request: hyper::Request<Incoming>,
        address: SocketAddr,
    ) -> impl Future<Output = Result<hyper::Response<tonic::body::Body>, Infallible>> + Send + use<>
    {
        use tonic::codegen::Service;
        request.extensions_mut().insert(Peer(address));
        let mut service = self.service.clone();
        service.call(request)
    }
}

/// The path prefix that the service answers, for documentation and tests.
pub const SERVICE_NAME: &str =
    <IstioCertificateServiceServer<CertificateService> as NamedService>::NAME;
