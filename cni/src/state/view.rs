//! The state machine as people see it.

use serde::Serialize;

use super::{Generation, RulesState, Sandbox, State, Summary, Uid};
use crate::pods::Membership;
use crate::rules::{PodRules, ProbeTarget};

/// What the agent knows and has done, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// In numbers.
    pub summary: Summary,
    /// Pods of the node, by UID.
    pub pods: Vec<PodView>,
    /// Probed ports that the node's own connections may reach, as written last.
    pub probes: Vec<ProbeTarget>,
}

/// One pod: one that has an object, a sandbox, or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PodView {
    /// Its UID.
    pub uid: Uid,
    /// It belongs to the mesh; absent while that cannot be known.
    pub member: Option<bool>,
    /// Its traffic passes the node proxy, by the rules that it should have.
    pub enrolled: bool,
    /// Why it is not enrolled.
    pub reason: Option<String>,
    /// Its rules were in place, so that nothing gets past the node proxy.
    pub captured: bool,
    /// Its redirect rules, as far as they are known.
    pub rules: Option<PodRules>,
    /// Connections that are older than its enrollment and stay as they are.
    pub older_connections: usize,
    /// Its network namespace, once the runtime has announced it.
    pub sandbox: Option<Sandbox>,
    /// Tells its sandboxes apart.
    pub generation: Option<Generation>,
    /// Work in the pod is under way.
    pub busy: bool,
}

impl State {
    /// What is known and done.
    #[must_use]
    pub fn view(&self) -> View {
        let known = self.objects.iter().flat_map(|objects| objects.pods.keys());
        let mut uids: Vec<&Uid> = known.chain(self.pods.keys()).collect();
        uids.sort();
        uids.dedup();
        View {
            summary: self.summary(),
            pods: uids.into_iter().map(|uid| self.pod_view(uid)).collect(),
            probes: self.probes.done.clone().unwrap_or_default(),
        }
    }

    fn pod_view(&self, uid: &Uid) -> PodView {
        let pod = self.pods.get(uid);
        let (member, enrolled) = match self.membership(uid) {
            Membership::In(rules) => (Some(true), self.is_enrolled(uid, &rules)),
            Membership::Out(_) => (Some(false), false),
            Membership::Unknown(_) => (None, false),
        };
        PodView {
            uid: Uid::clone(uid),
            member,
            enrolled,
            reason: (!enrolled).then(|| self.why_not(uid)),
            captured: self.is_captured(uid),
            rules: pod.and_then(|pod| match &pod.rules {
                RulesState::Present(rules) => Some(rules.clone()),
                RulesState::Unknown | RulesState::Absent => None,
            }),
            older_connections: pod.and_then(|pod| pod.older.as_ref()).map_or(0, Vec::len),
            sandbox: pod.map(|pod| pod.sandbox.clone()),
            generation: pod.map(|pod| pod.generation),
            busy: pod.is_some_and(|pod| pod.job.is_some()),
        }
    }
}
