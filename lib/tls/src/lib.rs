//! Keys, certificates and TLS configurations of the mesh.
//!
//! Every tunnel is mutual TLS 1.3 between two workloads that prove themselves
//! with an X.509 certificate whose SPIFFE URI is their identity. This crate
//! makes the keys and the requests for such certificates, reads what the CA
//! answers, keeps the current certificate of every identity, and builds the
//! configurations with which the data path accepts and opens tunnels. It also
//! builds the plain server-authenticated TLS that leads to the CA and to
//! discovery.
//!
//! It is the only direct user of rustls. It must never decide a policy: it
//! says who the peer is, and refuses a peer that cannot be identified.

pub mod ca;
mod certificate;
mod config;
mod control_plane;
pub mod fault;
mod key;
mod store;
mod trust;
mod verify;

pub use certificate::{AnswerError, Certificate, IssuedCertificate};
pub use config::{ALPN, client_config, peer_identity, server_config, verified_peer};
pub use control_plane::{ControlPlaneClient, ControlPlaneError, ControlPlaneServer};
pub use fault::Fault;
pub use key::{KeyError, WorkloadKey, csr};
pub use store::CertificateStore;
pub use trust::{RootFile, Roots, TrustBundle, TrustError};
pub use verify::PeerRejected;
