//! Keys of the things in a snapshot.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The key of a workload, such as `Kubernetes//Pod/shop/cart-1`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadUid(Arc<str>);

impl WorkloadUid {
    /// Takes the text as it is: its structure matters to nobody but [`Self::is_pod`].
    pub fn new(uid: impl Into<Arc<str>>) -> Self {
        Self(uid.into())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the key is a pod's; such a workload is preferred where several
    /// claim one address.
    pub fn is_pod(&self) -> bool {
        self.0.contains("//Pod/")
    }
}

impl fmt::Display for WorkloadUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for WorkloadUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for WorkloadUid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for WorkloadUid {
    fn from(uid: &str) -> Self {
        Self::new(uid)
    }
}

/// A text that should have been `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not of the form namespace/name")]
pub struct NameError {
    text: String,
}

fn split(text: &str) -> Result<(&str, &str), NameError> {
    match text.split_once('/') {
        Some((namespace, name)) if !name.is_empty() && !name.contains('/') => Ok((namespace, name)),
        _ => Err(NameError {
            text: text.to_owned(),
        }),
    }
}

macro_rules! namespaced {
    ($(#[$doc:meta])* $type:ident, $part:ident, $(#[$part_doc:meta])*) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type {
            /// The Kubernetes namespace.
            pub namespace: Arc<str>,
            $(#[$part_doc])*
            pub $part: Arc<str>,
        }

        impl $type {
            /// Puts the two parts together.
            pub fn new(namespace: impl Into<Arc<str>>, $part: impl Into<Arc<str>>) -> Self {
                Self {
                    namespace: namespace.into(),
                    $part: $part.into(),
                }
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                split(text).map(|(namespace, part)| Self::new(namespace, part))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.namespace, self.$part)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

namespaced! {
    /// The key of a service: `namespace/hostname`.
    ServiceName, hostname,
    /// The fully qualified name, such as `cart.shop.svc.cluster.local`.
}

namespaced! {
    /// The key of a policy: `namespace/name`.
    PolicyName, name,
    /// The name within the namespace.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_exactly_two_parts() {
        for text in ["", "a", "a/", "a/b/c", "/a/b"] {
            assert!(text.parse::<PolicyName>().is_err(), "{text:?}");
        }
        let name: ServiceName = "shop/cart.shop.svc".parse().expect("two parts");
        assert_eq!(
            (&*name.namespace, &*name.hostname),
            ("shop", "cart.shop.svc")
        );
        assert_eq!(name.to_string(), "shop/cart.shop.svc");
    }

    #[test]
    fn knows_a_pods_key() {
        assert!(WorkloadUid::from("c1//Pod/shop/cart").is_pod());
        assert!(!WorkloadUid::from("c1/networking.istio.io/WorkloadEntry/a/b").is_pod());
    }
}
