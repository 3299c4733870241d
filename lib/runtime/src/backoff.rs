//! Delays between retries: doubling, capped, jittered.

use std::time::Duration;

use rand::Rng;

/// A growing delay between tries of one operation.
///
/// Each delay doubles from `min` to `max`; `jitter` (0.0–1.0) spreads it by that
/// fraction to both sides, so that many clients of a restarted server do not
/// return in step. The cap holds after the jitter.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    jitter: f64,
    next: Duration,
}

impl Backoff {
    /// A back-off that starts at `min` and never exceeds `max`.
    #[must_use]
    pub fn new(min: Duration, max: Duration, jitter: f64) -> Self {
        let min = min.min(max);
        Self {
            min,
            max,
            jitter: jitter.clamp(0.0, 1.0),
            next: min,
        }
    }

    /// The delay before the next try; the one after it is longer.
    pub fn next_delay(&mut self) -> Duration {
        let base = self.next;
        self.next = base.saturating_mul(2).min(self.max);
        let spread = if self.jitter > 0.0 {
            1.0 + rand::rng().random_range(-self.jitter..=self.jitter)
        } else {
            1.0
        };
        base.mul_f64(spread).min(self.max)
    }

    /// Starts again at the shortest delay: call it after a success.
    pub fn reset(&mut self) {
        self.next = self.min;
    }

    /// Waits for the next delay.
    ///
    /// # Cancel safety
    /// A cancelled wait still counts as a try.
    pub async fn wait(&mut self) {
        let delay = self.next_delay();
        tokio::time::sleep(delay).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn doubles_to_the_cap_and_resets() {
        let mut backoff = Backoff::new(ms(10), ms(35), 0.0);
        let delays: Vec<_> = (0..4).map(|_| backoff.next_delay()).collect();
        assert_eq!(delays, [ms(10), ms(20), ms(35), ms(35)]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), ms(10));
    }

    #[test]
    fn jitter_stays_within_its_fraction_and_the_cap() {
        for _ in 0..200 {
            let mut backoff = Backoff::new(ms(100), ms(150), 0.2);
            let first = backoff.next_delay();
            assert!(first >= ms(80) && first <= ms(120), "{first:?}");
            let second = backoff.next_delay();
            assert!(second >= ms(120) && second <= ms(150), "{second:?}");
        }
    }

    #[test]
    fn a_minimum_above_the_maximum_is_the_maximum() {
        assert_eq!(Backoff::new(ms(50), ms(20), 0.0).next_delay(), ms(20));
    }
}
