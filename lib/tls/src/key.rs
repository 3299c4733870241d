//! Private keys of workloads and the requests that name them.

use std::fmt;
use std::sync::Arc;

use culvert_identity::Identity;
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType, string,
};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;

/// The private key of one certificate. It never leaves the process that made it.
#[derive(Clone)]
pub struct WorkloadKey {
    signer: Arc<dyn SigningKey>,
}

/// Why a private key or a certificate request could not be made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The cryptographic library made no key.
    #[error("cannot generate an ECDSA P-256 key")]
    Generate(#[source] rcgen::Error),
    /// The request could not be put together.
    #[error("cannot make a certificate request for {identity}")]
    Request {
        /// Whom the request is for.
        identity: Identity,
        /// What the encoder said.
        #[source]
        source: rcgen::Error,
    },
    /// The text is not a private key in PEM.
    #[error("private key is not valid PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// The key is of a kind that TLS 1.3 cannot sign with.
    #[error("private key is of an unsupported kind")]
    Unsupported(#[source] rustls::Error),
}

/// Makes a fresh ECDSA P-256 key and a PEM certificate request for `identity`.
///
/// The request has an empty subject and the SPIFFE URI as its only, critical
/// subject alternative name.
///
/// # Errors
/// Only when the cryptographic library fails.
pub fn csr(identity: &Identity) -> Result<(WorkloadKey, String), KeyError> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(KeyError::Generate)?;
    let request = request_pem(identity, &pair).map_err(|source| KeyError::Request {
        identity: identity.clone(),
        source,
    })?;
    Ok((WorkloadKey::from_pair(&pair)?, request))
}

fn request_pem(identity: &Identity, pair: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(string::Ia5String::try_from(identity.uri())?)];
    params.serialize_request(pair)?.pem()
}

impl WorkloadKey {
    /// Reads a PKCS#8, SEC1 or PKCS#1 private key in PEM.
    ///
    /// # Errors
    /// When the text holds no key, or one that TLS 1.3 cannot sign with.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        Self::from_der(&PrivateKeyDer::from_pem_slice(pem).map_err(KeyError::Pem)?)
    }

    pub(crate) fn from_pair(pair: &KeyPair) -> Result<Self, KeyError> {
        Self::from_der(&PrivatePkcs8KeyDer::from(pair.serialized_der()).into())
    }

    fn from_der(der: &PrivateKeyDer<'_>) -> Result<Self, KeyError> {
        let signer = any_supported_type(der).map_err(KeyError::Unsupported)?;
        Ok(Self { signer })
    }

    pub(crate) fn signer(&self) -> Arc<dyn SigningKey> {
        Arc::clone(&self.signer)
    }
}

/// Shows nothing of the key.
impl fmt::Debug for WorkloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadKey").finish_non_exhaustive()
    }
}
