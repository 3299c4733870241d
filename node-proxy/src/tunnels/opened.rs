//! Opening a stream towards a destination, over a pooled tunnel or a new one.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_hbone::{
    ConnectHead, OpenError, ReadAhead, Settings, TunnelError, TunnelStream, client,
};
use culvert_model::{TunnelRoute, WorkloadUid};
use culvert_netns::{ConnectOptions, set_keepalive, set_user_timeout};
use culvert_tls::{ALPN, client_config, fault::classify_io};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::TunnelKey;
use crate::fault::LegError;
use crate::pods::{PROXY_MARK, Pod};
use crate::socket::{DialError, KEEPALIVE, dial};
use crate::traffic::Reporter;
use crate::workers::Worker;

/// For the TCP connection to an endpoint: a reachable one answers in a round
/// trip, or after one lost SYN in a second.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// For the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// For the destination's answer to CONNECT: it connects to its application and
/// may wait for its own record.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// For data that is not acknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(5);
/// Plaintext that TLS takes before it is written: two full frames.
const TLS_BUFFER_BYTES: usize = 160 * 1024;
/// A stream may meet a tunnel that is closing this many times.
const STALE_TUNNELS_MAX: usize = 3;

/// Through which tunnel a stream is wanted.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) pod: &'a Arc<Pod>,
    pub(crate) client_ip: IpAddr,
    /// The pod's own addresses.
    pub(crate) addresses: &'a [IpAddr],
    pub(crate) route: &'a TunnelRoute,
}

impl Target<'_> {
    fn source_ip(&self) -> Option<IpAddr> {
        let same = self.client_ip.is_ipv4() == self.route.address.is_ipv4();
        (same && self.addresses.contains(&self.client_ip)).then_some(self.client_ip)
    }
}

/// Opens a stream.
///
/// # Errors
/// See [`LegError`].
///
/// # Cancel safety
/// The stream is reset when the future is dropped; a tunnel that is being
/// opened is left to the next caller.
pub(crate) async fn open_stream(
    worker: &Rc<Worker>,
    target: &Target<'_>,
    head: &ConnectHead,
) -> Result<TunnelStream, Rc<LegError>> {
    let key = TunnelKey {
        source: target.pod.identity.clone(),
        allowed: target.route.allowed.clone(),
        address: target.route.address,
        source_ip: target.client_ip,
        pod: Arc::clone(&target.pod.uid),
    };
    let mut stale = 0;
    loop {
        let lease = worker
            .tunnels
            .pool
            .lease(&key, || connect(worker, target))
            .await?;
        let opened = timeout(ANSWER_LIMIT, lease.connect(head)).await;
        match opened {
            Ok(Ok((stream, _))) => return Ok(stream),
            Ok(Err(error)) if error.is_retry_safe() && stale < STALE_TUNNELS_MAX => stale += 1,
            Ok(Err(error)) => return Err(Rc::new(open_error(error))),
            Err(_) => return Err(Rc::new(LegError::AnswerTimedOut)),
        }
    }
}

fn open_error(error: OpenError) -> LegError {
    match error {
        OpenError::Refused { status, reason } => LegError::Refused { status, reason },
        // A server that refuses our certificate says so only after our side of
        // the handshake is over, and h2 keeps the text of the alert alone.
        OpenError::Tunnel(source)
            if source
                .get_io()
                .is_some_and(|io| io.to_string().contains("alert")) =>
        {
            LegError::Alert(source)
        }
        other => LegError::Open(other),
    }
}

