//! Certificate requests: bytes from outside, of which only the key is kept.

use std::fmt;

use rcgen::{PublicKeyData, SignatureAlgorithm, SubjectPublicKeyInfo};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// A request with a P-256 key and one name has about 500 bytes in PEM.
pub const CSR_BYTES_MAX: usize = 16 * 1024;

/// The public key of a request whose holder proved to have the private key.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(SubjectPublicKeyInfo);

/// Why a certificate request was refused.
#[derive(Debug, thiserror::Error)]
pub enum CsrError {
    /// Longer than any sensible request.
    #[error("certificate request is longer than {CSR_BYTES_MAX} bytes")]
    TooLong,
    /// Not PEM, or PEM of something else.
    #[error("certificate request is not valid PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// Not PKCS#10.
    #[error("certificate request is not valid PKCS#10")]
    Malformed,
    /// Another kind of key than ECDSA on P-256 or P-384.
    #[error("certificate request holds a key that is not ECDSA P-256 or P-384")]
    UnsupportedKey,
    /// The requester does not hold the private key.
    #[error("certificate request is not signed by its own key")]
    BadSignature,
}

/// Takes the public key out of a PEM request, provided that the request is
/// signed with the matching private key.
///
/// # Errors
/// When the request cannot be read, holds an unsupported key, or its signature
/// is wrong.
pub fn public_key_from_csr(pem: &[u8]) -> Result<PublicKey, CsrError> {
    if pem.len() > CSR_BYTES_MAX {
        return Err(CsrError::TooLong);
    }
    let der = CertificateSigningRequestDer::from_pem_slice(pem).map_err(CsrError::Pem)?;
    let (rest, request) =
        X509CertificationRequest::from_der(&der).map_err(|_| CsrError::Malformed)?;
    if !rest.is_empty() {
        return Err(CsrError::Malformed);
    }
    let key_der = request.certification_request_info.subject_pki.raw;
    let key = SubjectPublicKeyInfo::from_der(key_der).map_err(|_| CsrError::UnsupportedKey)?;
    let supported: [&SignatureAlgorithm; 2] = [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
    ];
    if !supported.contains(&key.algorithm()) {
        return Err(CsrError::UnsupportedKey);
    }
    request
        .verify_signature()
        .map_err(|_| CsrError::BadSignature)?;
    Ok(PublicKey(key))
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PublicKey")
            .field(&self.0.algorithm())
            .finish()
    }
}
