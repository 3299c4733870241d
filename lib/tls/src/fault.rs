//! Why a handshake failed, as a closed set: metric label, access-log field and
//! status are all taken from here.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use crate::verify::PeerRejected;

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The peer's identity is of another trust domain.
    WrongTrustDomain,
    /// The peer's certificate, or one of its chain, has expired.
    Expired,
    /// The peer's certificate, or one of its chain, is not valid yet.
    NotYetValid,
    /// The peer's chain does not lead to a root in force.
    UnknownCa,
    /// The peer is somebody else than the one that was called.
    WrongIdentity,
    /// The peer's certificate names no identity of the mesh.
    NoIdentity,
    /// The client presented no certificate.
    NoCertificate,
    /// The peer's certificate is not meant for this end of a connection.
    WrongUsage,
    /// The peer's certificate is malformed or its signature is wrong.
    BadCertificate,
    /// What arrived is not TLS.
    NotTls,
    /// The peer does not speak TLS 1.3.
    BadVersion,
    /// The two ends agreed on no application protocol, or on another than HTTP/2.
    WrongProtocol,
    /// No cipher suite, group or signature scheme in common, or a broken handshake.
    Incompatible,
    /// The peer refused our certificate.
    RefusedByPeer,
    /// The handshake took too long.
    TimedOut,
    /// The connection broke.
    Io,
}

impl Fault {
    /// Every fault there is.
    pub const ALL: [Self; 16] = [
        Self::WrongTrustDomain,
        Self::Expired,
        Self::NotYetValid,
        Self::UnknownCa,
        Self::WrongIdentity,
        Self::NoIdentity,
        Self::NoCertificate,
        Self::WrongUsage,
        Self::BadCertificate,
        Self::NotTls,
        Self::BadVersion,
        Self::WrongProtocol,
        Self::Incompatible,
        Self::RefusedByPeer,
        Self::TimedOut,
        Self::Io,
    ];

    /// The fault as a metric label and log field.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::WrongTrustDomain => "wrong_trust_domain",
            Self::Expired => "expired_certificate",
            Self::NotYetValid => "certificate_not_yet_valid",
            Self::UnknownCa => "unknown_ca",
            Self::WrongIdentity => "wrong_identity",
            Self::NoIdentity => "no_identity",
            Self::NoCertificate => "no_certificate",
            Self::WrongUsage => "wrong_certificate_usage",
            Self::BadCertificate => "bad_certificate",
            Self::NotTls => "not_tls",
            Self::BadVersion => "bad_tls_version",
            Self::WrongProtocol => "wrong_application_protocol",
            Self::Incompatible => "tls_incompatible",
            Self::RefusedByPeer => "refused_by_peer",
            Self::TimedOut => "tls_timeout",
            Self::Io => "tls_io",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl StdError for Fault {}

/// What the error of an acceptor or a connector means.
#[must_use]
pub fn classify_io(error: &io::Error) -> Fault {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(inner) => classify(inner),
        None if error.kind() == io::ErrorKind::TimedOut => Fault::TimedOut,
        None => Fault::Io,
    }
}

/// What an error of the TLS library means.
#[must_use]
pub fn classify(error: &Error) -> Fault {
    match error {
        Error::InvalidCertificate(error) => certificate_fault(error),
        Error::NoCertificatesPresented => Fault::NoCertificate,
        Error::InvalidMessage(message) => message_fault(message),
        Error::PeerIncompatible(incompatible) => version_fault(incompatible),
        Error::NoApplicationProtocol => Fault::WrongProtocol,
        Error::AlertReceived(alert) => alert_fault(*alert),
        _ => Fault::Incompatible,
    }
}

/// The peer as it was presented, when a valid chain was refused for who it names.
#[must_use]
pub fn rejected_peer(error: &io::Error) -> Option<&PeerRejected> {
    match error.get_ref()?.downcast_ref::<Error>()? {
        Error::InvalidCertificate(CertificateError::Other(other)) => other.0.downcast_ref(),
        _ => None,
    }
}

fn certificate_fault(error: &CertificateError) -> Fault {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Fault::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Fault::NotYetValid
        }
        CertificateError::UnknownIssuer => Fault::UnknownCa,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Fault::WrongIdentity
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Fault::WrongUsage
        }
        CertificateError::Other(other) => match other.0.downcast_ref::<PeerRejected>() {
            Some(PeerRejected::NoIdentity { .. }) => Fault::NoIdentity,
            Some(PeerRejected::WrongTrustDomain { .. }) => Fault::WrongTrustDomain,
            Some(PeerRejected::WrongIdentity { .. }) => Fault::WrongIdentity,
            None => Fault::BadCertificate,
        },
        _ => Fault::BadCertificate,
    }
}

fn message_fault(message: &InvalidMessage) -> Fault {
    match message {
        InvalidMessage::InvalidContentType
        | InvalidMessage::UnknownProtocolVersion
        | InvalidMessage::MessageTooLarge => Fault::NotTls,
        _ => Fault::Incompatible,
    }
}

fn version_fault(incompatible: &PeerIncompatible) -> Fault {
    match incompatible {
        PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled => Fault::BadVersion,
        _ => Fault::Incompatible,
    }
}

fn alert_fault(alert: AlertDescription) -> Fault {
    match alert {
        AlertDescription::ProtocolVersion => Fault::BadVersion,
        AlertDescription::NoApplicationProtocol => Fault::WrongProtocol,
        AlertDescription::AccessDenied
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateRequired
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::UnsupportedCertificate => Fault::RefusedByPeer,
        _ => Fault::Incompatible,
    }
}
