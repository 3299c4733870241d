//! Why a resource cannot be read, and where.

use culvert_identity::{ParseIdentityError, ParseTrustDomainError};
use culvert_model::NameError;

/// A resource that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("resource {resource:?}")]
pub struct DecodeError {
    /// Its name.
    pub resource: String,
    /// What is wrong with it.
    #[source]
    pub field: FieldError,
}

impl DecodeError {
    pub(super) fn new(resource: &str, field: FieldError) -> Self {
        Self {
            resource: resource.to_owned(),
            field,
        }
    }
}

/// A field that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {fault}")]
pub struct FieldError {
    /// The way to the field, such as `services[a/b].ports[0].service_port`;
    /// `message` for the whole of it.
    pub path: String,
    /// What is wrong with it.
    #[source]
    pub fault: FieldFault,
}

impl FieldError {
    pub(super) fn new(path: impl Into<String>, fault: FieldFault) -> Self {
        Self {
            path: path.into(),
            fault,
        }
    }
}

impl From<FieldFault> for FieldError {
    fn from(fault: FieldFault) -> Self {
        Self::new("message", fault)
    }
}

/// What is wrong with a field.
#[derive(Debug, thiserror::Error)]
pub enum FieldFault {
    /// The bytes are not the message.
    #[error("not an encoded message")]
    NotProtobuf(#[source] prost::DecodeError),
    /// The content is of another type than the response says.
    #[error("unexpected type {0:?}")]
    TypeUrl(String),
    /// The content has another key than the resource.
    #[error("the content's key is {0:?}")]
    KeyMismatch(String),
    /// Nothing is there.
    #[error("missing")]
    Missing,
    /// A number that stands for nothing.
    #[error("unknown value {0}")]
    UnknownEnum(i32),
    /// An extension of ours that this version does not know.
    #[error("unknown extension {0:?}")]
    UnknownExtension(String),
    /// An address that is neither IPv4 nor IPv6.
    #[error("an address has 4 or 16 bytes, not {0}")]
    AddressLength(usize),
    /// A prefix that is longer than the address.
    #[error("prefix length {0} is longer than the address")]
    PrefixLength(u32),
    /// A number that is no port.
    #[error("{0} is not a port")]
    Port(u32),
    /// A range that ends before it begins.
    #[error("port range {first}-{last} is empty")]
    PortRange {
        /// Its first port.
        first: u16,
        /// Its last port.
        last: u16,
    },
    /// Not `namespace/name`.
    #[error("not a name")]
    Name(#[source] NameError),
    /// Not a trust domain.
    #[error("not a trust domain")]
    TrustDomain(#[source] ParseTrustDomainError),
    /// Names that make no identity.
    #[error("not an identity")]
    Identity(#[source] ParseIdentityError),
}

/// Puts the way to a field in front of an error from inside it.
pub(super) trait At<T> {
    fn at(self, path: &str) -> Result<T, FieldError>;
    fn at_index(self, path: &str, index: impl std::fmt::Display) -> Result<T, FieldError>;
}

impl<T, E: Into<FieldError>> At<T> for Result<T, E> {
    fn at(self, path: &str) -> Result<T, FieldError> {
        self.map_err(|error| under(path.to_owned(), error.into()))
    }

    fn at_index(self, path: &str, index: impl std::fmt::Display) -> Result<T, FieldError> {
        self.map_err(|error| under(format!("{path}[{index}]"), error.into()))
    }
}

fn under(path: String, error: FieldError) -> FieldError {
    let path = if error.path == "message" {
        path
    } else {
        format!("{path}.{}", error.path)
    };
    FieldError::new(path, error.fault)
}

/// Reads every item of a repeated field.
pub(super) fn list<T, U, E: Into<FieldError>>(
    path: &str,
    items: impl IntoIterator<Item = T>,
    read: impl Fn(T) -> Result<U, E>,
) -> Result<Vec<U>, FieldError> {
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| read(item).at_index(path, index))
        .collect()
}

/// A port; 0 is one too.
pub(super) fn port(number: u32) -> Result<u16, FieldFault> {
    u16::try_from(number).map_err(|_| FieldFault::Port(number))
}
