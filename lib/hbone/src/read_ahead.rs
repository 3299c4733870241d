//! Reads bulk in large pieces for a TLS session that asks for small ones.
//!
//! rustls asks for 4 KiB at a time when its buffer was empty, which is a system call
//! for each quarter of a record. A read that was filled to its end is a sign of more:
//! the next one takes all that is there, and the session is served from memory. What
//! comes in small messages passes without a copy.

use crate::scratch::read_chunk;
use bytes::{Buf, Bytes};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A transport whose bulk is read ahead. Holds no memory while nothing comes.
#[derive(Debug)]
pub struct ReadAhead<T> {
    io: T,
    /// Read and not asked for yet.
    ahead: Bytes,
    /// The last read was filled to its end.
    more: bool,
}

impl<T> ReadAhead<T> {
    /// Wraps a transport from which nothing has been read.
    pub fn new(io: T) -> Self {
        Self {
            io,
            ahead: Bytes::new(),
            more: false,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadAhead<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            if !this.more {
                ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
                this.more = buf.remaining() == 0;
                return Poll::Ready(Ok(()));
            }
            this.ahead = ready!(read_chunk(Pin::new(&mut this.io), cx))?;
            this.more = this.ahead.len() > buf.remaining();
        }
        let n = buf.remaining().min(this.ahead.len());
        buf.put_slice(&this.ahead[..n]);
        this.ahead.advance(n);
        if this.ahead.is_empty() {
            // The buffer goes back while the transport is idle.
            this.ahead = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadAhead<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::task::Waker;

    /// Gives at most `sizes[i]` bytes at the i-th read.
    struct Pieces<'a> {
        data: &'a [u8],
        sizes: std::vec::IntoIter<usize>,
        reads: usize,
    }

    impl AsyncRead for Pieces<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.reads += 1;
            let size = self.sizes.next().unwrap_or(usize::MAX);
            let n = size.min(buf.remaining()).min(self.data.len());
            let (now, later) = self.data.split_at(n);
            buf.put_slice(now);
            self.data = later;
            Poll::Ready(Ok(()))
        }
    }

    /// Reads to the end in pieces of `step`, and says how often that asked.
    fn read_all(data: &[u8], sizes: Vec<usize>, step: usize) -> (Vec<u8>, usize) {
        let mut io = ReadAhead::new(Pieces {
            data,
            sizes: sizes.into_iter(),
            reads: 0,
        });
        let cx = &mut Context::from_waker(Waker::noop());
        let mut joined = Vec::new();
        loop {
            let mut piece = vec![0; step];
            let mut buf = ReadBuf::new(&mut piece);
            let polled = Pin::new(&mut io).poll_read(cx, &mut buf);
            assert!(matches!(polled, Poll::Ready(Ok(()))));
            if buf.filled().is_empty() {
                assert_eq!(io.ahead.len(), 0);
                return (joined, io.io.reads);
            }
            joined.extend_from_slice(buf.filled());
        }
    }

    #[test]
    fn bulk_takes_few_reads() {
        let (joined, reads) = read_all(&[7; 500_000], Vec::new(), 4096);
        assert_eq!(joined.len(), 500_000);
        assert!(reads < 12, "{reads}");
    }

    proptest! {
        #[test]
        fn bytes_keep_their_order(
            data in proptest::collection::vec(any::<u8>(), 0..200_000),
            sizes in proptest::collection::vec(1usize..70_000, 0..20),
            step in 1usize..20_000,
        ) {
            let (joined, _) = read_all(&data, sizes, step);
            prop_assert!(joined == data);
        }
    }
}
