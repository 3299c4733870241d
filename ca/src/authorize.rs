//! Which identity a caller gets: its own, or that of a pod on its node.
//!
//! A pure decision on a placement; [`Authorizer`] repeats it for a moment when
//! the placement may not have caught up with the pod yet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use culvert_identity::{Identity, TrustDomain};
use culvert_token::Caller;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::config::Account;
use crate::metrics::CaMetrics;
use crate::pods::{Placement, PodsByNode, PodsError};

/// A node asks the moment a pod is there; its object may arrive a little later.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Between two looks; also how old a look may be that several requests share.
const CATCH_UP_INTERVAL: Duration = Duration::from_millis(50);

/// How old the first look may be: long enough that a herd of nodes shares one,
/// short enough that an ended pod's identity is gone at once.
const FIRST_LOOK_AGE_MAX: Duration = Duration::from_millis(500);

/// Requests that wait for a placement to catch up. One more is refused at once
/// and comes back: a node that asks for what it may not have must not keep
/// others from waiting for long.
const WAITING_MAX: usize = 512;

/// What does not depend on the request.
#[derive(Debug)]
pub struct Rules {
    /// The only trust domain there is.
    pub trust_domain: TrustDomain,
    /// Who may ask for the identities of pods on its node.
    pub node_accounts: BTreeSet<Account>,
}

/// Why an identity is not given.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// What is asked for is not an identity.
    #[error("requested identity is malformed")]
    MalformedIdentity,
    /// The token's own account has no identity that can be written.
    #[error("service account has no valid identity")]
    UnusableAccount,
    /// Another trust domain's identity is asked for.
    #[error("requested identity is of trust domain {requested}, expected {expected}")]
    WrongTrustDomain {
        /// What is asked for.
        requested: TrustDomain,
        /// What there is.
        expected: TrustDomain,
    },
    /// Only node accounts may ask for others.
    #[error("{namespace}/{account} is not a node account and asks for another's identity")]
    NotNodeAccount {
        /// Namespace of the caller.
        namespace: String,
        /// Account of the caller.
        account: String,
    },
    /// The token says nothing of a node or pod.
    #[error("token is bound to no node and no pod")]
    Unbound,
    /// The caller's node does not exist, or is another one of that name.
    #[error("token is bound to node {node}, which is not there")]
    UnknownNode {
        /// The node of the token.
        node: String,
    },
    /// The caller's pod does not exist, or is another one of that name, or runs elsewhere.
    #[error("token is bound to pod {pod}, which is not there")]
    UnknownPod {
        /// The pod of the token.
        pod: String,
    },
    /// No such pod on the caller's node.
    #[error("no pod of {namespace}/{account} is on node {node}")]
    NotOnNode {
        /// Namespace of the requested identity.
        namespace: String,
        /// Account of the requested identity.
        account: String,
        /// The caller's node.
        node: String,
    },
    /// It is not known what runs where.
    #[error("placement of pods is not known")]
    NoPlacement(#[source] PodsError),
}

impl Denied {
    /// The reason as a metric label: a closed set.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::MalformedIdentity => "malformed_identity",
            Self::UnusableAccount => "unusable_account",
            Self::WrongTrustDomain { .. } => "wrong_trust_domain",
            Self::NotNodeAccount { .. } => "not_a_node_account",
            Self::Unbound => "unbound_token",
            Self::UnknownNode { .. } => "unknown_node",
            Self::UnknownPod { .. } => "unknown_pod",
            Self::NotOnNode { .. } => "pod_not_on_node",
            Self::NoPlacement(_) => "no_placement",
        }
    }

    /// Whether a newer placement may change it.
    fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::UnknownNode { .. } | Self::UnknownPod { .. } | Self::NotOnNode { .. }
        )
    }
}

/// The identity that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// The caller's own.
    Own(Identity),
    /// That of a pod on the caller's node.
    OnNode {
        /// The pod's identity.
        identity: Identity,
        /// The caller's node.
        node: String,
    },
}

impl Granted {
    /// Whom the certificate will identify.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        match self {
            Self::Own(identity) | Self::OnNode { identity, .. } => identity,
        }
    }
}

/// Decides which identity a caller gets.
#[derive(Debug)]
pub struct Authorizer {
    rules: Rules,
    pods: Arc<dyn PodsByNode>,
    waiting: Semaphore,
    metrics: CaMetrics,
}

