//! Percentiles of latencies.

use std::time::Duration;

use serde::Serialize;

/// A summary of latencies in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, serde::Deserialize)]
pub struct Latencies {
    /// Half of them are shorter.
    pub p50_ms: f64,
    /// 99 of 100 are shorter.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Latencies {
    /// Sorts and sums up; no samples give zeros.
    #[must_use]
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self {
            p50_ms: percentile(&samples, 50),
            p99_ms: percentile(&samples, 99),
            max_ms: samples.last().copied().map_or(0.0, milliseconds),
        }
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().map_or(0.0, milliseconds)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The middle of some figures, or the mean of the two middle ones.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => 0.0,
        n if n % 2 == 1 => figures[middle],
        _ => f64::midpoint(figures[middle - 1], figures[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_take_the_nearest_rank() {
        let samples = (1..=100).rev().map(Duration::from_millis).collect();
        let latencies = Latencies::of(samples);
        assert!((latencies.p50_ms - 50.0).abs() < 1e-9);
        assert!((latencies.p99_ms - 99.0).abs() < 1e-9);
        assert!((latencies.max_ms - 100.0).abs() < 1e-9);
        assert!(Latencies::of(Vec::new()).max_ms.abs() < 1e-9);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert!((median(vec![4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }
}
