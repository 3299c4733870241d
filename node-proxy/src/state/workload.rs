//! Finding discovery's record of a pod of ours.

use std::sync::Arc;
use std::time::Duration;

use culvert_model::{Snapshot, Workload};
use tokio::time::{Instant, timeout_at};

use super::State;
use crate::pods::Pod;

/// A new pod's record follows its start by the time that discovery takes; a
/// connection is held no longer than this for it.
const WORKLOAD_WAIT: Duration = Duration::from_secs(5);

/// Discovery has not said anything of the pod, or speaks of a namesake.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no record of workload {workload} with identity {identity}")]
pub struct UnknownWorkload {
    workload: String,
    identity: String,
}

impl State {
    /// The pod's record in the snapshot in force, if there is one that is the pod's
    /// own: of another identity it would be a former pod of the same name.
    #[must_use]
    pub fn workload_of(&self, pod: &Pod) -> Option<Arc<Workload>> {
        workload_in(&self.snapshot.load(), pod).cloned()
    }

    /// As [`State::workload_of`], but waits up to 5 s for it.
    ///
    /// # Errors
    /// When there is still none: the connection must be refused.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn wait_workload(&self, pod: &Pod) -> Result<Arc<Workload>, UnknownWorkload> {
        // Subscribed before the first look, so that no change falls in between.
        let mut version = self.subscribe();
        let deadline = Instant::now() + WORKLOAD_WAIT;
        loop {
            if let Some(workload) = self.workload_of(pod) {
                return Ok(workload);
            }
            if timeout_at(deadline, version.changed()).await.is_err() {
                return Err(UnknownWorkload {
                    workload: pod.workload.to_string(),
                    identity: pod.identity.to_string(),
                });
            }
        }
    }
}

/// The pod's record in a snapshot, if it is the pod's own.
#[must_use]
pub fn workload_in<'a>(snapshot: &'a Snapshot, pod: &Pod) -> Option<&'a Arc<Workload>> {
    snapshot
        .workload(&pod.workload)
        .filter(|workload| workload.identity == pod.identity)
}

#[cfg(test)]
mod tests {
    use culvert_identity::{Identity, TrustDomain};
    use culvert_model::{Change, WorkloadUid};
    use culvert_netns::Netns;

    use super::*;

    fn identity(account: &str) -> Identity {
        let domain: TrustDomain = "cluster.local".parse().expect("trust domain");
        Identity::new(&domain, "shop", account).expect("identity")
    }

    fn pod() -> Pod {
        Pod {
            uid: "1-2-3".into(),
            name: "cart".into(),
            namespace: "shop".into(),
            identity: identity("cart"),
            workload: WorkloadUid::from("Kubernetes//Pod/shop/cart"),
            netns: Netns::current().expect("own namespace"),
            diag: crate::pods::PodDiag::default(),
        }
    }

    fn record(account: &str) -> Change {
        let uid = WorkloadUid::from("Kubernetes//Pod/shop/cart");
        Change::Workload(Workload::new(uid, "cart", identity(account)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_namesakes_record_is_not_the_pods() {
        let state = State::new("");
        state.apply([record("other")]);
        let start = Instant::now();
        state.wait_workload(&pod()).await.expect_err("not its own");
        assert_eq!(start.elapsed(), WORKLOAD_WAIT);
        state.apply([record("cart")]);
        assert!(state.workload_of(&pod()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_comes_late_is_waited_for() {
        let state = State::new("");
        let pod = pod();
        let later = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            state.apply([]);
            state.apply([record("cart")]);
        };
        let (found, ()) = tokio::join!(state.wait_workload(&pod), later);
        assert_eq!(found.expect("in time").identity, pod.identity);
    }
}
