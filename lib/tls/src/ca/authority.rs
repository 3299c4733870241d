//! Roots, intermediates, and the leaves they sign.

use std::fmt;
use std::time::{Duration, SystemTime};

use culvert_identity::{Identity, TrustDomain};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
    string,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;

use super::request::{PublicKey, public_key_from_csr};
use super::summary::Summary;
use crate::certificate::IssuedCertificate;
use crate::config::provider;
use crate::key::csr;

/// Clocks of nodes differ by this much without anybody noticing.
const BACKDATED: Duration = Duration::from_secs(120);

/// From when until when a certificate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First moment.
    pub not_before: SystemTime,
    /// Last moment.
    pub not_after: SystemTime,
}

impl Validity {
    /// Valid for `lifetime` from `now`, back-dated by two minutes.
    #[must_use]
    pub fn lasting(now: SystemTime, lifetime: Duration) -> Self {
        Self {
            not_before: now - BACKDATED,
            not_after: now + lifetime,
        }
    }

    fn within(self, issuer: Self) -> Self {
        Self {
            not_before: self.not_before.max(issuer.not_before),
            not_after: self.not_after.min(issuer.not_after),
        }
    }
}

/// Which ends of a connection a leaf may be used at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Client and server: what every workload gets.
    Both,
    /// Client only.
    Client,
    /// Server only.
    Server,
}

/// What a leaf is to say.
#[derive(Clone, Debug)]
pub struct LeafRequest {
    /// The SPIFFE identity; a leaf without one is of use in tests only.
    pub identity: Option<Identity>,
    /// Names that clients of the control plane verify.
    pub dns_names: Vec<String>,
    /// Cut to the issuer's own.
    pub validity: Validity,
    /// At which ends it may be used.
    pub usage: Usage,
}

impl LeafRequest {
    /// An ordinary workload's leaf.
    #[must_use]
    pub fn new(identity: &Identity, validity: Validity) -> Self {
        Self {
            identity: Some(identity.clone()),
            dns_names: Vec::new(),
            validity,
            usage: Usage::Both,
        }
    }
}

/// A leaf that was signed.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The leaf alone.
    pub pem: String,
    /// Serial number, lower-case hexadecimal.
    pub serial: String,
    /// What remained after cutting to the issuer's validity.
    pub validity: Validity,
}

/// A certificate that signs others, with its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    summary: Summary,
}

