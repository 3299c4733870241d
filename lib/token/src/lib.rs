//! Service-account tokens: who a program is before it has a certificate.
//!
//! A caller of the CA or of discovery proves itself with a Kubernetes projected
//! token, a JWT bound to an audience, a pod and a node. [`TokenReviewer`] says
//! whose token it is; [`JwksReviewer`] does so with the issuer's public keys
//! from a file, and the Kubernetes TokenReview API has the same shape.
//! [`TokenIssuer`] makes such tokens where there is no Kubernetes.
//!
//! Nothing here decides what a caller may do.

mod claims;
mod issuer;
mod reviewer;

pub use issuer::{IssuerError, TokenIssuer, TokenRequest};
pub use reviewer::{JwksReviewer, KeysError, ReviewError, Reviewed, TokenReviewer};

/// An object that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    /// Its name.
    pub name: String,
    /// Its uid: another object of the same name has another one.
    pub uid: String,
}

/// Whose token it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Namespace of the service account, and of the pod.
    pub namespace: String,
    /// Name of the service account.
    pub service_account: String,
    /// The pod that the token was projected into.
    pub pod: Option<Bound>,
    /// The node that this pod runs on.
    pub node: Option<Bound>,
}
