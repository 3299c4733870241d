//! A pod as the admin port shows it.

use std::sync::Arc;

use culvert_netns::Netns;
use serde::Serialize;

use super::packet::Addition;
use super::session::PodState;

/// One pod with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    /// Kubernetes UID.
    pub uid: Arc<str>,
    /// The pod's name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its service account.
    pub service_account: Arc<str>,
    /// The inode of its network namespace.
    pub netns: u64,
    /// `Up`, `Starting` or `Pending`.
    pub state: &'static str,
    /// Why it is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl PodView {
    /// A pod that is served from the start and never changes.
    #[must_use]
    pub fn of_fixed(pod: &Addition<Netns>) -> Self {
        Self::new(pod, &PodState::Up)
    }

    pub(super) fn new(pod: &Addition<Netns>, state: &PodState) -> Self {
        let (state, reason) = match state {
            PodState::Up => ("Up", None),
            PodState::Starting => ("Starting", None),
            PodState::Pending(reason) => ("Pending", Some(reason.clone())),
        };
        Self {
            uid: pod.uid.clone(),
            name: pod.info.name.clone(),
            namespace: pod.info.namespace.clone(),
            service_account: pod.info.service_account.clone(),
            netns: pod.netns.inode(),
            state,
            reason,
        }
    }
}
