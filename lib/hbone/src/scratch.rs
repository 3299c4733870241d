//! One read buffer for each worker thread, so that an idle connection holds
//! none. A short read is copied out of it; a long one takes the buffer along
//! and the worker makes a new one.

use bytes::{BufMut, Bytes, BytesMut};
use std::cell::RefCell;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Most bytes of one read. With the heads of its frame and of four TLS records it
/// leaves as one packet of the largest size that the kernel hands to a device (45
/// segments of 1428 bytes over IPv6); a few bytes more would cost a packet of their
/// own.
pub(crate) const READ_BYTES_MAX: usize = 62 * 1024;
/// Longest read that is copied: below it a copy is cheaper than pinning and
/// replacing the buffer.
const COPY_BYTES_MAX: usize = 8 * 1024;
/// A read into less room than this would only cut bulk into small pieces.
const ROOM_BYTES_MIN: usize = 32 * 1024;

thread_local! {
    static SCRATCH: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// Reads once from `io`. An empty answer is the end of the data.
///
/// # Errors
///
/// The error of the read.
pub fn read_chunk<R>(io: Pin<&mut R>, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>>
where
    R: AsyncRead + ?Sized,
{
    let mut io = io;
    SCRATCH.with_borrow_mut(|buffer| {
        if buffer.capacity() < ROOM_BYTES_MIN {
            *buffer = BytesMut::with_capacity(READ_BYTES_MAX + 9);
        }
        let mut limited = (&mut *buffer).limit(READ_BYTES_MAX);
        let n = {
            let read = pin!(io.read_buf(&mut limited));
            ready!(std::future::Future::poll(read, cx))?
        };
        if n > COPY_BYTES_MAX {
            return Poll::Ready(Ok(buffer.split().freeze()));
        }
        let chunk = Bytes::copy_from_slice(buffer);
        buffer.clear();
        Poll::Ready(Ok(chunk))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn short_and_long_reads_are_whole_and_ordered() {
        let cx = &mut Context::from_waker(Waker::noop());
        let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let mut source = &data[..];
        let mut joined = Vec::new();
        loop {
            let Poll::Ready(chunk) = read_chunk(Pin::new(&mut source), cx) else {
                panic!()
            };
            let chunk = chunk.unwrap();
            if chunk.is_empty() {
                break;
            }
            assert!(chunk.len() <= READ_BYTES_MAX);
            joined.extend_from_slice(&chunk);
        }
        assert!(joined == data);
    }

    #[test]
    fn a_pending_read_leaves_nothing_behind() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (mut idle, _peer) = tokio::io::duplex(16);
        assert!(read_chunk(Pin::new(&mut idle), cx).is_pending());
        let mut source = &b"abc"[..];
        let Poll::Ready(chunk) = read_chunk(Pin::new(&mut source), cx) else {
            panic!()
        };
        assert_eq!(&chunk.unwrap()[..], b"abc");
    }
}
