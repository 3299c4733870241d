//! Verification of the other end of a tunnel.
//!
//! The chain and the usage are judged by rustls' own verifier against the
//! roots in force; what is ours is the identity: the first SPIFFE URI that
//! parses is who the peer is, and DNS names say nothing.

use std::fmt;
use std::sync::Arc;

use culvert_identity::{Identity, TrustDomain};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, SignatureScheme,
};
use webpki::EndEntityCert;

use crate::config::provider;
use crate::trust::TrustBundle;

/// Why a peer with a valid chain is still not let in.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerRejected {
    /// There is no SPIFFE URI of the mesh's form in the certificate.
    #[error("peer certificate holds no SPIFFE identity (names: {names})", names = Names(names))]
    NoIdentity {
        /// What it holds instead, for the log.
        names: Vec<String>,
    },
    /// The peer belongs to another trust domain.
    #[error("peer {presented} is not of trust domain {expected}")]
    WrongTrustDomain {
        /// Who the peer is.
        presented: Identity,
        /// The only trust domain that is accepted.
        expected: TrustDomain,
    },
    /// The peer is somebody else than the one that was called.
    #[error("peer is {presented}, expected {expected}", expected = Names(expected))]
    WrongIdentity {
        /// Who the peer is.
        presented: Identity,
        /// Who may answer.
        expected: Vec<String>,
    },
}

/// At most eight names of at most 256 bytes: they come from the peer.
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, name) in self.0.iter().take(8).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(
                f,
                "{separator}{}",
                name.chars().take(256).collect::<String>().escape_default()
            )?;
        }
        Ok(())
    }
}

/// The first SPIFFE URI of the mesh's form in a certificate.
pub(crate) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, Error> {
    let parsed = EndEntityCert::try_from(certificate)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let identity = parsed.valid_uri_names().find_map(|uri| uri.parse().ok());
    identity.ok_or_else(|| {
        let names = parsed.valid_uri_names().chain(parsed.valid_dns_names());
        rejected(PeerRejected::NoIdentity {
            names: names.take(8).map(str::to_owned).collect(),
        })
    })
}

fn rejected(reason: PeerRejected) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(reason))))
}

/// Verifies clients of a tunnel: chain, client usage, own trust domain.
#[derive(Debug)]
pub(crate) struct TunnelClients {
    trust: TrustBundle,
    trust_domain: TrustDomain,
    algorithms: WebPkiSupportedAlgorithms,
}

impl TunnelClients {
    pub(crate) fn new(trust: TrustBundle, trust_domain: TrustDomain) -> Self {
        Self {
            trust,
            trust_domain,
            algorithms: provider().signature_verification_algorithms,
        }
    }
}

impl ClientCertVerifier for TunnelClients {
    /// No hints: a client has one certificate, and roots change while we run.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let roots = self.trust.current();
        let verified = roots
            .client_verifier
            .verify_client_cert(end_entity, intermediates, now)?;
        let presented = identity_of(end_entity)?;
        if *presented.trust_domain() != self.trust_domain {
            return Err(rejected(PeerRejected::WrongTrustDomain {
                presented,
                expected: self.trust_domain.clone(),
            }));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies the server of a tunnel: chain, server usage, one of the expected
/// identities. The name that was dialled plays no part.
#[derive(Debug)]
pub(crate) struct TunnelServer {
    trust: TrustBundle,
    allowed: Vec<Identity>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl TunnelServer {
    pub(crate) fn new(trust: TrustBundle, allowed: Vec<Identity>) -> Self {
        Self {
            trust,
            allowed,
            algorithms: provider().signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for TunnelServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.trust.current().store,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        let presented = identity_of(end_entity)?;
        if !self.allowed.contains(&presented) {
            return Err(rejected(PeerRejected::WrongIdentity {
                presented,
                expected: self.allowed.iter().map(ToString::to_string).collect(),
            }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
