//! What became of an object.

use culvert_api::policy::AncestorReference;

use crate::watch::ObjectKey;

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `Accepted` and so on.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Sentence for people.
    pub message: String,
}

impl Condition {
    pub(super) fn new(
        kind: &'static str,
        holds: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            holds,
            reason,
            message: message.into(),
        }
    }

    pub(super) fn accepted() -> Self {
        Self::new("Accepted", true, "Accepted", "")
    }

    pub(super) fn refused(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new("Accepted", false, reason, message)
    }

    pub(super) fn enforced(holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self::new("Enforced", holds, reason, message)
    }
}

/// Conditions of a policy at one object that it is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AncestorConditions {
    /// The object.
    pub ancestor: AncestorReference,
    /// The conditions.
    pub conditions: Vec<Condition>,
}

/// Which form the status of a kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusShape {
    /// `status.ancestors[].conditions`, as GEP-713 has it.
    Ancestors(Vec<AncestorConditions>),
    /// `status.conditions`.
    Plain(Vec<Condition>),
}

/// The status of an object, without the times at which it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStatus {
    /// `metadata.generation` that it speaks of.
    pub generation: Option<i64>,
    /// Its content.
    pub shape: StatusShape,
}

impl ObjectStatus {
    pub(super) fn unreadable(key: &ObjectKey, message: &str) -> Self {
        let message = format!("{key} cannot be read and its last good form stays: {message}");
        Self {
            generation: None,
            shape: StatusShape::Plain(vec![Condition::refused("Invalid", message)]),
        }
    }

    /// Whether every `Accepted` condition holds.
    pub fn is_accepted(&self) -> bool {
        self.conditions().all(|c| c.kind != "Accepted" || c.holds)
    }

    /// All conditions.
    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        let (ancestors, plain) = match &self.shape {
            StatusShape::Ancestors(ancestors) => (ancestors.as_slice(), &[][..]),
            StatusShape::Plain(conditions) => (&[][..], conditions.as_slice()),
        };
        ancestors
            .iter()
            .flat_map(|a| a.conditions.iter())
            .chain(plain)
    }
}

/// The namespace of a policy as the object that it is attached to.
pub(super) fn namespace_ancestor(namespace: &str) -> AncestorReference {
    AncestorReference {
        kind: "Namespace".to_owned(),
        name: namespace.to_owned(),
        ..AncestorReference::default()
    }
}

/// The message for a policy whose newest form is wrong.
pub(super) fn invalid(fault: &str, last_good: bool) -> String {
    let rest = if last_good {
        "the last good form stays in force"
    } else {
        "nothing of it is in force"
    };
    format!("{fault}; {rest}")
}
