//! Waiting for a condition instead of sleeping for a guess.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::Instant;

/// Asks until `condition` gives a value, at most for `limit`. An error of the
/// condition counts as "not yet" and is told when time is over.
///
/// # Errors
/// When time is over.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(5);
    loop {
        let failed = match condition() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if Instant::now() >= deadline {
            return match failed {
                Some(error) => Err(error).with_context(|| format!("{what}: not within {limit:?}")),
                None => bail!("{what}: not within {limit:?}"),
            };
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Waits until `condition` holds.
///
/// # Errors
/// When time is over.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    wait_for(what, limit, || Ok(condition()?.then_some(())))
}

/// Checks that `condition` holds during the whole of `time`.
///
/// # Errors
/// As soon as it does not hold.
pub fn holds_for(
    what: &str,
    time: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if !condition().with_context(|| what.to_owned())? {
            bail!("{what}: no longer holds");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
