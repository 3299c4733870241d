//! The controllers: pure functions from the world to the actions that bring it
//! nearer to what the objects ask for. One loop runs them all until none has a
//! wish left, whenever the world changes and once a second.

pub(crate) mod daemon_set;
pub(crate) mod deployment;
pub(crate) mod endpoints;
pub(crate) mod job;
pub(crate) mod namespaces;
pub(crate) mod services;
pub(crate) mod stateful_set;
pub(crate) mod template;
#[cfg(test)]
pub(crate) mod testing;

use std::time::{Duration, SystemTime};

use super::scheduler;
use super::world::{Action, Store, World, describe};

/// Rounds after which the loop gives others a turn: controllers settle in three or
/// four, so more means that two of them disagree.
const ROUNDS_MAX: usize = 20;
/// How often the controllers run when nothing changes (deadlines, times to live).
const TICK: Duration = Duration::from_secs(1);
/// Changes come in bursts; one pass serves the burst.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// Everything that all controllers ask for in this world.
pub(crate) fn desired(world: &World, now: SystemTime) -> Vec<Action> {
    let controllers: [fn(&World, SystemTime) -> Vec<Action>; 8] = [
        namespaces::desired,
        services::desired,
        deployment::desired,
        stateful_set::desired,
        daemon_set::desired,
        job::desired,
        scheduler::desired,
        endpoints::desired,
    ];
    controllers
        .iter()
        .flat_map(|controller| controller(world, now))
        .collect()
}

/// Runs the controllers for good.
///
/// # Cancel safety
/// Between two passes nothing is pending, so dropping the future loses nothing.
pub(crate) async fn run(store: Store) {
    let mut revisions = store.watch();
    loop {
        revisions.mark_unchanged();
        settle(&store);
        let changed = tokio::time::timeout(TICK, revisions.changed());
        if let Ok(Err(_)) = changed.await {
            return;
        }
        tokio::time::sleep(DEBOUNCE).await;
    }
}

fn settle(store: &Store) {
    for _ in 0..ROUNDS_MAX {
        let actions = desired(&store.snapshot(), SystemTime::now());
        if actions.is_empty() {
            return;
        }
        for action in &actions {
            tracing::debug!(action = describe(action), "controller");
        }
        store.apply(actions);
    }
    tracing::warn!(rounds = ROUNDS_MAX, "controllers do not settle");
}
