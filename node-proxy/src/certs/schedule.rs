//! Which certificate to ask for, and when. Pure: the times come from the caller.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use culvert_identity::Identity;
use culvert_runtime::Backoff;
use tokio::time::Instant;

/// What the CA of a large mesh takes from one node without queueing.
const IN_FLIGHT_MAX: usize = 8;
/// First wait after a failure: a restart of the CA takes about this long.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest wait: far below half the life of any sensible certificate.
const BACKOFF_MAX: Duration = Duration::from_secs(150);
/// Spread of the waits.
const BACKOFF_JITTER: f64 = 0.2;
/// A connection that waits shortens the wait to this: so far below what a connection
/// bears that one which comes right after a failure sees two more tries.
const DEMAND_WAIT_MAX: Duration = Duration::from_secs(2);

/// Why a certificate is wanted; the more urgent is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// The present one is at half of its life.
    Refresh,
    /// A pod has come.
    WarmUp,
    /// A connection waits.
    OnDemand,
}

#[derive(Debug)]
enum Phase {
    /// Wanted, waits for its turn; the number keeps the order of arrival.
    Queued(Priority, u64),
    /// Asked for.
    InFlight,
    /// There is a good one; the next is due at this time of day.
    Fresh(SystemTime),
    /// The last try, at `since`, failed; the next is due at `until`.
    Failed { since: Instant, until: Instant },
}

#[derive(Debug)]
struct Entry {
    /// Pods of this identity.
    pods: usize,
    phase: Phase,
    backoff: Backoff,
    /// A failed try is repeated with this.
    priority: Priority,
}

/// Both clocks: deadlines by the steady one, certificates by the wall's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) steady: Instant,
    pub(crate) wall: SystemTime,
}

/// The identities of this node and what each needs.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: HashMap<Identity, Entry>,
    arrivals: u64,
}

impl Schedule {
    /// One more pod of an identity.
    pub(crate) fn acquire(&mut self, identity: &Identity) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.pods += 1;
            return;
        }
        let entry = Entry {
            pods: 1,
            phase: Phase::Queued(Priority::WarmUp, self.arrivals),
            backoff: Backoff::new(BACKOFF_MIN, BACKOFF_MAX, BACKOFF_JITTER),
            priority: Priority::WarmUp,
        };
        self.arrivals += 1;
        self.entries.insert(identity.clone(), entry);
    }

    /// One pod less; true when it was the last one.
    pub(crate) fn release(&mut self, identity: &Identity) -> bool {
        let Some(entry) = self.entries.get_mut(identity) else {
            return false;
        };
        entry.pods = entry.pods.saturating_sub(1);
        let last = entry.pods == 0;
        if last {
            self.entries.remove(identity);
        }
        last
    }

    pub(crate) fn contains(&self, identity: &Identity) -> bool {
        self.entries.contains_key(identity)
    }

    /// A connection waits for the certificate.
    pub(crate) fn demand(&mut self, identity: &Identity) {
        let arrival = self.arrivals;
        let Some(entry) = self.entries.get_mut(identity) else {
            return;
        };
        match &mut entry.phase {
            Phase::Queued(priority, _) => *priority = Priority::OnDemand,
            Phase::InFlight => {}
            Phase::Fresh(_) => {
                // It has expired, or nobody would ask.
                entry.phase = Phase::Queued(Priority::OnDemand, arrival);
                self.arrivals += 1;
            }
            Phase::Failed { since, until } => *until = (*until).min(*since + DEMAND_WAIT_MAX),
        }
        entry.priority = Priority::OnDemand;
    }

    /// The next identity to ask for, if there is one and a request is free. It is in
    /// flight from here on.
    pub(crate) fn next(&mut self, now: Now) -> Option<Identity> {
        self.queue_due(now);
        let in_flight = self
            .entries
            .values()
            .filter(|e| matches!(e.phase, Phase::InFlight));
        if in_flight.count() >= IN_FLIGHT_MAX {
            return None;
        }
        let queued = self
            .entries
            .iter_mut()
            .filter_map(|(identity, entry)| match entry.phase {
                Phase::Queued(priority, arrival) => Some((priority, arrival, identity, entry)),
                _ => None,
            });
        let (.., identity, entry) = queued
            .max_by_key(|(priority, arrival, ..)| (*priority, std::cmp::Reverse(*arrival)))?;
        entry.phase = Phase::InFlight;
        Some(identity.clone())
    }

    fn queue_due(&mut self, now: Now) {
        for entry in self.entries.values_mut() {
            let priority = match entry.phase {
                Phase::Fresh(due) if due <= now.wall => Priority::Refresh,
                Phase::Failed { until, .. } if until <= now.steady => entry.priority,
                _ => continue,
            };
            entry.priority = priority;
            entry.phase = Phase::Queued(priority, self.arrivals);
            self.arrivals += 1;
        }
    }

    /// A request succeeded; the next is due at `renew_at`. The CA works, so whatever
    /// failed before is tried again at once.
    pub(crate) fn issued(&mut self, identity: &Identity, renew_at: SystemTime, now: Now) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.phase = Phase::Fresh(renew_at);
            entry.priority = Priority::Refresh;
            entry.backoff.reset();
        }
        for entry in self.entries.values_mut() {
            if let Phase::Failed { since, until } = &mut entry.phase {
                *until = (*until).min(now.steady.max(*since + BACKOFF_MIN));
            }
        }
    }

    /// A request failed.
    pub(crate) fn failed(&mut self, identity: &Identity, now: Now) {
        if let Some(entry) = self.entries.get_mut(identity) {
            let until = now.steady + entry.backoff.next_delay();
            entry.phase = Phase::Failed {
                since: now.steady,
                until,
            };
        }
    }

    /// How long nothing is due, if nothing else happens.
    pub(crate) fn idle(&self, now: Now) -> Option<Duration> {
        let due = |entry: &Entry| match entry.phase {
            Phase::Queued(..) => Some(Duration::ZERO),
            Phase::InFlight => None,
            Phase::Fresh(due) => Some(due.duration_since(now.wall).unwrap_or_default()),
            Phase::Failed { until, .. } => Some(until.saturating_duration_since(now.steady)),
        };
        let in_flight = |entry: &&Entry| matches!(entry.phase, Phase::InFlight);
        if self.entries.values().filter(in_flight).count() >= IN_FLIGHT_MAX {
            return None;
        }
        self.entries.values().filter_map(due).min()
    }
}

/// When to renew: at half of the life, give or take a twentieth of it, so that the
/// certificates of a node that started at once do not stay in step.
pub(crate) fn renew_at(not_before: SystemTime, not_after: SystemTime, random: f64) -> SystemTime {
    let life = not_after.duration_since(not_before).unwrap_or_default();
    not_before + life.mul_f64(0.45 + 0.1 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
