//! One stream of a tunnel: the far leg of one application connection.

use crate::windows::Windows;
use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use std::cell::Cell;
use std::rc::Rc;
use tokio::time::Instant;

/// Streams that a tunnel carries at the moment.
#[derive(Debug)]
pub(crate) struct StreamCount {
    active: Cell<usize>,
    idle_since: Cell<Instant>,
    windows: Windows,
}

impl StreamCount {
    pub(crate) fn new(windows: &Windows) -> Rc<Self> {
        Rc::new(Self {
            active: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            windows: windows.clone(),
        })
    }

    pub(crate) fn active(&self) -> usize {
        self.active.get()
    }

    /// Since when there is no stream; `None` while there is one.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        (self.active.get() == 0).then(|| self.idle_since.get())
    }

    pub(crate) fn enter(self: &Rc<Self>) -> Slot {
        self.active.set(self.active.get() + 1);
        self.windows.enter();
        Slot(Rc::clone(self))
    }
}

/// A stream's place on its tunnel.
#[derive(Debug)]
pub(crate) struct Slot(Rc<StreamCount>);

impl Drop for Slot {
    fn drop(&mut self) {
        let active = self.0.active.get() - 1;
        self.0.active.set(active);
        self.0.windows.leave();
        if active == 0 {
            self.0.idle_since.set(Instant::now());
        }
    }
}

/// An open stream. However it is dropped before both sides have ended their
/// data (an error, a cancelled future, a panic), the peer sees
/// RST_STREAM(CONNECT_ERROR): only END_STREAM is an end of data.
#[derive(Debug)]
pub struct TunnelStream {
    pub(crate) send: SendStream<Bytes>,
    pub(crate) recv: RecvStream,
    pub(crate) send_done: bool,
    pub(crate) recv_done: bool,
    _slot: Slot,
}

impl TunnelStream {
    pub(crate) fn new(send: SendStream<Bytes>, recv: RecvStream, slot: Slot) -> Self {
        Self {
            send,
            recv,
            send_done: false,
            recv_done: false,
            _slot: slot,
        }
    }

    /// Whether both directions ended cleanly.
    pub fn is_complete(&self) -> bool {
        self.send_done && self.recv_done
    }
}

impl Drop for TunnelStream {
    fn drop(&mut self) {
        if !self.is_complete() {
            self.send.send_reset(Reason::CONNECT_ERROR);
        }
    }
}
