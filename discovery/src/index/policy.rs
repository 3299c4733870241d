//! Policies: the newest object, and the last form of it that makes sense.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use culvert_api::policy::{AuthorizationPolicySpec, DRY_RUN_ANNOTATION, PeerAuthenticationSpec};
use culvert_kubeyaml::{
    AuthorizationPolicy, FieldPath, PeerAuthentication,
    policy::{authorization_faults, peer_authentication_faults},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Effect, node::system_time};

/// A form of a policy that can be compiled.
#[derive(Debug, PartialEq)]
pub struct Good<S> {
    /// What it says.
    pub spec: S,
}

/// A policy object.
#[derive(Debug)]
pub struct PolicyEntry<S> {
    /// The last good form: what is enforced.
    pub good: Option<Arc<Good<S>>>,
    /// What is wrong with the newest form.
    pub fault: Option<String>,
    /// `metadata.generation` of the newest form.
    pub generation: Option<i64>,
    /// When it was created; decides between equals.
    pub created: Option<SystemTime>,
}

impl<S> Default for PolicyEntry<S> {
    fn default() -> Self {
        Self {
            good: None,
            fault: None,
            generation: None,
            created: None,
        }
    }
}

impl<S: PartialEq> PolicyEntry<S> {
    pub(super) fn upsert(&mut self, meta: &ObjectMeta, spec: Result<S, String>) -> Effect {
        let created = meta
            .creation_timestamp
            .as_ref()
            .and_then(|time| system_time(time.0));
        let mut changed = self.generation != meta.generation || self.created != created;
        self.generation = meta.generation;
        self.created = created;
        let fault = match spec {
            Ok(spec) => {
                if self.good.as_ref().is_none_or(|good| good.spec != spec) {
                    self.good = Some(Arc::new(Good { spec }));
                    changed = true;
                }
                None
            }
            Err(fault) => Some(fault),
        };
        changed |= self.fault != fault;
        self.fault = fault;
        Effect::of(changed)
    }

    pub(super) fn broke(&mut self, message: &str) -> Effect {
        let before = self.fault.replace(message.to_owned());
        Effect::of(before.as_deref() != Some(message))
    }
}

fn faults(found: &[(FieldPath, String)]) -> Result<(), String> {
    if found.is_empty() {
        return Ok(());
    }
    let found: Vec<_> = found
        .iter()
        .map(|(path, message)| format!("{path}: {message}"))
        .collect();
    Err(found.join("; "))
}

/// The spec of an authorization policy, dry run taken from either place.
pub(super) fn authorization(
    object: &AuthorizationPolicy,
) -> Result<AuthorizationPolicySpec, String> {
    faults(&authorization_faults(&object.metadata, &object.spec))?;
    let mut spec = object.spec.clone();
    let annotations = object.metadata.annotations.as_ref();
    let annotation = annotations.and_then(|annotations| annotations.get(DRY_RUN_ANNOTATION));
    spec.dry_run |= annotation.is_some_and(|value| value == "true");
    Ok(spec)
}

/// The spec of a peer authentication.
pub(super) fn peer_authentication(
    object: &PeerAuthentication,
) -> Result<PeerAuthenticationSpec, String> {
    faults(&peer_authentication_faults(&object.spec))?;
    let mut ports = BTreeSet::new();
    for port in object.spec.port_level_mtls.keys() {
        // "80" and "080" are one port.
        if !ports.insert(port.trim_start_matches('0')) {
            return Err(format!("spec.portLevelMtls: port {port} is listed twice"));
        }
    }
    Ok(object.spec.clone())
}
