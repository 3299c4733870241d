//! The destination's end of a tunnel.

use crate::authority::Authority;
use crate::coalesce::Coalesce;
use crate::fault::TunnelError;
use crate::head::{self, HeadError};
use crate::headers::{BAGGAGE, REASON};
use crate::liveness::{Finding, Liveness};
use crate::settings::Settings;
use crate::stream::{Slot, StreamCount, TunnelStream};
use crate::windows::{Promised, Windows, connection_window};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// A tunnel that a peer opened to us.
pub struct Tunnel<T> {
    connection: h2::server::Connection<Coalesce<T>, Bytes>,
    io: Coalesce<T>,
    liveness: Liveness,
    streams: Rc<StreamCount>,
    promised: Promised,
}

impl<T> std::fmt::Debug for Tunnel<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel")
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}

/// Starts the server's end on an authenticated transport.
///
/// # Errors
///
/// The peer did not speak HTTP/2. The caller sets the deadline.
pub async fn start<T>(
    io: T,
    settings: &Settings,
    windows: &Windows,
) -> Result<Tunnel<T>, TunnelError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let io = Coalesce::new(io);
    let promised = Promised::new(windows);
    let builder = {
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(promised.stream())
            .initial_connection_window_size(connection_window(settings.streams_max))
            .max_frame_size(settings.frame_bytes_max)
            .max_header_list_size(settings.head_bytes_max)
            .max_concurrent_streams(settings.streams_max)
            .max_send_buffer_size(settings.send_buffer_bytes_max)
            .max_pending_accept_reset_streams(settings.pending_resets_max)
            .max_concurrent_reset_streams(settings.pending_resets_max);
        builder
    };
    let mut handshake = std::pin::pin!(builder.handshake::<_, Bytes>(io.clone()));
    let mut connection = poll_fn(|cx| {
        let polled = std::future::Future::poll(handshake.as_mut(), cx);
        // Our settings must leave although h2's flush is ignored.
        let flushed = io.poll_flush_collected(cx);
        match (polled, flushed) {
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(TunnelError::Write(error))),
            (polled, _) => polled.map_err(TunnelError::Handshake),
        }
    })
    .await?;
    let liveness = Liveness::new(connection.ping_pong(), io.traffic(), settings);
    Ok(Tunnel {
        connection,
        io,
        liveness,
        streams: StreamCount::new(windows),
        promised,
    })
}

impl<T: AsyncRead + AsyncWrite + Unpin> Tunnel<T> {
    /// The next request, or `None` when the tunnel ended in order. This also
    /// does the tunnel's whole work, so it must be polled without a pause for
    /// as long as the tunnel lives.
    ///
    /// # Errors
    ///
    /// The tunnel failed; its streams are gone with it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Result<Incoming, TunnelError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// See [`Tunnel::next`].
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Incoming, TunnelError>>> {
        self.promised
            .renew(|window| self.connection.set_initial_window_size(window));
        match self.connection.poll_accept(cx) {
            Poll::Ready(Some(Ok((request, respond)))) => {
                let slot = self.streams.enter();
                return Poll::Ready(Some(Ok(Incoming::new(request, respond, slot))));
            }
            Poll::Ready(Some(Err(error))) => {
                // Tell the peer why, as far as it still listens.
                let _ = self.io.poll_flush_collected(cx);
                return Poll::Ready(Some(Err(TunnelError::Connection(error))));
            }
            Poll::Ready(None) => {
                let _ = self.io.poll_flush_collected(cx);
                return Poll::Ready(None);
            }
            Poll::Pending => {}
        }
        if let Poll::Ready(Err(error)) = self.io.poll_flush_collected(cx) {
            return Poll::Ready(Some(Err(TunnelError::Write(error))));
        }
        // A server watches its peer also when no stream is open: a client that
        // vanished would keep the tunnel for ever.
        if let Poll::Ready(Finding::Unresponsive) = self.liveness.poll(cx, 1) {
            return Poll::Ready(Some(Err(TunnelError::Unresponsive)));
        }
        Poll::Pending
    }

    /// Tells the peer to open no more streams. Those that are open live on;
    /// [`Tunnel::next`] ends when the last one has.
    pub fn drain(&mut self) {
        self.connection.graceful_shutdown();
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.streams.active()
    }
}

/// A CONNECT request that waits for its answer. Dropped without one, its
/// stream is reset with CONNECT_ERROR.
#[derive(Debug)]
pub struct Incoming {
    request: Request<RecvStream>,
    responder: Responder,
    slot: Slot,
}

#[derive(Debug)]
struct Responder(Option<SendResponse<Bytes>>);

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(respond) = &mut self.0 {
            respond.send_reset(Reason::CONNECT_ERROR);
        }
    }
}

impl Incoming {
    fn new(request: Request<RecvStream>, respond: SendResponse<Bytes>, slot: Slot) -> Self {
        Self {
            request,
            responder: Responder(Some(respond)),
            slot,
        }
    }

    /// Where the peer wants to go.
    ///
    /// # Errors
    ///
    /// The request is not a plain CONNECT; answer 400.
    pub fn authority(&self) -> Result<Authority, HeadError> {
        head::decode(&self.request)
    }

    /// Headers of the request: telemetry alone.
    pub fn headers(&self) -> &HeaderMap {
        self.request.headers()
    }

    /// Ready when the peer gave the request up.
    pub fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.responder.0 {
            Some(respond) => respond.poll_reset(cx).map(|_| ()),
            None => Poll::Ready(()),
        }
    }

    /// Answers 200.
    ///
    /// # Errors
    ///
    /// The stream is gone already.
    pub fn accept(self, baggage: Option<HeaderValue>) -> Result<TunnelStream, h2::Error> {
        let Self {
            request,
            mut responder,
            slot,
        } = self;
        let mut response = Response::new(());
        if let Some(baggage) = baggage {
            response.headers_mut().insert(BAGGAGE, baggage);
        }
        let respond = responder.0.as_mut().ok_or(Reason::INTERNAL_ERROR)?;
        let send = respond.send_response(response, false)?;
        responder.0 = None;
        Ok(TunnelStream::new(send, request.into_body(), slot))
    }

    /// Answers with a status other than 200 and no body.
    pub fn refuse(mut self, status: StatusCode, reason: Option<HeaderValue>) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        if let Some(reason) = reason {
            response.headers_mut().insert(REASON, reason);
        }
        if let Some(respond) = &mut self.responder.0
            && respond.send_response(response, true).is_ok()
        {
            self.responder.0 = None;
        }
    }
}
