//! What is wrong with a file or an object, said so that a person can mend it.

use std::{fmt, path::Path, sync::Arc};

use crate::{kind::Kind, path::FieldPath};

/// Where a document came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub file: Arc<Path>,
    /// Line in the file, from 1; 0 where the whole file is meant.
    pub line: u32,
    /// Index of the document in its file, from 0.
    pub document: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}:{line}", self.file.display()),
        }
    }
}

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// `apiVersion`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace; none for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl ObjectRef {
    /// The kind, if it is one that this crate decodes.
    pub fn known_kind(&self) -> Option<Kind> {
        let group = self.api_version.rsplit_once('/').map_or("", |(g, _)| g);
        Kind::of(group, &self.kind)
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() {
            "(no name)"
        } else {
            &self.name
        };
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{name}", self.kind),
            None => write!(f, "{} {name}", self.kind),
        }
    }
}

/// Whether the object is usable in spite of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The object was loaded.
    Warning,
    /// The object, document or file was not loaded.
    Error,
}

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultReason {
    /// A file or directory could not be read.
    Io,
    /// A limit on files or documents was exceeded.
    Limit,
    /// Not YAML, not JSON, or not UTF-8.
    Syntax,
    /// A document that is no Kubernetes object.
    NotAnObject,
    /// A known kind under another version.
    Version,
    /// A value of the wrong type.
    Type,
    /// A field that the kind does not have.
    UnknownField,
    /// A value that Kubernetes or the mesh would refuse.
    Invalid,
    /// The same object a second time.
    Duplicate,
}

impl FaultReason {
    /// CamelCase name, for metrics and conditions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Io => "Unreadable",
            Self::Limit => "LimitExceeded",
            Self::Syntax => "Syntax",
            Self::NotAnObject => "NotAnObject",
            Self::Version => "UnsupportedVersion",
            Self::Type => "WrongType",
            Self::UnknownField => "UnknownField",
            Self::Invalid => "Invalid",
            Self::Duplicate => "Duplicate",
        }
    }
}

/// One fault: file, line, object, field, and what is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whether the object was loaded all the same.
    pub severity: Severity,
    /// The kind of fault.
    pub reason: FaultReason,
    /// File and line of the field, if there is one, or of the document.
    pub location: Location,
    /// The object, if it could be named.
    pub object: Option<ObjectRef>,
    /// The field.
    pub field: Option<FieldPath>,
    /// What is wrong and what is expected.
    pub message: String,
}

impl Fault {
    /// Whether the object was not loaded.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Object, field and message without the place in the file.
    pub fn without_location(&self) -> impl fmt::Display + '_ {
        struct Body<'a>(&'a Fault);
        impl fmt::Display for Body<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if let Some(object) = &self.0.object {
                    write!(f, "{object}: ")?;
                }
                if let Some(field) = &self.0.field {
                    write!(f, "{field}: ")?;
                }
                f.write_str(&self.0.message)
            }
        }
        Body(self)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.without_location())
    }
}
