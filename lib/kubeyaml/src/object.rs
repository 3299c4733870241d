//! An object together with where it was read.

use std::path::Path;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::{
    fault::{Location, ObjectRef},
    kind::{Body, Kind},
};

/// A decoded object. Namespaced objects always have a namespace: `default`
/// where none was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Where it was read.
    pub source: Location,
    /// The typed content.
    pub body: Body,
}

impl Object {
    /// An object that was made in memory.
    pub fn new(body: impl Into<Body>) -> Self {
        Self {
            source: Location {
                file: Path::new("(memory)").into(),
                line: 0,
                document: 0,
            },
            body: body.into(),
        }
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.body.kind()
    }

    /// The metadata.
    pub fn meta(&self) -> &ObjectMeta {
        self.body.meta()
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    /// The namespace; none for cluster-scoped kinds.
    pub fn namespace(&self) -> Option<&str> {
        if self.kind().is_namespaced() {
            Some(self.meta().namespace.as_deref().unwrap_or("default"))
        } else {
            None
        }
    }

    /// Names the object.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef {
            api_version: self.kind().api_version(),
            kind: self.kind().name().to_owned(),
            namespace: self.namespace().map(str::to_owned),
            name: self.name().to_owned(),
        }
    }

    /// The whole object as JSON, with `apiVersion` and `kind`.
    pub fn to_json(&self) -> Value {
        self.body.to_json()
    }
}
