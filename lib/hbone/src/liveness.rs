//! Decides when a tunnel's peer is gone: by PING, and by silence while streams
//! wait.

use crate::coalesce::Traffic;
use crate::settings::Settings;
use h2::{Ping, PingPong};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::time::{Instant, Sleep};

/// What a look at the tunnel found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The interval passed and the peer is not known to be gone.
    Checked,
    /// The peer did not answer in time.
    Unresponsive,
}

#[derive(Debug)]
struct Outstanding {
    sent: Instant,
    read_before: u64,
}

pub(crate) struct Liveness {
    ping: Option<PingPong>,
    timer: Pin<Box<Sleep>>,
    traffic: Rc<Traffic>,
    outstanding: Option<Outstanding>,
    pinged_at: Instant,
    read_seen: u64,
    written_seen: u64,
    check_interval: std::time::Duration,
    ping_interval: std::time::Duration,
    ping_timeout: std::time::Duration,
}

impl std::fmt::Debug for Liveness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Liveness")
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}

impl Liveness {
    pub(crate) fn new(ping: Option<PingPong>, traffic: Rc<Traffic>, settings: &Settings) -> Self {
        Self {
            ping,
            timer: Box::pin(tokio::time::sleep(settings.check_interval)),
            traffic,
            outstanding: None,
            pinged_at: Instant::now(),
            read_seen: 0,
            written_seen: 0,
            check_interval: settings.check_interval,
            ping_interval: settings.ping_interval,
            ping_timeout: settings.ping_timeout,
        }
    }

    /// Ready once in each check interval. `streams` is how many streams are
    /// open: with none nobody waits and nothing is sent.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, streams: usize) -> Poll<Finding> {
        if let Some(ping) = &mut self.ping
            && self.outstanding.is_some()
            && let Poll::Ready(answer) = ping.poll_pong(cx)
        {
            self.outstanding = None;
            if answer.is_err() {
                // The connection itself reports its end.
                self.ping = None;
            }
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let now = Instant::now();
        self.timer.as_mut().reset(now + self.check_interval);
        // Registers the new deadline; it lies in the future.
        let _ = self.timer.as_mut().poll(cx);
        Poll::Ready(self.check(now, streams, cx))
    }

    fn check(&mut self, now: Instant, streams: usize, cx: &mut Context<'_>) -> Finding {
        let (read, written) = (self.traffic.read.get(), self.traffic.written.get());
        let heard = read != self.read_seen;
        let unanswered = !heard && written != self.written_seen;
        if let Some(outstanding) = &self.outstanding {
            if read == outstanding.read_before && now - outstanding.sent >= self.ping_timeout {
                return Finding::Unresponsive;
            }
        } else if streams > 0 && (unanswered || now - self.pinged_at >= self.ping_interval) {
            self.send_ping(now, read, cx);
        }
        if heard {
            self.read_seen = read;
            self.written_seen = written;
        }
        Finding::Checked
    }

    fn send_ping(&mut self, now: Instant, read_before: u64, cx: &mut Context<'_>) {
        let Some(ping) = &mut self.ping else { return };
        if ping.send_ping(Ping::opaque()).is_ok() {
            self.pinged_at = now;
            self.outstanding = Some(Outstanding {
                sent: now,
                read_before,
            });
            // Registers for the answer.
            let _ = ping.poll_pong(cx);
        }
    }
}