impl Authorizer {
    /// Decides by these rules and this placement.
    #[must_use]
    pub fn new(rules: Rules, pods: Arc<dyn PodsByNode>, metrics: CaMetrics) -> Self {
        Self {
            rules,
            pods,
            waiting: Semaphore::new(WAITING_MAX),
            metrics,
        }
    }

    /// Says which identity `caller` gets: its own when `requested` is `None`.
    ///
    /// # Errors
    /// Why it gets none, for the log; nothing of it may reach the caller.
    ///
    /// # Cancel safety
    /// A dropped decision has no effect.
    pub async fn authorize(
        &self,
        caller: &Caller,
        requested: Option<&str>,
    ) -> Result<Granted, Denied> {
        let Some(requested) = requested else {
            return own(&self.rules, caller);
        };
        let requested = claim(&self.rules, caller, requested)?;
        let first = self.look(caller, &requested, FIRST_LOOK_AGE_MAX).await;
        let mut denied = match first {
            Err(denied) if denied.may_pass() => denied,
            decided => return decided,
        };
        let Ok(_place) = self.waiting.try_acquire() else {
            return Err(denied);
        };
        let _counted = self.metrics.waiting();
        let give_up = Instant::now() + CATCH_UP;
        while Instant::now() < give_up {
            tokio::time::sleep(CATCH_UP_INTERVAL).await;
            match self.look(caller, &requested, CATCH_UP_INTERVAL).await {
                Err(again) if again.may_pass() => denied = again,
                decided => return decided,
            }
        }
        Err(denied)
    }

    async fn look(
        &self,
        caller: &Caller,
        requested: &Identity,
        age_max: Duration,
    ) -> Result<Granted, Denied> {
        let placement = self
            .pods
            .placement(age_max)
            .await
            .map_err(Denied::NoPlacement)?;
        on_node(&placement, caller, requested)
    }
}

fn own(rules: &Rules, caller: &Caller) -> Result<Granted, Denied> {
    let namespace = &caller.namespace;
    Identity::new(&rules.trust_domain, namespace, &caller.service_account)
        .map(Granted::Own)
        .map_err(|_| Denied::UnusableAccount)
}

/// What can be said of a request for another's identity without knowing what
/// runs where.
fn claim(rules: &Rules, caller: &Caller, requested: &str) -> Result<Identity, Denied> {
    let account = Account {
        namespace: caller.namespace.clone(),
        name: caller.service_account.clone(),
    };
    if !rules.node_accounts.contains(&account) {
        return Err(Denied::NotNodeAccount {
            namespace: account.namespace,
            account: account.name,
        });
    }
    let requested: Identity = requested.parse().map_err(|_| Denied::MalformedIdentity)?;
    if *requested.trust_domain() != rules.trust_domain {
        return Err(Denied::WrongTrustDomain {
            requested: requested.trust_domain().clone(),
            expected: rules.trust_domain.clone(),
        });
    }
    Ok(requested)
}

fn on_node(
    placement: &Placement,
    caller: &Caller,
    requested: &Identity,
) -> Result<Granted, Denied> {
    let node = node_of(placement, caller)?;
    let (namespace, account) = (requested.namespace(), requested.service_account());
    if !placement.runs(&node, namespace, account) {
        return Err(Denied::NotOnNode {
            namespace: namespace.to_owned(),
            account: account.to_owned(),
            node,
        });
    }
    Ok(Granted::OnNode {
        identity: requested.clone(),
        node,
    })
}

/// The node that the caller's token is bound to, directly or through its pod.
/// Every binding that the token has must still hold.
fn node_of(placement: &Placement, caller: &Caller) -> Result<String, Denied> {
    let through_pod = match &caller.pod {
        None => None,
        Some(bound) => {
            let found = placement.pod(&caller.namespace, &bound.name);
            let found = found.filter(|pod| pod.uid == bound.uid);
            Some(found.ok_or_else(|| Denied::UnknownPod {
                pod: format!("{}/{}", caller.namespace, bound.name),
            })?)
        }
    };
    let Some(bound) = &caller.node else {
        return through_pod
            .map(|pod| pod.node.clone())
            .ok_or(Denied::Unbound);
    };
    if through_pod.is_some_and(|pod| pod.node != bound.name) {
        return Err(Denied::UnknownPod {
            pod: format!("{} on {}", caller.namespace, bound.name),
        });
    }
    match placement.node_uid(&bound.name) {
        Some(uid) if uid == bound.uid => Ok(bound.name.clone()),
        _ => Err(Denied::UnknownNode {
            node: bound.name.clone(),
        }),
    }
}

#[cfg(test)]
mod tests;
