//! The source's end of a tunnel.

use crate::coalesce::{Coalesce, Traffic};
use crate::fault::{OpenError, TunnelError};
use crate::head::ConnectHead;
use crate::headers::REASON;
use crate::liveness::{Finding, Liveness};
use crate::settings::Settings;
use crate::stream::{Slot, StreamCount, TunnelStream};
use crate::windows::{Promised, Windows, connection_window};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::HeaderMap;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// A tunnel that moves more than this in a second carries bulk.
const BULK_BYTES_PER_SECOND: u64 = 32 * 1024 * 1024;
/// Shortest time over which the rate is taken.
const RATE_INTERVAL: Duration = Duration::from_millis(50);

/// Handle on a tunnel; clones share it.
#[derive(Debug, Clone)]
pub struct Tunnel(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Taken away when the tunnel takes no more streams: h2 closes a
    /// connection once no sender and no stream is left.
    sender: RefCell<Option<SendRequest<Bytes>>>,
    streams: Rc<StreamCount>,
    streams_max: usize,
    traffic: Rc<Traffic>,
    rate: Cell<Rate>,
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    since: Instant,
    bytes: u64,
    bulk: bool,
}

/// The work of a tunnel: whoever opened it must poll this, on the same thread,
/// for as long as the tunnel is to live.
pub struct Driver<T> {
    connection: h2::client::Connection<Coalesce<T>, Bytes>,
    io: Coalesce<T>,
    liveness: Liveness,
    shared: Rc<Shared>,
    opened_at: Instant,
    idle_timeout: Duration,
    lifetime_max: Duration,
    promised: Promised,
}

impl<T> std::fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

/// Starts a tunnel on a transport that is connected and authenticated. The
/// peer's settings are not waited for.
///
/// # Errors
///
/// The transport failed while the preface was written.
pub async fn start<T>(
    io: T,
    settings: &Settings,
    windows: &Windows,
) -> Result<(Tunnel, Driver<T>), TunnelError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let io = Coalesce::new(io);
    let promised = Promised::new(windows);
    let (sender, mut connection) = h2::client::Builder::new()
        .initial_window_size(promised.stream())
        .initial_connection_window_size(connection_window(settings.streams_max))
        .max_frame_size(settings.frame_bytes_max)
        .max_header_list_size(settings.head_bytes_max)
        .initial_max_send_streams(settings.streams_max as usize)
        .max_send_buffer_size(settings.send_buffer_bytes_max)
        .max_pending_accept_reset_streams(settings.pending_resets_max)
        .max_concurrent_reset_streams(settings.pending_resets_max)
        .enable_push(false)
        .handshake(io.clone())
        .await
        .map_err(TunnelError::Handshake)?;
    let now = Instant::now();
    let shared = Rc::new(Shared {
        sender: RefCell::new(Some(sender)),
        streams: StreamCount::new(windows),
        streams_max: settings.streams_max as usize,
        traffic: io.traffic(),
        rate: Cell::new(Rate {
            since: now,
            bytes: 0,
            bulk: false,
        }),
    });
    let driver = Driver {
        liveness: Liveness::new(connection.ping_pong(), io.traffic(), settings),
        connection,
        io,
        shared: Rc::clone(&shared),
        opened_at: now,
        idle_timeout: settings.idle_timeout,
        lifetime_max: settings.lifetime_max,
        promised,
    };
    Ok((Tunnel(shared), driver))
}

impl<T: AsyncRead + AsyncWrite + Unpin> Future for Driver<T> {
    type Output = Result<(), TunnelError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.promised
            .renew(|window| this.connection.set_initial_window_size(window));
        let polled = Pin::new(&mut this.connection).poll(cx);
        let flushed = this.io.poll_flush_collected(cx);
        if let Poll::Ready(ended) = polled {
            this.shared.retire();
            return Poll::Ready(ended.map_err(TunnelError::Connection));
        }
        if let Poll::Ready(Err(error)) = flushed {
            this.shared.retire();
            return Poll::Ready(Err(TunnelError::Write(error)));
        }
        if let Poll::Ready(finding) = this.liveness.poll(cx, this.shared.streams.active()) {
            if finding == Finding::Unresponsive {
                this.shared.retire();
                return Poll::Ready(Err(TunnelError::Unresponsive));
            }
            this.release_when_idle_or_old();
        }
        Poll::Pending
    }
}

