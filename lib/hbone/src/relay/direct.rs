//! Relay between two sockets: pass-through, and two pods of one node.

use super::{Meter, Socket, poll_fault};
use crate::scratch::read_chunk;
use bytes::{Buf, Bytes};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::time::Sleep;

/// Why a relay between two sockets did not end in order.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The application's socket failed, mostly by a reset.
    #[error("application's socket failed")]
    Near(#[source] io::Error),
    /// The socket towards the destination failed, mostly by a reset.
    #[error("destination's socket failed")]
    Far(#[source] io::Error),
}

/// Relays between two sockets until both directions ended.
///
/// # Errors
///
/// One of the sockets failed; the caller resets both.
///
/// # Cancel safety
///
/// Bytes that were read and not yet written are lost when the future is
/// dropped; the caller resets both sockets.
pub async fn between<A: Socket, B: Socket, M: Meter>(
    near: &mut A,
    far: &mut B,
    meter: &M,
) -> Result<(), DirectError> {
    DirectRelay {
        near,
        far,
        meter,
        forward: Flow::Reading,
        back: Flow::Reading,
        near_check: None,
        far_check: None,
    }
    .await
}

enum Flow {
    Reading,
    Writing(Bytes),
    Ended,
}

struct DirectRelay<'a, A, B, M> {
    near: &'a mut A,
    far: &'a mut B,
    meter: &'a M,
    forward: Flow,
    back: Flow,
    near_check: Option<Pin<Box<Sleep>>>,
    far_check: Option<Pin<Box<Sleep>>>,
}

impl<A: Socket, B: Socket, M: Meter> Future for DirectRelay<'_, A, B, M> {
    type Output = Result<(), DirectError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let meter = this.meter;
        let forward = this
            .forward
            .poll(this.near, this.far, cx, |n| meter.sent(n));
        let forward = match forward {
            Poll::Ready(Err((Side::Read, error))) => {
                return Poll::Ready(Err(DirectError::Near(error)));
            }
            Poll::Ready(Err((Side::Write, error))) => {
                return Poll::Ready(Err(DirectError::Far(error)));
            }
            other => other.is_ready(),
        };
        let back = match this
            .back
            .poll(this.far, this.near, cx, |n| meter.received(n))
        {
            Poll::Ready(Err((Side::Read, error))) => {
                return Poll::Ready(Err(DirectError::Far(error)));
            }
            Poll::Ready(Err((Side::Write, error))) => {
                return Poll::Ready(Err(DirectError::Near(error)));
            }
            other => other.is_ready(),
        };
        if forward && back {
            return Poll::Ready(Ok(()));
        }
        if !matches!(this.forward, Flow::Reading) {
            poll_fault(&mut this.near_check, this.near, cx).map_err(DirectError::Near)?;
        }
        if !matches!(this.back, Flow::Reading) {
            poll_fault(&mut this.far_check, this.far, cx).map_err(DirectError::Far)?;
        }
        Poll::Pending
    }
}

enum Side {
    Read,
    Write,
}

impl Flow {
    fn poll<R: Socket, W: Socket>(
        &mut self,
        from: &mut R,
        to: &mut W,
        cx: &mut Context<'_>,
        mut count: impl FnMut(usize),
    ) -> Poll<Result<(), (Side, io::Error)>> {
        loop {
            match self {
                Self::Ended => return Poll::Ready(Ok(())),
                Self::Reading => {
                    let data = ready!(read_chunk(Pin::new(&mut *from), cx))
                        .map_err(|error| (Side::Read, error))?;
                    if data.is_empty() {
                        ready!(Pin::new(&mut *to).poll_shutdown(cx))
                            .map_err(|error| (Side::Write, error))?;
                        *self = Self::Ended;
                    } else {
                        *self = Self::Writing(data);
                    }
                }
                Self::Writing(data) => {
                    let n = ready!(Pin::new(&mut *to).poll_write(cx, data))
                        .map_err(|error| (Side::Write, error))?;
                    if n == 0 {
                        return Poll::Ready(Err((Side::Write, io::ErrorKind::WriteZero.into())));
                    }
                    count(n);
                    data.advance(n);
                    if data.is_empty() {
                        *self = Self::Reading;
                    }
                }
            }
        }
    }
}
