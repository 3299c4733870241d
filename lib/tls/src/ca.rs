//! Making certificates: the signing half, used by the CA and by tests.
//!
//! A certificate is written from parameters of our own. Of a request only the
//! public key is used, after its self-signature was checked; whatever else the
//! requester wrote is ignored.

mod authority;
mod request;
mod summary;

pub use authority::{Authority, AuthorityError, IssueError, Issued, LeafRequest, Usage, Validity};
pub use request::{CSR_BYTES_MAX, CsrError, PublicKey, public_key_from_csr};
pub use summary::Summary;

pub(crate) use summary::check_chain;

#[cfg(test)]
mod tests;