/// Opens a tunnel and starts its driver.
async fn connect(worker: &Rc<Worker>, target: &Target<'_>) -> Result<client::Tunnel, Rc<LegError>> {
    let stream = match authenticate(worker, target).await {
        Ok(stream) => stream,
        Err(error) => {
            if let LegError::Handshake(fault, _) = &error {
                worker
                    .shared
                    .parts
                    .traffic
                    .totals()
                    .handshake_failed(Reporter::Source, *fault);
            }
            return Err(Rc::new(error));
        }
    };
    let mut settings = Settings::client();
    settings.streams_max = worker.shared.config.tunnel_streams_max;
    let starting = client::start(stream, &settings, &worker.windows);
    let (tunnel, driver) = match timeout(HANDSHAKE_LIMIT, starting).await {
        Ok(Ok(started)) => started,
        Ok(Err(error)) => return Err(Rc::new(LegError::Http2(error))),
        Err(_) => return Err(Rc::new(LegError::AnswerTimedOut)),
    };
    let uid = target.route.workload.uid.clone();
    let watched = watch(Rc::clone(worker), driver, uid);
    let spawned = worker.tunnel_tracker.spawn_local(watched);
    spawned.map_err(|_| Rc::new(LegError::Overload))?;
    Ok(tunnel)
}

async fn watch(
    worker: Rc<Worker>,
    driver: client::Driver<TlsStream<ReadAhead<TcpStream>>>,
    uid: WorkloadUid,
) {
    let _counted = worker
        .shared
        .parts
        .traffic
        .totals()
        .tunnel(Reporter::Source);
    match driver.await {
        Ok(()) => {}
        Err(error @ TunnelError::Unresponsive) => {
            tracing::warn!(workload = %uid, %error, "endpoint taken out of use");
            worker.shared.parts.traffic.totals().ejected();
            worker.endpoints.eject(&uid);
        }
        Err(error) => {
            tracing::debug!(workload = %uid, error = culvert_runtime::chain(&error), "tunnel ended");
        }
    }
}

async fn authenticate(
    worker: &Rc<Worker>,
    target: &Target<'_>,
) -> Result<TlsStream<ReadAhead<TcpStream>>, LegError> {
    let certificates = &worker.shared.parts.certificates;
    let certificate = certificates.certificate(&target.pod.identity).await;
    let certificate = certificate.map_err(LegError::Certificate)?;
    let config = client_config(&certificate, &target.route.allowed);
    let address = target.route.address;
    // A pod may have several addresses: the destination is to see the one that
    // its application uses.
    let options = ConnectOptions {
        source: target.source_ip(),
        mark: Some(PROXY_MARK),
    };
    let home = &worker.shared.home;
    let stream = dial(home, &target.pod.netns, address, &options, CONNECT_LIMIT).await;
    let stream = stream.map_err(LegError::Dial)?;
    prepare(&stream);
    // No name is sent; the verifier looks at the identity alone.
    let name = ServerName::IpAddress(address.ip().into());
    let connecting = TlsConnector::from(config).connect_with(name, ReadAhead::new(stream), |tls| {
        tls.set_buffer_limit(Some(TLS_BUFFER_BYTES))
    });
    let tls = match timeout(HANDSHAKE_LIMIT, connecting).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return Err(LegError::Handshake(classify_io(&error), error)),
        Err(_) => {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(LegError::Handshake(culvert_tls::Fault::TimedOut, late));
        }
    };
    if tls.get_ref().1.alpn_protocol() != Some(ALPN) {
        let fault = culvert_tls::Fault::WrongProtocol;
        return Err(LegError::Handshake(fault, std::io::Error::other(fault)));
    }
    Ok(tls)
}

fn prepare(stream: &TcpStream) {
    if let Err(error) = set_user_timeout(stream, USER_TIMEOUT) {
        tracing::debug!(%error, "a tunnel has no limit for unacknowledged data");
    }
    if let Err(error) = set_keepalive(stream, &KEEPALIVE) {
        tracing::debug!(%error, "a tunnel has no keepalive");
    }
}

impl LegError {
    /// Whether the next endpoint may be tried, and whether this one is to be
    /// left out for a while.
    pub(crate) fn blames_endpoint(&self) -> bool {
        match self {
            Self::Dial(error) => !error.is_exhausted() && !matches!(error, DialError::Netns(_)),
            Self::Handshake(..) | Self::Alert(_) | Self::Http2(_) | Self::AnswerTimedOut => true,
            Self::Open(error) => !matches!(error, OpenError::Head(_)),
            Self::Certificate(_) | Self::Refused { .. } | Self::Overload => false,
        }
    }
}
