//! Carries bytes between an application's socket and its far leg.
//!
//! Each relay is one future for both directions, without a task or a buffer of
//! its own while nothing moves. Half-closes travel as END_STREAM and FIN; every
//! other end is an error here, and it is the caller's duty to reset the
//! application's socket then (dropping the stream resets the far side).

mod direct;
mod inflow;

pub use direct::{DirectError, between};

use crate::scratch::read_chunk;
use crate::stream::TunnelStream;
use bytes::Bytes;
use inflow::Inflow;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

/// How often a socket that is not being read is asked whether it is broken:
/// its reset would otherwise go unseen for as long as the other side is idle.
const FAULT_CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// The application's side of a relay.
pub trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// The error that the socket has met but not reported yet.
    fn pending_fault(&self) -> Option<io::Error>;
}

impl Socket for tokio::net::TcpStream {
    fn pending_fault(&self) -> Option<io::Error> {
        self.take_error().unwrap_or_else(Some)
    }
}

impl Socket for tokio::io::DuplexStream {
    fn pending_fault(&self) -> Option<io::Error> {
        None
    }
}

/// Told of every byte that is carried.
pub trait Meter {
    /// The application's bytes that went into the tunnel.
    fn sent(&self, bytes: usize);
    /// Bytes from the tunnel that the application's socket took.
    fn received(&self, bytes: usize);
}

impl Meter for () {
    fn sent(&self, _: usize) {}
    fn received(&self, _: usize) {}
}

/// Why a connection did not end in order.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The application's socket failed while it was read, mostly by a reset.
    #[error("application's socket could not be read")]
    Read(#[source] io::Error),
    /// The application's socket failed while it was written.
    #[error("application's socket could not be written")]
    Write(#[source] io::Error),
    /// The far side reset the stream.
    #[error("stream was reset by the far side")]
    Reset(#[source] h2::Error),
    /// The tunnel itself failed.
    #[error("tunnel failed")]
    Tunnel(#[source] h2::Error),
}

impl RelayError {
    fn from_h2(error: h2::Error) -> Self {
        if error.is_reset() {
            Self::Reset(error)
        } else {
            Self::Tunnel(error)
        }
    }

    /// Whether the application at this side aborted its connection.
    pub fn is_local_abort(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Write(_))
    }
}

/// Relays between a socket and a stream until both directions ended.
///
/// # Errors
///
/// See [`RelayError`]. The stream is reset when the future is dropped after an
/// error, or earlier; the socket is the caller's to reset.
///
/// # Cancel safety
///
/// Dropping the future aborts the stream.
pub fn tunnel<'a, S: Socket, M: Meter>(
    socket: &'a mut S,
    stream: TunnelStream,
    meter: &'a M,
) -> impl Future<Output = Result<(), RelayError>> + use<'a, S, M> {
    TunnelRelay {
        socket,
        meter,
        outflow: Outflow::Reading,
        inflow: Inflow::default(),
        fault_check: None,
        stream,
    }
}

/// The direction from the application into the tunnel.
enum Outflow {
    Reading,
    /// Read, but the stream has no window for it.
    Waiting(Bytes),
    Ended,
}

struct TunnelRelay<'a, S, M> {
    socket: &'a mut S,
    meter: &'a M,
    outflow: Outflow,
    inflow: Inflow,
    fault_check: Option<Pin<Box<Sleep>>>,
    stream: TunnelStream,
}

impl<S: Socket, M: Meter> Future for TunnelRelay<'_, S, M> {
    type Output = Result<(), RelayError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let received = this.poll_receive(cx)?;
        let sent = this.poll_send(cx)?;
        match (sent, received) {
            (Poll::Ready(()), Poll::Ready(())) => return Poll::Ready(Ok(())),
            (Poll::Pending, Poll::Ready(())) => this.poll_peer_reset(cx)?,
            _ => {}
        }
        this.poll_fault(cx)?;
        Poll::Pending
    }
}

impl<S: Socket, M: Meter> TunnelRelay<'_, S, M> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RelayError>> {
        loop {
            match &mut self.outflow {
                Outflow::Ended => return Poll::Ready(Ok(())),
                Outflow::Waiting(data) => {
                    ready!(send_some(&mut self.stream, data, cx))?;
                    if data.is_empty() {
                        self.outflow = Outflow::Reading;
                    }
                }
                Outflow::Reading => {
                    let data = ready!(read_chunk(Pin::new(&mut *self.socket), cx))
                        .map_err(RelayError::Read)?;
                    if data.is_empty() {
                        let ended = self.stream.send.send_data(Bytes::new(), true);
                        ended.map_err(RelayError::from_h2)?;
                        self.stream.send_done = true;
                        self.outflow = Outflow::Ended;
                        return Poll::Ready(Ok(()));
                    }
                    self.meter.sent(data.len());
                    self.outflow = Outflow::Waiting(data);
                }
            }
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RelayError>> {
        if self.stream.recv_done {
            return Poll::Ready(Ok(()));
        }
        ready!(
            self.inflow
                .poll(self.socket, &mut self.stream.recv, self.meter, cx)
        )?;
        self.stream.recv_done = true;
        Poll::Ready(Ok(()))
    }

    /// Once the far side's data has ended only this shows its reset.
    fn poll_peer_reset(&mut self, cx: &mut Context<'_>) -> Result<(), RelayError> {
        match self.stream.send.poll_reset(cx) {
            Poll::Ready(Ok(reason)) => Err(RelayError::Reset(reason.into())),
            Poll::Ready(Err(error)) => Err(RelayError::from_h2(error)),
            Poll::Pending => Ok(()),
        }
    }

    fn poll_fault(&mut self, cx: &mut Context<'_>) -> Result<(), RelayError> {
        if matches!(self.outflow, Outflow::Reading) {
            self.fault_check = None;
            return Ok(());
        }
        poll_fault(&mut self.fault_check, self.socket, cx).map_err(RelayError::Read)
    }
}

/// Looks at a socket that is not being read from time to time.
fn poll_fault<S: Socket>(
    timer: &mut Option<Pin<Box<Sleep>>>,
    socket: &S,
    cx: &mut Context<'_>,
) -> io::Result<()> {
    let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(FAULT_CHECK_INTERVAL)));
    while timer.as_mut().poll(cx).is_ready() {
        if let Some(fault) = socket.pending_fault() {
            return Err(fault);
        }
        timer.as_mut().reset(Instant::now() + FAULT_CHECK_INTERVAL);
    }
    Ok(())
}

/// Sends as much of `data` as the stream's window takes. `Ready` means that
/// something was sent.
fn send_some(
    stream: &mut TunnelStream,
    data: &mut Bytes,
    cx: &mut Context<'_>,
) -> Poll<Result<(), RelayError>> {
    let send = &mut stream.send;
    send.reserve_capacity(data.len());
    let mut window = send.capacity();
    while window == 0 {
        match ready!(send.poll_capacity(cx)) {
            Some(Ok(n)) => window = n,
            Some(Err(error)) => return Poll::Ready(Err(RelayError::from_h2(error))),
            // The stream is closed for sending: it was reset.
            None => {
                let reset = match ready!(send.poll_reset(cx)) {
                    Ok(reason) => reason.into(),
                    Err(error) => error,
                };
                return Poll::Ready(Err(RelayError::from_h2(reset)));
            }
        }
    }
    let part = data.split_to(window.min(data.len()));
    Poll::Ready(send.send_data(part, false).map_err(RelayError::from_h2))
}

#[cfg(test)]
mod tests;
