//! An IO wrapper that turns h2's many small writes into few large ones.
//!
//! h2 flushes after every DATA frame of some size, so a connection that wakes
//! with twenty answers ready would write twenty TLS records with twenty system
//! calls. This wrapper collects what h2 writes while its connection is polled
//! and ignores h2's flush; whoever polls the connection calls
//! [`Coalesce::poll_flush_collected`] once when the poll returns. A large
//! payload is not collected but passed through together with what waits.
//!
//! It also bounds what one poll reads. h2 reads for as long as there is something,
//! and a peer that sends as fast as we decrypt would hold it there until its window
//! is spent, while the streams that could make room wait for their turn.

use crate::windows::STREAM_WINDOW_MAX;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Collected bytes that force a write even while the connection is polled:
/// four full TLS records, what one system call carries well.
const COLLECT_BYTES_MAX: usize = 64 * 1024;
/// From this size a copy costs more than what a shared write saves.
const PASS_THROUGH_BYTES_MIN: usize = 16 * 1024;
/// Capacity that an idle tunnel may keep for the next burst.
const KEEP_BYTES_MAX: usize = 16 * 1024;
/// Bytes that one poll of the connection reads: a quarter of a stream's largest
/// window, so that sender, tunnel and receiver work at the same time.
const READ_BYTES_PER_POLL: usize = STREAM_WINDOW_MAX as usize / 4;
/// h2 writes a head and a payload; one more slice holds what was collected.
const SLICES_MAX: usize = 8;

/// Bytes that crossed a tunnel's transport, for liveness and load.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) read: Cell<u64>,
    pub(crate) written: Cell<u64>,
}

struct Inner<T> {
    io: T,
    collected: Vec<u8>,
    /// Bytes of `collected` that are written already.
    sent: usize,
    /// Bytes read since the last flush.
    read: usize,
}

/// Handle on the wrapped transport: one is given to h2, one stays with the
/// driver for the flush.
pub(crate) struct Coalesce<T> {
    inner: Rc<RefCell<Inner<T>>>,
    traffic: Rc<Traffic>,
}

impl<T> std::fmt::Debug for Coalesce<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coalesce")
            .field("traffic", &self.traffic)
            .finish_non_exhaustive()
    }
}

impl<T> Clone for Coalesce<T> {
    fn clone(&self) -> Self {
        Self {
            inner: Rc::clone(&self.inner),
            traffic: Rc::clone(&self.traffic),
        }
    }
}

impl<T: AsyncWrite + Unpin> Coalesce<T> {
    pub(crate) fn new(io: T) -> Self {
        let inner = Inner {
            io,
            collected: Vec::new(),
            sent: 0,
            read: 0,
        };
        Self {
            inner: Rc::new(RefCell::new(inner)),
            traffic: Rc::default(),
        }
    }

    pub(crate) fn traffic(&self) -> Rc<Traffic> {
        Rc::clone(&self.traffic)
    }

    /// Writes and flushes what was collected. Ends a poll of the connection.
    pub(crate) fn poll_flush_collected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.inner.borrow_mut();
        inner.read = 0;
        ready!(inner.poll_drain(cx))?;
        Pin::new(&mut inner.io).poll_flush(cx)
    }
}

impl<T: AsyncWrite + Unpin> Inner<T> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.collected.len() {
            let n = ready!(Pin::new(&mut self.io).poll_write(cx, &self.collected[self.sent..]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n;
        }
        self.reset();
        Poll::Ready(Ok(()))
    }

    fn reset(&mut self) {
        self.sent = 0;
        self.collected.clear();
        if self.collected.capacity() > KEEP_BYTES_MAX {
            self.collected = Vec::new();
        }
    }

    fn waiting(&self) -> usize {
        self.collected.len() - self.sent
    }