/// Why an authority could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate is not valid PEM.
    #[error("certificate is not valid PEM")]
    CertificatePem(#[source] rustls::pki_types::pem::Error),
    /// The certificate cannot be decoded.
    #[error("certificate cannot be decoded")]
    Certificate,
    /// The private key cannot be decoded.
    #[error("private key cannot be decoded")]
    Key(#[source] rcgen::Error),
    /// The key is another one's.
    #[error("private key does not belong to the certificate")]
    KeyMismatch,
    /// The library could not generate or sign.
    #[error("cannot generate or sign")]
    Sign(#[source] rcgen::Error),
    /// There was no randomness.
    #[error("cannot get random bytes")]
    Random,
    /// The issuer expires too soon to sign anything.
    #[error("issuer has no validity left")]
    IssuerExpired,
}

/// Why a leaf could not be signed.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A name cannot be written into a certificate.
    #[error("name {name:?} cannot be written into a certificate")]
    Name {
        /// The name.
        name: String,
    },
    /// The issuer expires too soon to sign anything.
    #[error("issuer has no validity left")]
    IssuerExpired,
    /// The library could not sign.
    #[error("cannot sign")]
    Sign(#[source] rcgen::Error),
    /// There was no randomness.
    #[error("cannot get random bytes")]
    Random,
    /// The certificate could not be used after it was signed.
    #[error("cannot use the signed certificate")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Authority {
    /// Makes a self-signed root. Its name says which trust domain it is of and
    /// holds a random part, so that several roots can be told apart.
    ///
    /// # Errors
    /// Only when the cryptographic library fails.
    pub fn root(trust_domain: &TrustDomain, validity: Validity) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Sign)?;
        let params = authority_params("root", trust_domain, validity, 1)?;
        let certificate = params.self_signed(&key).map_err(AuthorityError::Sign)?;
        Self::new(certificate.der().clone(), certificate.pem(), key)
    }

    /// Makes an intermediate that may sign leaves only.
    ///
    /// # Errors
    /// When this authority has no life left, or the cryptographic library fails.
    pub fn intermediate(
        &self,
        trust_domain: &TrustDomain,
        validity: Validity,
    ) -> Result<Self, AuthorityError> {
        let validity = validity.within(self.validity());
        if validity.not_after <= validity.not_before {
            return Err(AuthorityError::IssuerExpired);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Sign)?;
        let params = authority_params("intermediate", trust_domain, validity, 0)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(AuthorityError::Sign)?;
        Self::new(certificate.der().clone(), certificate.pem(), key)
    }

    /// Reads what [`Authority::certificate_pem`] and [`Authority::key_pem`] gave.
    ///
    /// # Errors
    /// When either cannot be read, or they do not belong together.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, AuthorityError> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(AuthorityError::CertificatePem)?;
        let key = KeyPair::from_pem(key_pem).map_err(AuthorityError::Key)?;
        let parsed = webpki::EndEntityCert::try_from(&certificate)
            .map_err(|_| AuthorityError::Certificate)?;
        if parsed.subject_public_key_info().as_ref() != key.subject_public_key_info() {
            return Err(AuthorityError::KeyMismatch);
        }
        Self::new(certificate.clone(), certificate_pem.to_owned(), key)
    }

    fn new(
        certificate: CertificateDer<'static>,
        certificate_pem: String,
        key: KeyPair,
    ) -> Result<Self, AuthorityError> {
        let summary = Summary::of(&certificate).ok_or(AuthorityError::Certificate)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(AuthorityError::Sign)?;
        Ok(Self {
            issuer,
            certificate,
            certificate_pem,
            summary,
        })
    }

    /// Its certificate.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Its certificate, DER encoded.
    #[must_use]
    pub fn certificate_der(&self) -> &[u8] {
        &self.certificate
    }

    /// Its private key, PKCS#8.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Serial number, name and validity.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// From when until when it counts.
    #[must_use]
    pub fn validity(&self) -> Validity {
        Validity {
            not_before: self.summary.not_before,
            not_after: self.summary.not_after,
        }
    }

    /// Signs a leaf for a public key. The validity is cut to this authority's own.
    ///
    /// # Errors
    /// When a name cannot be encoded, this authority has no life left, or the
    /// cryptographic library fails.
    pub fn sign(&self, key: &PublicKey, request: &LeafRequest) -> Result<Issued, IssueError> {
        let validity = request.validity.within(self.validity());
        if validity.not_after <= validity.not_before {
            return Err(IssueError::IssuerExpired);
        }
        let serial = random_serial().ok_or(IssueError::Random)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = alternative_names(request)?;
        params.not_before = OffsetDateTime::from(validity.not_before);
        params.not_after = OffsetDateTime::from(validity.not_after);
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages(request.usage);
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(key, &self.issuer)
            .map_err(IssueError::Sign)?;
        Ok(Issued {
            pem: certificate.pem(),
            serial: serial.iter().map(|byte| format!("{byte:02x}")).collect(),
            validity,
        })
    }

    /// Makes a key and a certificate for it in one step, for programs that hold
    /// the authority themselves: the CA's own server certificate, and tests.
    /// `above` are the intermediates from this authority upwards (this one
    /// included unless it is the root), `roots_pem` the bundle.
    ///
    /// # Errors
    /// As [`Authority::sign`]; also when `request` names nobody.
    pub fn issue(
        &self,
        request: &LeafRequest,
        above: &[&str],
        roots_pem: &str,
    ) -> Result<IssuedCertificate, IssueError> {
        let unusable =
            |error: Box<dyn std::error::Error + Send + Sync>| IssueError::Unusable(error);
        let Some(identity) = &request.identity else {
            return Err(IssueError::Name {
                name: String::new(),
            });
        };
        let (key, request_pem) = csr(identity).map_err(|error| unusable(error.into()))?;
        let public =
            public_key_from_csr(request_pem.as_bytes()).map_err(|error| unusable(error.into()))?;
        let leaf = self.sign(&public, request)?;
        let mut answer = vec![leaf.pem.as_str()];
        answer.extend(above);
        answer.push(roots_pem);
        IssuedCertificate::from_answer(&answer, &key, identity)
            .map_err(|error| unusable(error.into()))
    }
}

fn authority_params(
    kind: &str,
    trust_domain: &TrustDomain,
    validity: Validity,
    path_length: u8,
) -> Result<CertificateParams, AuthorityError> {
    let serial = random_serial().ok_or(AuthorityError::Random)?;
    let mark: String = serial.iter().take(4).map(|b| format!("{b:02x}")).collect();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, trust_domain.as_str());
    name.push(DnType::CommonName, format!("Culvert {kind} {mark}"));
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.not_before = OffsetDateTime::from(validity.not_before);
    params.not_after = OffsetDateTime::from(validity.not_after);
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = path_length == 0;
    Ok(params)
}

fn alternative_names(request: &LeafRequest) -> Result<Vec<SanType>, IssueError> {
    let encode = |name: &str| {
        string::Ia5String::try_from(name).map_err(|_| IssueError::Name {
            name: name.to_owned(),
        })
    };
    let mut names = Vec::new();
    if let Some(identity) = &request.identity {
        names.push(SanType::URI(encode(identity.uri())?));
    }
    for name in &request.dns_names {
        names.push(SanType::DnsName(encode(name)?));
    }
    Ok(names)
}

fn usages(usage: Usage) -> Vec<ExtendedKeyUsagePurpose> {
    match usage {
        Usage::Both => {
            vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ]
        }
        Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
    }
}

/// 127 random bits: positive, never with a leading zero byte.
fn random_serial() -> Option<[u8; 16]> {
    let mut serial = [0; 16];
    provider().secure_random.fill(&mut serial).ok()?;
    serial[0] = (serial[0] & 0x7f) | 0x40;
    Some(serial)
}

/// Shows nothing of the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}
