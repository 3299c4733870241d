//! Policies by name and by scope, ready for the order of judgement.

use std::sync::Arc;

use crate::map::{List, ShardedMap};
use crate::name::PolicyName;
use crate::policy::{Action, Policy, Scope};

/// Policies of one scope, apart by what they mean, each part sorted by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct PolicyList {
    pub(crate) dry_deny: Arc<Vec<Arc<Policy>>>,
    pub(crate) deny: Arc<Vec<Arc<Policy>>>,
    pub(crate) dry_allow: Arc<Vec<Arc<Policy>>>,
    pub(crate) allow: Arc<Vec<Arc<Policy>>>,
}

impl List for PolicyList {
    fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl PolicyList {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        [&self.dry_deny, &self.deny, &self.dry_allow, &self.allow]
            .into_iter()
            .flat_map(|part| part.iter())
    }

    fn part(&mut self, policy: &Policy) -> &mut Vec<Arc<Policy>> {
        Arc::make_mut(match (policy.action, policy.dry_run) {
            (Action::Deny, true) => &mut self.dry_deny,
            (Action::Deny, false) => &mut self.deny,
            (Action::Allow, true) => &mut self.dry_allow,
            (Action::Allow, false) => &mut self.allow,
        })
    }

    fn insert(&mut self, policy: Arc<Policy>) {
        let part = self.part(&policy);
        let at = part.partition_point(|other| other.name < policy.name);
        part.insert(at, policy);
    }

    fn remove(&mut self, policy: &Policy) {
        self.part(policy).retain(|other| other.name != policy.name);
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyIndex {
    by_name: ShardedMap<PolicyName, Arc<Policy>>,
    global: PolicyList,
    by_namespace: ShardedMap<Arc<str>, PolicyList>,
}

impl PolicyIndex {
    pub(super) fn new() -> Self {
        Self {
            by_name: ShardedMap::new(),
            global: PolicyList::default(),
            by_namespace: ShardedMap::new(),
        }
    }

    pub(super) fn insert(&mut self, policy: Arc<Policy>) {
        self.remove(&policy.name);
        self.by_name.insert(policy.name.clone(), policy.clone());
        match policy.scope {
            Scope::Global => self.global.insert(policy),
            Scope::Namespace => {
                let namespace = policy.name.namespace.clone();
                self.by_namespace
                    .edit(&namespace, |list| list.insert(policy));
            }
            Scope::WorkloadSelector => {}
        }
    }

    pub(super) fn insert_unreadable(&mut self, name: PolicyName, scope: Scope) {
        if self.by_name.get(&name).is_none_or(|known| known.unreadable) {
            self.insert(Arc::new(Policy::unreadable(name, scope)));
        }
    }

    pub(super) fn remove(&mut self, name: &PolicyName) {
        let Some(old) = self.by_name.remove(name) else {
            return;
        };
        match old.scope {
            Scope::Global => self.global.remove(&old),
            Scope::Namespace => self
                .by_namespace
                .edit(&old.name.namespace, |list| list.remove(&old)),
            Scope::WorkloadSelector => {}
        }
    }

    pub(crate) fn get(&self, name: &PolicyName) -> Option<&Arc<Policy>> {
        self.by_name.get(name)
    }

    /// The lists that judge every workload of a namespace.
    pub(crate) fn scoped<'a>(
        &'a self,
        namespace: &str,
    ) -> impl Iterator<Item = &'a PolicyList> + Clone {
        std::iter::once(&self.global).chain(self.by_namespace.get(namespace))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.by_name.values()
    }
}
