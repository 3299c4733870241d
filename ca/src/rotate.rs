//! Rotation as a state machine: pure transitions on the authority's state.
//!
//! ```text
//!            begin                published              wait is over              leaves are gone
//! active A ───────▶ A, next B ──────────────▶ A, next B ──────────────▶ B, retired A ─────────────▶ B
//!                   (in the bundle)           (waiting)   B signs now                  A leaves the bundle
//! ```
//! Every arrow is one committed state, so a crash at any moment leaves the one
//! before or the one after. A new intermediate needs no steps: leaves carry it.

use std::sync::Arc;
use std::time::SystemTime;

use culvert_identity::TrustDomain;
use culvert_tls::ca::{Authority, AuthorityError, Validity};

use crate::config::Lifetimes;

/// Roots that are still trusted after they were replaced. Each rotation adds
/// one, and each is in every answer.
const RETIRED_MAX: usize = 4;

/// A root and the intermediate that signs for it.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    /// The root.
    pub root: Arc<Authority>,
    /// Signs leaves.
    pub intermediate: Arc<Authority>,
}

/// A hierarchy that is trusted already and will sign later.
#[derive(Clone, Debug)]
pub struct Next {
    /// The new root and intermediate.
    pub hierarchy: Hierarchy,
    /// When it starts to sign: known once the root has been published.
    pub switch_at: Option<SystemTime>,
}

/// A root that no longer signs; its key is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Its certificate.
    pub certificate_pem: String,
    /// When the last leaf below it has expired.
    pub prune_at: SystemTime,
}

/// Everything that the CA must not forget.
#[derive(Clone, Debug)]
pub struct State {
    /// The trust domain of every certificate.
    pub trust_domain: TrustDomain,
    /// What signs now.
    pub active: Hierarchy,
    /// What will sign next.
    pub next: Option<Next>,
    /// What is still trusted.
    pub retired: Vec<Retired>,
}

/// One transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a new root and trust it.
    BeginRoot,
    /// The new root is published: the wait starts.
    Published,
    /// The new root signs.
    Switch,
    /// The oldest replaced root is no longer trusted.
    Prune,
    /// Make a new intermediate below the active root.
    RenewIntermediate,
}

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A new intermediate.
    Intermediate,
    /// A new root, or nothing while one is under way.
    Root,
    /// The next step of the rotation without waiting for it; a new root when
    /// none is under way.
    Advance,
}

