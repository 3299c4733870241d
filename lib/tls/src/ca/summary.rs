//! Reading certificates: serial number, validity, and the check of a chain.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

use crate::config::provider;
use crate::fault::{Fault, classify};
use crate::trust::Roots;

/// What is needed to show and to renew any certificate, root or leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Lower-case hexadecimal.
    pub serial: String,
    /// The distinguished name, empty for leaves.
    pub subject: String,
    /// First moment of validity.
    pub not_before: SystemTime,
    /// Last moment of validity.
    pub not_after: SystemTime,
}

impl Summary {
    /// Reads a DER certificate; `None` when it is not one.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<Self> {
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
        let serial = parsed.raw_serial().iter();
        Some(Self {
            serial: serial.map(|byte| format!("{byte:02x}")).collect(),
            subject: parsed.subject().to_string(),
            not_before: system_time(parsed.validity().not_before),
            not_after: system_time(parsed.validity().not_after),
        })
    }
}

impl Summary {
    /// Reads the first certificate of a PEM text; `None` when there is none.
    #[must_use]
    pub fn of_pem(pem: &str) -> Option<Self> {
        use rustls::pki_types::pem::PemObject;
        Self::of(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?)
    }
}

fn system_time(time: ASN1Time) -> SystemTime {
    let seconds = time.timestamp();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        UNIX_EPOCH.checked_sub(distance).unwrap_or(UNIX_EPOCH)
    } else {
        UNIX_EPOCH + distance
    }
}

/// What a peer with these roots would say of this chain at `now`.
pub(crate) fn check_chain(
    chain: &[CertificateDer<'static>],
    roots: &Roots,
    now: SystemTime,
) -> Result<(), Fault> {
    let (leaf, intermediates) = chain.split_first().ok_or(Fault::NoCertificate)?;
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let now = UnixTime::since_unix_epoch(since_epoch);
    let parsed = ParsedCertificate::try_from(leaf).map_err(|error| classify(&error))?;
    let algorithms = provider().signature_verification_algorithms;
    verify_server_cert_signed_by_trust_anchor(
        &parsed,
        &roots.store,
        intermediates,
        now,
        algorithms.all,
    )
    .map_err(|error| classify(&error))?;
    roots
        .client_verifier
        .verify_client_cert(leaf, intermediates, now)
        .map_err(|error| classify(&error))?;
    Ok(())
}
