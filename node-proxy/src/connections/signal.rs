//! Tells one task of the same worker to close its connection.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use culvert_model::Denial;

/// Why a connection is closed from outside.
#[derive(Debug, Clone)]
pub(crate) enum CloseReason {
    /// A policy denies it now.
    Denied(Arc<Denial>),
    /// The pod is gone.
    PodGone,
}

impl CloseReason {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Denied(denial) => format!("closed by a policy change: {denial}"),
            Self::PodGone => "the pod is gone".to_owned(),
        }
    }
}

/// Set once; one task waits for it.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    reason: RefCell<Option<CloseReason>>,
    waker: RefCell<Option<Waker>>,
}

impl Signal {
    pub(crate) fn close(&self, reason: CloseReason) {
        self.reason.borrow_mut().get_or_insert(reason);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits for the signal.
    ///
    /// # Cancel safety
    /// The signal stays set.
    pub(crate) async fn closed(&self) -> CloseReason {
        poll_fn(|cx| {
            if let Some(reason) = &*self.reason.borrow() {
                return Poll::Ready(reason.clone());
            }
            match &mut *self.waker.borrow_mut() {
                Some(waker) => waker.clone_from(cx.waker()),
                empty => *empty = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }
}
