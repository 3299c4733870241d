use std::time::{Duration, SystemTime};

use culvert_identity::{Identity, TrustDomain};
use proptest::prelude::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use super::*;
use crate::key::csr;

const HOUR: Duration = Duration::from_secs(3600);

fn trust_domain() -> TrustDomain {
    "cluster.local".parse().unwrap()
}

fn web() -> Identity {
    Identity::new(&trust_domain(), "shop", "web").unwrap()
}

fn root() -> Authority {
    let validity = Validity::lasting(SystemTime::now(), 10 * HOUR);
    Authority::root(&trust_domain(), validity).unwrap()
}

fn csr_pem() -> String {
    csr(&web()).unwrap().1
}

fn der_of(pem: &str) -> Vec<u8> {
    CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
        .unwrap()
        .to_vec()
}

fn pem_of(der: &[u8]) -> String {
    let body = base64(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for position in 0..4 {
            let index = (bits >> (18 - 6 * position)) & 63;
            let character = char::from(ALPHABET[usize::try_from(index).unwrap()]);
            text.push(if position <= chunk.len() {
                character
            } else {
                '='
            });
        }
    }
    text
}

#[test]
fn a_request_has_no_subject_and_one_critical_name() {
    let pem = csr_pem();
    let der = der_of(&pem);
    let (_, request) =
        x509_parser::certification_request::X509CertificationRequest::from_der(&der).unwrap();
    let info = &request.certification_request_info;
    assert_eq!(info.subject.iter().count(), 0);
    let attributes: Vec<_> = info.iter_attributes().collect();
    assert_eq!(attributes.len(), 1);
    let extensions: Vec<_> = request.requested_extensions().unwrap().collect();
    let [ParsedExtension::SubjectAlternativeName(names)] = extensions.as_slice() else {
        panic!("expected one extension, got {extensions:?}");
    };
    assert_eq!(names.general_names, [GeneralName::URI(web().uri())]);
    // The `critical` flag: the boolean TRUE right after the extension's OID.
    let flagged = [0x55, 0x1d, 0x11, 0x01, 0x01, 0xff];
    assert!(der.windows(6).any(|window| window == flagged));
}

#[test]
fn requests_that_prove_nothing_are_refused() {
    let good = der_of(&csr_pem());
    let mut forged = good.clone();
    let middle = good.len() / 2;
    forged[middle] ^= 1;
    let mut trailing = good.clone();
    trailing.push(0);
    let other_key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let unsupported = rcgen::CertificateParams::default().serialize_request(&other_key);
    for (name, input) in [
        ("empty", String::new()),
        ("garbage", "hello".to_owned()),
        ("no body", pem_of(&[])),
        ("not PKCS#10", pem_of(&[0x30, 3, 2, 1, 1])),
        ("a certificate", root().certificate_pem().to_owned()),
        ("truncated", pem_of(&good[..good.len() - 1])),
        ("trailing bytes", pem_of(&trailing)),
        ("changed after signing", pem_of(&forged)),
        ("Ed25519", unsupported.unwrap().pem().unwrap()),
        ("too long", csr_pem() + &" ".repeat(CSR_BYTES_MAX)),
    ] {
        assert!(public_key_from_csr(input.as_bytes()).is_err(), "{name}");
    }
    assert!(public_key_from_csr(pem_of(&good).as_bytes()).is_ok());
    let mut last_byte = good.clone();
    *last_byte.last_mut().unwrap() ^= 1;
    let refused = public_key_from_csr(pem_of(&last_byte).as_bytes());
    assert!(
        matches!(refused, Err(CsrError::BadSignature)),
        "{refused:?}"
    );
}

proptest! {
    #[test]
    fn no_request_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = public_key_from_csr(&bytes);
        let _ = public_key_from_csr(pem_of(&bytes).as_bytes());
    }

    #[test]
    fn no_single_change_of_a_request_gets_another_key_signed(at in 0..300usize, flip in 1..=255u8) {
        let pem = csr_pem();
        let original = public_key_from_csr(pem.as_bytes()).unwrap();
        let mut der = der_of(&pem);
        let at = at % der.len();
        der[at] ^= flip;
        if let Ok(key) = public_key_from_csr(pem_of(&der).as_bytes()) {
            prop_assert_eq!(key, original);
        }
    }
}