/// Why a transition is not possible.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// A new root waits to sign.
    #[error("a root rotation is under way; ask again with advance to skip its wait")]
    InProgress,
    /// There are too many roots in the bundle already.
    #[error("{RETIRED_MAX} replaced roots are still trusted; advance to prune the oldest")]
    TooManyRoots,
    /// The step does not fit the state.
    #[error("nothing to do for step {step:?}")]
    OutOfOrder {
        /// The step.
        step: Step,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate")]
    Authority(#[source] AuthorityError),
}

impl Hierarchy {
    fn make(
        trust_domain: &TrustDomain,
        now: SystemTime,
        lifetimes: &Lifetimes,
    ) -> Result<Self, RotateError> {
        let validity = Validity::lasting(now, lifetimes.root);
        let root = Authority::root(trust_domain, validity).map_err(RotateError::Authority)?;
        Self::below(Arc::new(root), trust_domain, now, lifetimes)
    }

    fn below(
        root: Arc<Authority>,
        trust_domain: &TrustDomain,
        now: SystemTime,
        lifetimes: &Lifetimes,
    ) -> Result<Self, RotateError> {
        let validity = Validity::lasting(now, lifetimes.intermediate);
        let intermediate = root
            .intermediate(trust_domain, validity)
            .map_err(RotateError::Authority)?;
        Ok(Self {
            root,
            intermediate: Arc::new(intermediate),
        })
    }
}

impl State {
    /// A fresh root and intermediate.
    ///
    /// # Errors
    /// Only when the cryptographic library fails.
    pub fn create(
        trust_domain: &TrustDomain,
        now: SystemTime,
        lifetimes: &Lifetimes,
    ) -> Result<Self, RotateError> {
        Ok(Self {
            trust_domain: trust_domain.clone(),
            active: Hierarchy::make(trust_domain, now, lifetimes)?,
            next: None,
            retired: Vec::new(),
        })
    }

    /// Every root to trust, the signing one first.
    #[must_use]
    pub fn bundle_pem(&self) -> String {
        let next = self.next.iter().map(|next| &next.hierarchy.root);
        let signing = std::iter::once(&self.active.root).chain(next);
        let retired = self
            .retired
            .iter()
            .map(|root| root.certificate_pem.as_str());
        signing
            .map(|root| root.certificate_pem())
            .chain(retired)
            .collect()
    }

    /// The transition whose time has come. The bundle file must be up to date
    /// before [`Step::Published`] is applied.
    #[must_use]
    pub fn due(&self, now: SystemTime, lifetimes: &Lifetimes) -> Option<Step> {
        if let Some(next) = &self.next {
            let Some(switch_at) = next.switch_at else {
                return Some(Step::Published);
            };
            // An expired root signs nothing, so waiting protects nobody.
            if now >= switch_at || now >= self.active.root.validity().not_after {
                return Some(Step::Switch);
            }
        }
        if self
            .retired
            .first()
            .is_some_and(|root| now >= root.prune_at)
        {
            return Some(Step::Prune);
        }
        if self.root_is_ageing(now) && self.may_begin().is_ok() {
            return Some(Step::BeginRoot);
        }
        self.intermediate_is_ageing(now, lifetimes)
            .then_some(Step::RenewIntermediate)
    }

    /// The last tenth of its life: a year, for a root of ten.
    fn root_is_ageing(&self, now: SystemTime) -> bool {
        let Validity {
            not_before,
            not_after,
        } = self.active.root.validity();
        let life = not_after.duration_since(not_before).unwrap_or_default();
        now + life / 10 >= not_after
    }

    /// Past half of its life, unless the root allows no longer one.
    fn intermediate_is_ageing(&self, now: SystemTime, lifetimes: &Lifetimes) -> bool {
        let Validity {
            not_before,
            not_after,
        } = self.active.intermediate.validity();
        let life = not_after.duration_since(not_before).unwrap_or_default();
        let root_ends = self.active.root.validity().not_after;
        let would_end = root_ends.min(now + lifetimes.intermediate);
        now >= not_before + life / 2 && would_end > not_after && now < root_ends
    }

    /// The transition that fulfils an operator's wish.
    ///
    /// # Errors
    /// When it is not possible in this state.
    pub fn step_for(&self, wish: Wish) -> Result<Step, RotateError> {
        match (wish, &self.next) {
            (Wish::Intermediate, _) => Ok(Step::RenewIntermediate),
            (Wish::Root, _) => self.may_begin().map(|()| Step::BeginRoot),
            (Wish::Advance, Some(_)) => Ok(Step::Switch),
            (Wish::Advance, None) if self.retired.is_empty() => Ok(Step::BeginRoot),
            (Wish::Advance, None) => Ok(Step::Prune),
        }
    }

    fn may_begin(&self) -> Result<(), RotateError> {
        if self.next.is_some() {
            return Err(RotateError::InProgress);
        }
        if self.retired.len() >= RETIRED_MAX {
            return Err(RotateError::TooManyRoots);
        }
        Ok(())
    }

    /// The state after a transition.
    ///
    /// # Errors
    /// When the transition does not fit, or a certificate cannot be made.
    pub fn after(
        &self,
        step: Step,
        now: SystemTime,
        lifetimes: &Lifetimes,
    ) -> Result<Self, RotateError> {
        let mut state = self.clone();
        match (step, state.next.take()) {
            (Step::BeginRoot, next) => {
                self.may_begin()?;
                debug_assert!(next.is_none(), "`may_begin` refuses a second one");
                state.next = Some(Next {
                    hierarchy: Hierarchy::make(&self.trust_domain, now, lifetimes)?,
                    switch_at: None,
                });
            }
            (Step::Published, Some(next)) => {
                state.next = Some(Next {
                    switch_at: Some(now + lifetimes.rotation_wait),
                    ..next
                });
            }
            (Step::Switch, Some(next)) => {
                state.retired.push(Retired {
                    certificate_pem: self.active.root.certificate_pem().to_owned(),
                    prune_at: now + lifetimes.leaf_max,
                });
                state.active = next.hierarchy;
            }
            (Step::Prune, next) if !state.retired.is_empty() => {
                state.retired.remove(0);
                state.next = next;
            }
            (Step::RenewIntermediate, next) => {
                let root = Arc::clone(&self.active.root);
                state.active = Hierarchy::below(root, &self.trust_domain, now, lifetimes)?;
                state.next = next;
            }
            (step, _) => return Err(RotateError::OutOfOrder { step }),
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests;