impl<T> Driver<T> {
    fn release_when_idle_or_old(&self) {
        let now = Instant::now();
        let idle = self
            .shared
            .streams
            .idle_since()
            .is_some_and(|t| now - t >= self.idle_timeout);
        if idle || now - self.opened_at >= self.lifetime_max {
            self.shared.retire();
        }
    }
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        // A driver that is cancelled leaves no tunnel that looks usable.
        self.shared.retire();
    }
}

impl Shared {
    fn retire(&self) {
        self.sender.borrow_mut().take();
    }
}

impl Tunnel {
    /// Whether new streams may still be opened at some time.
    pub fn is_open(&self) -> bool {
        self.0.sender.borrow().is_some()
    }

    /// Streams that are open or being opened.
    pub fn streams(&self) -> usize {
        self.0.streams.active()
    }

    /// Takes no new stream from now on; those that are open live on.
    pub fn retire(&self) {
        self.0.retire();
    }

    /// Whether one more stream fits, by our limit and the peer's.
    pub fn has_room(&self) -> bool {
        self.0.sender.borrow().as_ref().is_some_and(|sender| {
            self.streams() < self.0.streams_max.min(sender.current_max_send_streams())
        })
    }

    /// Whether the tunnel carries bulk data at the moment.
    pub fn is_bulk(&self) -> bool {
        let now = Instant::now();
        let bytes = self.0.traffic.read.get() + self.0.traffic.written.get();
        let mut rate = self.0.rate.get();
        let elapsed = now - rate.since;
        if elapsed >= RATE_INTERVAL {
            let moved = u128::from(bytes - rate.bytes) * 1000 / elapsed.as_millis().max(1);
            rate = Rate {
                since: now,
                bytes,
                bulk: moved > u128::from(BULK_BYTES_PER_SECOND),
            };
            self.0.rate.set(rate);
        }
        rate.bulk
    }

    /// Takes a place for one stream, so that others see the tunnel as fuller.
    pub fn lease(&self) -> Lease {
        Lease {
            slot: self.0.streams.enter(),
            tunnel: self.clone(),
        }
    }
}

/// A place on a tunnel for one stream.
#[derive(Debug)]
pub struct Lease {
    slot: Slot,
    tunnel: Tunnel,
}

/// Resets the stream unless it is taken out: an abandoned request must not
/// look like an end of data to the destination.
struct Pending(Option<SendStream<Bytes>>);

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(send) = &mut self.0 {
            send.send_reset(Reason::CONNECT_ERROR);
        }
    }
}

impl Lease {
    /// Opens a stream and waits for the destination's 200. The second part of
    /// the answer is the response's headers.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. The caller sets the deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future resets the stream with CONNECT_ERROR.
    pub async fn connect(self, head: &ConnectHead) -> Result<(TunnelStream, HeaderMap), OpenError> {
        let request = head.encode().map_err(OpenError::Head)?;
        let sender = self.tunnel.0.sender.borrow().clone();
        let mut sender = sender.ok_or(OpenError::Closed)?;
        if let Err(error) = poll_fn(|cx| sender.poll_ready(cx)).await {
            self.tunnel.retire();
            return Err(OpenError::from_h2(error));
        }
        let opened = sender.send_request(request, false);
        drop(sender);
        let (response, send) = opened.map_err(|error| {
            self.tunnel.retire();
            // Nothing has left this process.
            OpenError::NotProcessed(error)
        })?;
        let mut pending = Pending(Some(send));
        let response = response.await.map_err(|error| {
            if !error.is_reset() {
                self.tunnel.retire();
            }
            OpenError::from_h2(error)
        })?;
        let (parts, recv) = response.into_parts();
        if parts.status != http::StatusCode::OK {
            let reason = parts.headers.get(REASON).and_then(|v| v.to_str().ok());
            return Err(OpenError::Refused {
                status: parts.status.as_u16(),
                reason: reason.map(str::to_owned),
            });
        }
        match pending.0.take() {
            Some(send) => Ok((TunnelStream::new(send, recv, self.slot), parts.headers)),
            None => Err(OpenError::Closed),
        }
    }
}
