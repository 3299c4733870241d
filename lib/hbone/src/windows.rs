//! How much a peer may send before anybody reads it.
//!
//! A stream's window is memory that one reader who stops may hold, and what bounds
//! the speed of everybody else. So the streams of a worker share a budget: each has
//! the full window while there are few, and half of it whenever their number doubles.
//! A tunnel tells its peer of the change by SETTINGS when it is polled next.

use crate::scratch::READ_BYTES_MAX;
use std::cell::Cell;
use std::rc::Rc;

/// Largest window of one stream: fills a path of 8 Gbit/s at 1 ms, and is what
/// one reader that stops may hold.
pub(crate) const STREAM_WINDOW_MAX: u32 = 1024 * 1024;
/// Smallest window of one stream: one full frame.
const STREAM_WINDOW_MIN: u32 = 64 * 1024;
const _: () = assert!(STREAM_WINDOW_MIN as usize >= READ_BYTES_MAX);
/// Part of the budget that streams of one window size may promise together. Readers
/// that stopped keep the larger windows of an emptier time: a quarter at the largest
/// and an eighth at each of the four smaller sizes stay below the whole.
const BUDGET_SHARE: u64 = 4;

/// The streams of one worker and the receive window of each; clones share it.
#[derive(Debug, Clone)]
pub struct Windows(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    budget: u64,
    streams: Cell<usize>,
    window: Cell<u32>,
}

impl Windows {
    /// Windows within a budget of bytes. When there are so many streams that it is
    /// spent, each further one still gets the smallest window that works.
    pub fn new(budget: u64) -> Self {
        Self(Rc::new(Shared {
            budget,
            streams: Cell::new(0),
            window: Cell::new(fitting(budget, 1)),
        }))
    }

    /// The receive window of a stream now, in bytes.
    pub fn stream(&self) -> u32 {
        self.0.window.get()
    }

    pub(crate) fn enter(&self) {
        self.0.streams.set(self.0.streams.get() + 1);
        self.0.update();
    }

    pub(crate) fn leave(&self) {
        self.0.streams.set(self.0.streams.get() - 1);
        self.0.update();
    }
}

impl Shared {
    /// Shrinks the window at once, and widens it when twice as many streams would
    /// fit, so that one stream more or less does not change it back and forth.
    fn update(&self) {
        let streams = self.streams.get() as u64;
        let (widen, shrink) = (
            fitting(self.budget, streams * 2),
            fitting(self.budget, streams),
        );
        self.window.set(self.window.get().clamp(widen, shrink));
    }
}

/// The largest window with which that many streams fit the budget.
fn fitting(budget: u64, streams: u64) -> u32 {
    let mut window = STREAM_WINDOW_MAX;
    while window > STREAM_WINDOW_MIN && streams.max(1) * u64::from(window) > budget / BUDGET_SHARE {
        window /= 2;
    }
    window
}

/// The window of a whole connection: its streams' largest windows together, so that
/// streams nobody reads never stall the others.
pub(crate) fn connection_window(streams_max: u32) -> u32 {
    // Window sizes end at 2^31 - 1 (RFC 9113 section 6.9.1).
    streams_max
        .saturating_mul(STREAM_WINDOW_MAX)
        .min(i32::MAX.unsigned_abs())
}

/// The window that one tunnel's peer was told.
#[derive(Debug)]
pub(crate) struct Promised {
    windows: Windows,
    told: u32,
}

impl Promised {
    pub(crate) fn new(windows: &Windows) -> Self {
        Self {
            windows: windows.clone(),
            told: windows.stream(),
        }
    }

    pub(crate) fn stream(&self) -> u32 {
        self.told
    }

    /// Tells the peer when the window has changed. `tell` fails while the peer has not
    /// acknowledged the change before; the next poll of the connection asks again.
    pub(crate) fn renew(&mut self, tell: impl FnOnce(u32) -> Result<(), h2::Error>) {
        let window = self.windows.stream();
        if window != self.told && tell(window).is_ok() {
            self.told = window;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 512 << 20;

    #[test]
    fn a_spent_budget_still_gives_the_smallest_windows() {
        let windows = Windows::new(0);
        assert_eq!(windows.stream(), STREAM_WINDOW_MIN);
        for _ in 0..1000 {
            windows.enter();
        }
        assert_eq!(windows.stream(), STREAM_WINDOW_MIN);
    }

    #[test]
    fn stopped_readers_never_hold_more_than_the_budget() {
        let windows = Windows::new(BUDGET);
        let mut held = 0;
        for _ in 0..2048 {
            windows.enter();
            // The one that came last fills its window and stops.
            held += u64::from(windows.stream());
        }
        assert_eq!(windows.stream(), STREAM_WINDOW_MIN);
        assert!(held <= BUDGET, "{held}");
    }

    #[test]
    fn the_window_does_not_go_back_and_forth() {
        let windows = Windows::new(BUDGET);
        let mut changes = Vec::new();
        let mut last = windows.stream();
        let mut note = |windows: &Windows| {
            if windows.stream() != last {
                last = windows.stream();
                changes.push(last >> 10);
            }
        };
        for _ in 0..129 {
            windows.enter();
            note(&windows);
        }
        for _ in 0..50 {
            windows.leave();
            note(&windows);
            windows.enter();
            note(&windows);
        }
        for _ in 0..129 {
            windows.leave();
            note(&windows);
        }
        assert_eq!(changes, [512, 1024]);
    }

    #[test]
    fn a_change_that_cannot_be_told_yet_is_told_later() {
        let windows = Windows::new(BUDGET);
        let mut promised = Promised::new(&windows);
        promised.renew(|_| panic!("nothing has changed"));
        for _ in 0..129 {
            windows.enter();
        }
        promised.renew(|_| Err(h2::Reason::INTERNAL_ERROR.into()));
        assert_eq!(promised.stream(), STREAM_WINDOW_MAX);
        promised.renew(|_| Ok(()));
        assert_eq!(promised.stream(), STREAM_WINDOW_MAX / 2);
    }

    #[test]
    fn a_connection_holds_all_its_streams() {
        assert_eq!(connection_window(200), 200 * STREAM_WINDOW_MAX);
        assert_eq!(connection_window(u32::MAX), i32::MAX.unsigned_abs());
    }
}