    /// Writes what waits and the new slices as one vectored write, and answers
    /// how many of the new bytes are taken.
    fn poll_pass(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let waiting = self.waiting();
            if waiting == 0 {
                return Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            slices[0] = IoSlice::new(&self.collected[self.sent..]);
            let used = bufs.len().min(SLICES_MAX - 1);
            slices[1..=used].copy_from_slice(&bufs[..used]);
            let n = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..=used]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            if n < waiting {
                self.sent += n;
                continue;
            }
            self.reset();
            if n > waiting {
                return Poll::Ready(Ok(n - waiting));
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Coalesce<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.read >= READ_BYTES_PER_POLL {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut inner.io).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        inner.read += read;
        self.traffic.read.set(self.traffic.read.get() + read as u64);
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Coalesce<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.inner.borrow_mut();
        let offered: usize = bufs.iter().map(|buf| buf.len()).sum();
        let written = if offered >= PASS_THROUGH_BYTES_MIN {
            ready!(inner.poll_pass(cx, bufs))?
        } else {
            if inner.waiting() >= COLLECT_BYTES_MAX {
                ready!(inner.poll_drain(cx))?;
            }
            for buf in bufs {
                inner.collected.extend_from_slice(buf);
            }
            offered
        };
        self.traffic
            .written
            .set(self.traffic.written.get() + written as u64);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The driver flushes once its poll of the connection has returned.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.inner.borrow_mut();
        ready!(inner.poll_drain(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    /// Records every write and takes at most `take` bytes of each.
    #[derive(Default)]
    struct Recorder {
        writes: Vec<usize>,
        bytes: Vec<u8>,
        take: usize,
        /// Every second write is refused once when set.
        stutter: bool,
        refuse: bool,
    }

    impl AsyncWrite for Recorder {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.stutter {
                self.refuse = !self.refuse;
                if self.refuse {
                    return Poll::Pending;
                }
            }
            let n = buf.len().min(self.take);
            self.writes.push(n);
            self.bytes.extend_from_slice(&buf[..n]);
            Poll::Ready(Ok(n))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let joined: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
            self.poll_write(cx, &joined)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn small_writes_become_one() {
        let mut io = Coalesce::new(Recorder {
            take: usize::MAX,
            ..Recorder::default()
        });
        let cx = &mut Context::from_waker(Waker::noop());
        for _ in 0..20 {
            assert!(Pin::new(&mut io).poll_write(cx, &[7; 1000]).is_ready());
            assert!(Pin::new(&mut io).poll_flush(cx).is_ready());
        }
        assert!(io.poll_flush_collected(cx).is_ready());
        assert_eq!(io.inner.borrow().io.writes, [20_000]);
        assert!(io.inner.borrow().collected.capacity() <= KEEP_BYTES_MAX);
    }

    #[test]
    fn a_large_payload_takes_what_waits_with_it() {
        let mut io = Coalesce::new(Recorder {
            take: usize::MAX,
            ..Recorder::default()
        });
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut io).poll_write(cx, &[1; 10]).is_ready());
        let large = vec![2; PASS_THROUGH_BYTES_MIN];
        let slices = [IoSlice::new(&[3; 9]), IoSlice::new(&large)];
        assert!(
            Pin::new(&mut io)
                .poll_write_vectored(cx, &slices)
                .is_ready()
        );
        assert_eq!(io.inner.borrow().io.writes, [PASS_THROUGH_BYTES_MIN + 19]);
    }

    /// Counts how often its task would be polled again.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn one_poll_reads_so_much_and_asks_for_the_next() {
        let mut io = Coalesce::new(tokio::io::join(tokio::io::repeat(7), Recorder::default()));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let cx = &mut Context::from_waker(&waker);
        let mut piece = vec![0; 16 * 1024];
        for poll in 1..=3 {
            let mut read = 0;
            loop {
                let mut buf = ReadBuf::new(&mut piece);
                if Pin::new(&mut io).poll_read(cx, &mut buf).is_pending() {
                    break;
                }
                read += buf.filled().len();
            }
            assert_eq!(read, READ_BYTES_PER_POLL);
            assert_eq!(wakes.0.load(Ordering::Relaxed), poll);
            assert!(io.poll_flush_collected(cx).is_ready());
        }
    }

    proptest! {
        #[test]
        fn bytes_keep_their_order(
            sizes in proptest::collection::vec(1usize..40_000, 1..20), take in 1usize..70_000, stutter: bool
        ) {
            let mut io = Coalesce::new(Recorder { take, stutter, ..Recorder::default() });
            let cx = &mut Context::from_waker(Waker::noop());
            let mut expected = Vec::new();
            for (i, size) in sizes.into_iter().enumerate() {
                let data = vec![u8::try_from(i).unwrap(); size];
                expected.extend_from_slice(&data);
                let mut rest = &data[..];
                while !rest.is_empty() {
                    if let Poll::Ready(n) = Pin::new(&mut io).poll_write(cx, rest) {
                        rest = &rest[n.unwrap()..];
                    }
                }
            }
            while io.poll_flush_collected(cx).is_pending() {}
            prop_assert!(io.inner.borrow().io.bytes == expected);
        }
    }
}