#[test]
fn a_leaf_says_only_what_the_authority_wants() {
    let root = root();
    let validity = Validity::lasting(SystemTime::now(), HOUR);
    let intermediate = root.intermediate(&trust_domain(), validity).unwrap();
    let key = public_key_from_csr(csr_pem().as_bytes()).unwrap();
    let identity = Identity::new(&trust_domain(), "shop", "api").unwrap();
    let request = LeafRequest {
        dns_names: vec!["api.shop.svc".to_owned()],
        ..LeafRequest::new(&identity, validity)
    };
    let issued = intermediate.sign(&key, &request).unwrap();
    let der = CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap();
    let (_, leaf) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(leaf.subject().iter().count(), 0);
    assert_eq!(leaf.issuer().to_string(), intermediate.summary().subject);
    let names = leaf.subject_alternative_name().unwrap().unwrap();
    assert!(names.critical);
    let expected = [
        GeneralName::URI(identity.uri()),
        GeneralName::DNSName("api.shop.svc"),
    ];
    assert_eq!(names.value.general_names, expected);
    let usage = leaf.key_usage().unwrap().unwrap();
    assert!(
        usage.critical && usage.value.flags == 1,
        "digital signature only"
    );
    let extended = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.server_auth && extended.client_auth && !extended.any);
    let constraints = leaf.basic_constraints().unwrap();
    assert!(constraints.is_none_or(|found| !found.value.ca));
    assert_eq!(leaf.raw_serial().len(), 16);
    assert_eq!(Summary::of(&der).unwrap().serial, issued.serial);
    let again = intermediate.sign(&key, &request).unwrap();
    assert_ne!(again.serial, issued.serial);
}

#[test]
fn authorities_sign_only_what_they_may() {
    let der_and = |authority: &Authority| authority.certificate_der().to_vec();
    let root = root();
    let validity = Validity::lasting(SystemTime::now(), HOUR);
    let intermediate = root.intermediate(&trust_domain(), validity).unwrap();
    for (authority, path_length) in [(&root, 1), (&intermediate, 0)] {
        let der = der_and(authority);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let constraints = certificate.basic_constraints().unwrap().unwrap();
        assert!(constraints.critical && constraints.value.ca);
        assert_eq!(constraints.value.path_len_constraint, Some(path_length));
        let usage = certificate.key_usage().unwrap().unwrap();
        assert!(usage.critical && usage.value.key_cert_sign() && !usage.value.digital_signature());
    }
}

#[test]
fn validity_never_exceeds_the_issuers() {
    let root = root();
    let key = public_key_from_csr(csr_pem().as_bytes()).unwrap();
    let now = SystemTime::now();
    let long = Validity {
        not_before: now - 24 * HOUR,
        not_after: now + 24 * HOUR,
    };
    let issued = root.sign(&key, &LeafRequest::new(&web(), long)).unwrap();
    assert_eq!(issued.validity, root.validity());
    let intermediate = root.intermediate(&trust_domain(), long).unwrap();
    assert_eq!(intermediate.validity(), root.validity());

    let past = Validity {
        not_before: now - 48 * HOUR,
        not_after: now - 24 * HOUR,
    };
    let refused = root.sign(&key, &LeafRequest::new(&web(), past));
    assert!(matches!(refused, Err(IssueError::IssuerExpired)));
    let refused = root.intermediate(&trust_domain(), past);
    assert!(matches!(refused, Err(AuthorityError::IssuerExpired)));
}

#[test]
fn an_authority_survives_being_written_and_read() {
    let root = root();
    let read = Authority::from_pem(root.certificate_pem(), &root.key_pem()).unwrap();
    assert_eq!(read.summary(), root.summary());
    let other = self::root();
    let mixed = Authority::from_pem(root.certificate_pem(), &other.key_pem());
    assert!(matches!(mixed, Err(AuthorityError::KeyMismatch)));
    assert!(!format!("{read:?}").contains("PRIVATE"));
    // What the copy signs verifies against the original.
    let validity = Validity::lasting(SystemTime::now(), HOUR);
    let issued = read.issue(
        &LeafRequest::new(&web(), validity),
        &[],
        root.certificate_pem(),
    );
    issued.unwrap().check(SystemTime::now()).unwrap();
}
