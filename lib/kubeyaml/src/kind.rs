//! The kinds that are decoded, and their typed bodies.

use culvert_api::policy::{AuthorizationPolicySpec, PeerAuthenticationSpec};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
        batch::v1::{CronJob, Job},
        coordination::v1::Lease,
        core::v1::{ConfigMap, Namespace, Node, Pod, Secret, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{path::FieldPath, policy_object::PolicyObject};

/// An `AuthorizationPolicy` object.
pub type AuthorizationPolicy = PolicyObject<AuthorizationPolicySpec>;
/// A `PeerAuthentication` object.
pub type PeerAuthentication = PolicyObject<PeerAuthenticationSpec>;

/// Whether objects of a kind belong to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Cluster,
    Namespace,
}

macro_rules! kinds {
    ($($kind:ident $group:literal $version:literal $extent:ident $plural:literal [$($short:literal)*];)+) => {
        /// A kind of object that this crate decodes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the names are Kubernetes' own")]
        pub enum Kind { $($kind),+ }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// The name, as in `kind: Pod`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => stringify!($kind)),+ }
            }

            /// The API group; empty for the core group.
            pub fn group(self) -> &'static str {
                match self { $(Self::$kind => $group),+ }
            }

            /// The version that is decoded.
            pub fn version(self) -> &'static str {
                match self { $(Self::$kind => $version),+ }
            }

            /// Lower-case plural, as in `kubectl get pods`.
            pub fn plural(self) -> &'static str {
                match self { $(Self::$kind => $plural),+ }
            }

            /// Short names, as in `kubectl get po`.
            pub fn short_names(self) -> &'static [&'static str] {
                match self { $(Self::$kind => &[$($short),*]),+ }
            }

            fn extent(self) -> Extent {
                match self { $(Self::$kind => Extent::$extent),+ }
            }
        }

        /// The content of an object, typed.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "the names are Kubernetes' own")]
        pub enum Body { $($kind(Box<$kind>)),+ }

        impl Body {
            /// The kind.
            pub fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind),+ }
            }

            /// The metadata.
            pub fn meta(&self) -> &ObjectMeta {
                match self { $(Self::$kind(object) => &object.metadata),+ }
            }

            /// The metadata, to be changed.
            pub fn meta_mut(&mut self) -> &mut ObjectMeta {
                match self { $(Self::$kind(object) => &mut object.metadata),+ }
            }

            /// The whole object as JSON, with `apiVersion` and `kind`.
            pub fn to_json(&self) -> Value {
                let result = match self { $(Self::$kind(object) => serde_json::to_value(object)),+ };
                result.expect("invariant: Kubernetes types have text keys and finite numbers")
            }

            pub(crate) fn from_value(kind: Kind, value: Value) -> Result<Self, TypeError> {
                match kind { $(Kind::$kind => Ok(Self::$kind(typed(value)?))),+ }
            }
        }

        $(impl From<$kind> for Body {
            fn from(object: $kind) -> Self { Self::$kind(Box::new(object)) }
        })+
    };
}

kinds! {
    Namespace "" "v1" Cluster "namespaces" ["ns"];
    ServiceAccount "" "v1" Namespace "serviceaccounts" ["sa"];
    Node "" "v1" Cluster "nodes" ["no"];
    Pod "" "v1" Namespace "pods" ["po"];
    Service "" "v1" Namespace "services" ["svc"];
    ConfigMap "" "v1" Namespace "configmaps" ["cm"];
    Secret "" "v1" Namespace "secrets" [];
    EndpointSlice "discovery.k8s.io" "v1" Namespace "endpointslices" ["eps"];
    Lease "coordination.k8s.io" "v1" Namespace "leases" [];
    Deployment "apps" "v1" Namespace "deployments" ["deploy"];
    ReplicaSet "apps" "v1" Namespace "replicasets" ["rs"];
    StatefulSet "apps" "v1" Namespace "statefulsets" ["sts"];
    DaemonSet "apps" "v1" Namespace "daemonsets" ["ds"];
    Job "batch" "v1" Namespace "jobs" [];
    CronJob "batch" "v1" Namespace "cronjobs" ["cj"];
    NetworkPolicy "networking.k8s.io" "v1" Namespace "networkpolicies" ["netpol"];
    AuthorizationPolicy "policy.culvert.dev" "v1alpha1" Namespace "authorizationpolicies" ["ap"];
    PeerAuthentication "policy.culvert.dev" "v1alpha1" Namespace "peerauthentications" ["pa"];
}

impl Kind {
    /// The kind of that group and name.
    pub fn of(group: &str, name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name && kind.group() == group)
    }

    /// The kind that a person means on a command line: kind, plural or short
    /// name, in any case.
    pub fn from_word(word: &str) -> Option<Self> {
        let word = word.to_ascii_lowercase();
        Self::ALL.iter().copied().find(|kind| {
            kind.name().eq_ignore_ascii_case(&word)
                || kind.plural() == word
                || kind.short_names().contains(&word.as_str())
        })
    }

    /// `group/version`, or the version alone for the core group.
    pub fn api_version(self) -> String {
        match self.group() {
            "" => self.version().to_owned(),
            group => format!("{group}/{}", self.version()),
        }
    }

    /// Whether objects of this kind belong to a namespace.
    pub fn is_namespaced(self) -> bool {
        self.extent() == Extent::Namespace
    }

    /// Whether the kind is one of Culvert's own.
    pub fn is_policy(self) -> bool {
        self.group() == culvert_api::policy::GROUP
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A value of the wrong type, or a field that does not exist.
#[derive(Debug)]
pub(crate) struct TypeError {
    pub(crate) path: FieldPath,
    pub(crate) message: String,
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<Box<T>, TypeError> {
    serde_path_to_error::deserialize(value)
        .map(Box::new)
        .map_err(|error| TypeError {
            path: error.path().into(),
            message: error.inner().to_string(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_kinds() {
        for word in ["Pod", "pods", "po", "POD"] {
            assert_eq!(Kind::from_word(word), Some(Kind::Pod), "{word}");
        }
        assert_eq!(Kind::from_word("netpol"), Some(Kind::NetworkPolicy));
        assert_eq!(Kind::from_word("gateway"), None);
        assert_eq!(Kind::of("serving.knative.dev", "Service"), None);
        assert_eq!(Kind::Deployment.api_version(), "apps/v1");
        assert_eq!(Kind::Pod.api_version(), "v1");
    }
}
