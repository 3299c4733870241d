//! The authority at work: signs leaves with the state in force, commits the
//! transitions of a rotation, publishes the bundle.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use culvert_identity::{Identity, TrustDomain};
use culvert_tls::IssuedCertificate;
use culvert_tls::ca::{Authority, IssueError, Issued, LeafRequest, PublicKey, Validity};

use crate::config::Lifetimes;
use crate::rotate::{RotateError, State, Step, Wish};
use crate::store::{Store, StoreError, replace};

/// A transition makes the next one due at most a few times in a row; the bound
/// guards against a state that would change for ever.
const STEPS_AT_ONCE_MAX: usize = 16;

/// Signs leaves, and rotates what signs them.
#[derive(Debug)]
pub struct Issuer {
    store: Store,
    setting: Setting,
    state: Mutex<State>,
    signing: ArcSwap<Signing>,
}

/// What does not change while the program runs.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The trust domain of every certificate.
    pub trust_domain: TrustDomain,
    /// How long things last.
    pub lifetimes: Lifetimes,
    /// Where the root bundle is published.
    pub bundle_file: Option<PathBuf>,
}

/// What a signature needs, swapped as a whole.
#[derive(Debug)]
struct Signing {
    intermediate: Arc<Authority>,
    bundle_pem: String,
}

/// A signed leaf with everything its owner needs.
#[derive(Debug)]
pub struct Answer {
    /// Leaf, intermediate, root bundle.
    pub chain: Vec<String>,
    /// What was signed.
    pub leaf: Issued,
}

