//! Whether the process may receive work, and if not, why.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

type Conditions = BTreeMap<&'static str, Option<String>>;

/// A set of named conditions; the process is ready when all of them are.
#[derive(Debug, Clone)]
pub struct Readiness {
    conditions: Arc<watch::Sender<Conditions>>,
}

/// Sets one condition of a [`Readiness`].
#[derive(Debug, Clone)]
pub struct ConditionHandle {
    name: &'static str,
    conditions: Arc<watch::Sender<Conditions>>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Ready, until the first condition is added.
    #[must_use]
    pub fn new() -> Self {
        Self {
            conditions: Arc::new(watch::Sender::new(BTreeMap::new())),
        }
    }

    /// Adds a condition that is not met yet.
    #[must_use]
    pub fn condition(&self, name: &'static str) -> ConditionHandle {
        let handle = ConditionHandle {
            name,
            conditions: Arc::clone(&self.conditions),
        };
        handle.set_not_ready("starting");
        handle
    }

    /// Whether every condition is met.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        ready(&self.conditions.borrow())
    }

    /// Name and reason of each condition that is not met, by name.
    #[must_use]
    pub fn unmet(&self) -> Vec<(&'static str, String)> {
        let conditions = self.conditions.borrow();
        conditions
            .iter()
            .filter_map(|(name, unmet)| Some((*name, unmet.clone()?)))
            .collect()
    }

    /// Waits until every condition is met.
    ///
    /// # Cancel safety
    /// Safe: the state is level-triggered.
    pub async fn wait_ready(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.conditions.subscribe().wait_for(ready).await;
    }
}

fn ready(conditions: &Conditions) -> bool {
    conditions.values().all(Option::is_none)
}

impl ConditionHandle {
    /// The condition is met.
    pub fn set_ready(&self) {
        self.set(None);
    }

    /// The condition is not met, for this reason.
    pub fn set_not_ready(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, unmet: Option<String>) {
        self.conditions.send_if_modified(|conditions| {
            let changed = conditions.get(self.name) != Some(&unmet);
            if changed {
                match &unmet {
                    None => tracing::info!(condition = self.name, "ready"),
                    Some(reason) => tracing::debug!(condition = self.name, reason, "not ready"),
                }
                conditions.insert(self.name, unmet);
            }
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ready_when_all_conditions_are() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let snapshot = readiness.condition("snapshot");
        let listener = readiness.condition("listener");
        assert_eq!(
            readiness.unmet(),
            [
                ("listener", "starting".into()),
                ("snapshot", "starting".into())
            ]
        );
        listener.set_ready();
        snapshot.set_not_ready("no answer from discovery");
        assert_eq!(
            readiness.unmet(),
            [("snapshot", "no answer from discovery".into())]
        );
        snapshot.set_ready();
        readiness.wait_ready().await;
        assert!(readiness.is_ready());
        listener.set_not_ready("lost");
        assert!(!readiness.is_ready());
    }
}
