//! The one signal by which a process ends: drain (finish work), then stop (now).

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Draining { until: Instant },
    Stopped,
}

/// Starts the drain of a process. Clones share the state.
#[derive(Debug, Clone)]
pub struct Drain {
    phase: watch::Sender<Phase>,
    deadline: Duration,
}

/// Observes a [`Drain`]. Cheap to clone; all waits are level-triggered.
#[derive(Debug, Clone)]
pub struct DrainWatch {
    phase: watch::Receiver<Phase>,
}

impl Drain {
    /// A drain that gives open work `deadline` to finish once it starts.
    #[must_use]
    pub fn new(deadline: Duration) -> Self {
        Self {
            phase: watch::Sender::new(Phase::Running),
            deadline,
        }
    }

    /// A view for tasks.
    #[must_use]
    pub fn watch(&self) -> DrainWatch {
        DrainWatch {
            phase: self.phase.subscribe(),
        }
    }

    /// Starts the drain; a second call changes nothing.
    pub fn start(&self, reason: &str) {
        let until = Instant::now() + self.deadline;
        let started = self.phase.send_if_modified(|phase| {
            let running = *phase == Phase::Running;
            if running {
                *phase = Phase::Draining { until };
            }
            running
        });
        if started {
            tracing::info!(reason, deadline = ?self.deadline, "drain started");
        }
    }

    /// Stops at once, whatever is open.
    pub fn stop(&self, reason: &str) {
        let stopped = self.phase.send_if_modified(|phase| {
            let open = *phase != Phase::Stopped;
            *phase = Phase::Stopped;
            open
        });
        if stopped {
            tracing::info!(reason, "stop");
        }
    }

    /// Turns SIGTERM and SIGINT into a drain, and a second one into a stop.
    /// Runs until the process stops; start it as a critical task.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub async fn on_signals(self) -> Result<(), std::io::Error> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let watch = self.watch();
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                () = watch.stopped() => return Ok(()),
            };
            if watch.is_draining() {
                self.stop(name);
            } else {
                self.start(name);
            }
        }
    }
}

impl DrainWatch {
    /// Waits until the drain starts and gives the moment at which it ends.
    ///
    /// # Cancel safety
    /// Safe: the state is level-triggered.
    pub async fn started(&self) -> Instant {
        let mut phase = self.phase.clone();
        match phase
            .wait_for(|phase| *phase != Phase::Running)
            .await
            .as_deref()
        {
            Ok(Phase::Draining { until }) => *until,
            // A dropped `Drain` means that its owner is gone: stop.
            _ => Instant::now(),
        }
    }

    /// Waits until work must end now: the drain's deadline, or a stop.
    ///
    /// # Cancel safety
    /// Safe: the state is level-triggered.
    pub async fn stopped(&self) {
        let until = self.started().await;
        let mut phase = self.phase.clone();
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            _ = phase.wait_for(|phase| *phase == Phase::Stopped) => {}
        }
    }

    /// Whether the drain has started (or the process is stopping).
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// When the drain ends, once it has started.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match *self.phase.borrow() {
            Phase::Running => None,
            Phase::Draining { until } => Some(until),
            Phase::Stopped => Some(Instant::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn drains_until_the_deadline() {
        let drain = Drain::new(DEADLINE);
        let watch = drain.watch();
        assert!(!watch.is_draining());
        assert_eq!(watch.deadline(), None);
        let begin = Instant::now();
        drain.start("test");
        drain.start("again");
        assert_eq!(watch.started().await, begin + DEADLINE);
        assert!(watch.is_draining());
        watch.stopped().await;
        assert_eq!(begin.elapsed().as_secs(), DEADLINE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_drain_at_once() {
        let drain = Drain::new(DEADLINE);
        let begin = Instant::now();
        drain.start("test");
        drain.stop("second signal");
        drain.watch().stopped().await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_drain_releases_its_watchers() {
        let drain = Drain::new(DEADLINE);
        let watch = drain.watch();
        drop(drain);
        watch.stopped().await;
    }
}