/// Why the authority cannot work or change.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityFault {
    /// The state cannot be kept.
    #[error("cannot keep the state of the authority")]
    Store(#[source] StoreError),
    /// The transition is not possible.
    #[error("cannot rotate")]
    Rotate(#[source] RotateError),
    /// The bundle cannot be published.
    #[error("cannot publish the root bundle")]
    Publish(#[source] StoreError),
}

impl Issuer {
    /// Takes up the state in `store`, or makes a root when there is none.
    ///
    /// # Errors
    /// When the state cannot be read or written.
    pub fn open(store: Store, setting: Setting, now: SystemTime) -> Result<Self, AuthorityFault> {
        let trust_domain = &setting.trust_domain;
        let state = match store.load(trust_domain).map_err(AuthorityFault::Store)? {
            Some(state) => state,
            None => {
                let state = State::create(trust_domain, now, &setting.lifetimes)
                    .map_err(AuthorityFault::Rotate)?;
                store.save(&state).map_err(AuthorityFault::Store)?;
                tracing::info!(root = state.active.root.summary().subject, "made a root");
                state
            }
        };
        Ok(Self {
            signing: ArcSwap::from_pointee(Signing::of(&state)),
            state: Mutex::new(state),
            store,
            setting,
        })
    }

    /// Signs a leaf for `identity`, alive for `lifetime` (zero: the default),
    /// at most as long as configured and as the intermediate.
    ///
    /// # Errors
    /// When a name cannot be encoded or nothing is left of the intermediate's life.
    pub fn issue(
        &self,
        key: &PublicKey,
        request: &CertificateRequest<'_>,
        now: SystemTime,
    ) -> Result<Answer, IssueError> {
        let signing = self.signing.load();
        let leaf = signing.intermediate.sign(key, &self.leaf(request, now))?;
        let chain = vec![
            leaf.pem.clone(),
            signing.intermediate.certificate_pem().to_owned(),
            signing.bundle_pem.clone(),
        ];
        Ok(Answer { chain, leaf })
    }

    /// Makes a key and a certificate for this program itself.
    ///
    /// # Errors
    /// As [`Issuer::issue`].
    pub fn issue_own(
        &self,
        request: &CertificateRequest<'_>,
        now: SystemTime,
    ) -> Result<OwnCertificate, IssueError> {
        let signing = self.signing.load();
        let above = [signing.intermediate.certificate_pem()];
        let leaf = self.leaf(request, now);
        let issued = signing
            .intermediate
            .issue(&leaf, &above, &signing.bundle_pem)?;
        Ok(OwnCertificate {
            certificate: issued,
            signed_by: signing.intermediate.summary().serial.clone(),
        })
    }

    fn leaf(&self, request: &CertificateRequest<'_>, now: SystemTime) -> LeafRequest {
        let asked = if request.lifetime.is_zero() {
            self.setting.lifetimes.leaf
        } else {
            request.lifetime
        };
        let validity = Validity::lasting(now, asked.min(self.setting.lifetimes.leaf_max));
        LeafRequest {
            dns_names: request.dns_names.to_vec(),
            ..LeafRequest::new(request.identity, validity)
        }
    }

    /// Serial number of the intermediate that signs now.
    #[must_use]
    pub fn signed_by(&self) -> String {
        self.signing.load().intermediate.summary().serial.clone()
    }

    /// Until when the intermediate can sign.
    #[must_use]
    pub fn signs_until(&self) -> SystemTime {
        self.signing.load().intermediate.validity().not_after
    }

    /// The state in force.
    #[must_use]
    pub fn state(&self) -> State {
        self.lock().clone()
    }

    /// Brings the published bundle up to date and makes every transition whose
    /// time has come. Idempotent; run at start, on a timer and after a wish.
    ///
    /// # Errors
    /// When something cannot be written; what was committed before stays.
    pub fn reconcile(&self, now: SystemTime) -> Result<(), AuthorityFault> {
        let mut state = self.lock();
        self.settle(&mut state, now)
    }

    fn settle(&self, state: &mut State, now: SystemTime) -> Result<(), AuthorityFault> {
        for _ in 0..STEPS_AT_ONCE_MAX {
            self.publish(state)?;
            let Some(step) = state.due(now, &self.setting.lifetimes) else {
                return Ok(());
            };
            self.commit(state, step, now)?;
        }
        tracing::warn!("authority changes without coming to rest");
        Ok(())
    }

    /// Fulfils an operator's wish and what becomes due by it.
    ///
    /// # Errors
    /// When it is not possible now, or something cannot be written.
    pub fn fulfil(&self, wish: Wish, now: SystemTime) -> Result<(), AuthorityFault> {
        let mut state = self.lock();
        let step = state.step_for(wish).map_err(AuthorityFault::Rotate)?;
        self.commit(&mut state, step, now)?;
        self.settle(&mut state, now)
    }

    fn commit(&self, state: &mut State, step: Step, now: SystemTime) -> Result<(), AuthorityFault> {
        let next = state
            .after(step, now, &self.setting.lifetimes)
            .map_err(AuthorityFault::Rotate)?;
        self.store.save(&next).map_err(AuthorityFault::Store)?;
        *state = next;
        self.signing.store(Arc::new(Signing::of(state)));
        tracing::info!(
            ?step,
            root = state.active.root.summary().subject,
            intermediate = state.active.intermediate.summary().subject,
            roots_next = usize::from(state.next.is_some()),
            roots_retired = state.retired.len(),
            "rotation step"
        );
        Ok(())
    }

    fn publish(&self, state: &State) -> Result<(), AuthorityFault> {
        let Some(path) = &self.setting.bundle_file else {
            return Ok(());
        };
        let bundle = state.bundle_pem();
        if std::fs::read(path).is_ok_and(|published| published == bundle.as_bytes()) {
            return Ok(());
        }
        replace(path, bundle.as_bytes(), 0o644).map_err(AuthorityFault::Publish)?;
        tracing::info!(path = %path.display(), "published the root bundle");
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Signing {
    fn of(state: &State) -> Self {
        Self {
            intermediate: Arc::clone(&state.active.intermediate),
            bundle_pem: state.bundle_pem(),
        }
    }
}

/// A leaf to be signed.
#[derive(Clone, Copy, Debug)]
pub struct CertificateRequest<'a> {
    /// Whom it identifies.
    pub identity: &'a Identity,
    /// Names that clients of the control plane verify.
    pub dns_names: &'a [String],
    /// Zero means the default.
    pub lifetime: Duration,
}

/// A certificate of this program's own.
#[derive(Debug)]
pub struct OwnCertificate {
    /// The certificate and its key.
    pub certificate: IssuedCertificate,
    /// Serial number of the intermediate that signed it.
    pub signed_by: String,
}
