//! Where objects come from. A source turns whatever it reads into the same
//! events, so that nothing behind it knows whether that is a directory or the
//! Kubernetes API.

pub mod directory;
mod files;

use std::{fmt, future::Future, sync::Arc};

use culvert_kubeyaml::{Kind, Object, ObjectRef};
use tokio::sync::mpsc;

/// Names an object of a known kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Kind.
    pub kind: Kind,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of an object.
    pub fn of(object: &Object) -> Self {
        Self {
            kind: object.kind(),
            namespace: object.namespace().unwrap_or_default().into(),
            name: object.name().into(),
        }
    }

    /// The key of an object that could be named but not read.
    pub fn of_reference(reference: &ObjectRef) -> Option<Self> {
        let kind = reference.known_kind()?;
        (!reference.name.is_empty()).then(|| Self {
            kind,
            namespace: reference.namespace.as_deref().unwrap_or_default().into(),
            name: reference.name.as_str().into(),
        })
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// What happened to an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It exists with this content.
    Upsert(Arc<Object>),
    /// It exists but cannot be read; what was known before stays.
    Broken {
        /// The object.
        key: ObjectKey,
        /// What is wrong, for people.
        message: String,
    },
    /// It is gone.
    Delete(ObjectKey),
}

/// Events that belong together, and the state of the source after them.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// What happened, in order; later events of an object replace earlier ones.
    pub events: Vec<Event>,
    /// Everything that is wrong at the source now, one sentence each.
    pub faults: Vec<String>,
    /// Whether all that the source has was delivered at least once.
    pub synced: bool,
}

/// A source of objects.
pub trait Source: Send + 'static {
    /// Delivers everything there is and then what changes, until the receiver
    /// is gone. The first batch that is `synced` ends the first load.
    fn run(self, batches: mpsc::Sender<Batch>) -> impl Future<Output = ()>;
}
