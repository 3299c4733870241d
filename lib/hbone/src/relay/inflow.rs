//! The direction from the tunnel to the application: frames are gathered and
//! written together, and window is given back only for what the socket took.

use super::{Meter, RelayError, Socket};
use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Frames gathered for one write; more rarely wait at once.
const GATHER_FRAMES_MAX: usize = 16;
/// Frames below this are copied together while the socket is blocked. A slow
/// reader of tiny frames then costs its window and not one slot per frame in
/// h2, whose budget for small frames would end the whole tunnel.
const COMPACT_BYTES_MAX: usize = 2 * 1024;
/// A compacted piece is closed at this size.
const COMPACTED_BYTES: usize = 32 * 1024;

#[derive(Default)]
pub(super) struct Inflow {
    queue: VecDeque<Bytes>,
    /// Small frames after `queue`, copied together.
    small: BytesMut,
    ended: bool,
}

impl Inflow {
    /// Ready when the far side ended its data and the socket took all of it
    /// and its FIN.
    pub(super) fn poll<S: Socket, M: Meter>(
        &mut self,
        socket: &mut S,
        recv: &mut RecvStream,
        meter: &M,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), RelayError>> {
        loop {
            let waits = self.gather(recv, GATHER_FRAMES_MAX, cx)?;
            if self.queue.is_empty() && self.small.is_empty() {
                if self.ended {
                    let shut = ready!(Pin::new(socket).poll_shutdown(cx));
                    return Poll::Ready(shut.map_err(RelayError::Write));
                }
                debug_assert!(waits);
                return Poll::Pending;
            }
            match self.write(socket, cx) {
                Poll::Ready(Ok(n)) => {
                    meter.received(n);
                    // Fails only for a stream that is reset already.
                    let _ = recv.flow_control().release_capacity(n);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(RelayError::Write(error))),
                Poll::Pending => {
                    // The window bounds what can still come.
                    while !self.gather(recv, usize::MAX, cx)? {}
                    return Poll::Pending;
                }
            }
        }
    }

    /// Takes up to `frames` frames; true when there is no more for now.
    fn gather(
        &mut self,
        recv: &mut RecvStream,
        frames: usize,
        cx: &mut Context<'_>,
    ) -> Result<bool, RelayError> {
        while !self.ended {
            if self.queue.len() >= frames {
                return Ok(false);
            }
            match recv.poll_data(cx) {
                Poll::Pending => return Ok(true),
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(Ok(data))) => self.push(data),
                Poll::Ready(Some(Err(error))) => return Err(RelayError::from_h2(error)),
            }
        }
        Ok(true)
    }

    fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let blocked = self.queue.len() >= GATHER_FRAMES_MAX || !self.small.is_empty();
        if blocked && data.len() < COMPACT_BYTES_MAX {
            self.small.extend_from_slice(&data);
            if self.small.len() >= COMPACTED_BYTES {
                self.queue.push_back(self.small.split().freeze());
            }
            return;
        }
        if !self.small.is_empty() {
            self.queue.push_back(self.small.split().freeze());
        }
        self.queue.push_back(data);
    }

    fn write<S: Socket>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<std::io::Result<usize>> {
        if self.queue.is_empty() {
            self.queue.push_back(self.small.split().freeze());
        }
        let socket = Pin::new(socket);
        let n = if self.queue.len() == 1 {
            ready!(socket.poll_write(cx, &self.queue[0]))?
        } else {
            let mut slices = [IoSlice::new(&[]); GATHER_FRAMES_MAX];
            let used = self.queue.len().min(GATHER_FRAMES_MAX);
            for (slice, data) in slices.iter_mut().zip(&self.queue) {
                *slice = IoSlice::new(data);
            }
            ready!(socket.poll_write_vectored(cx, &slices[..used]))?
        };
        if n == 0 {
            return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
        }
        self.advance(n);
        Poll::Ready(Ok(n))
    }

    fn advance(&mut self, written: usize) {
        let mut left = written;
        while let Some(front) = self.queue.front_mut() {
            if left < front.len() {
                front.advance(left);
                return;
            }
            left -= front.len();
            self.queue.pop_front();
        }
        // An idle connection keeps no list.
        self.queue = VecDeque::new();
    }
}
