use rcgen::{CertificateParams, KeyPair, SanType};

use super::*;

/// A self-signed certificate with these URI and DNS names.
fn certificate(uris: &[&str], dns: &[&str]) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    let uris = uris
        .iter()
        .map(|uri| SanType::URI((*uri).try_into().unwrap()));
    let dns = dns
        .iter()
        .map(|name| SanType::DnsName((*name).try_into().unwrap()));
    params.subject_alt_names = uris.chain(dns).collect();
    let key = KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().der().clone()
}

#[test]
fn the_first_spiffe_uri_of_our_form_is_the_identity() {
    let uris = [
        "https://cluster.local/ns/x/sa/y",
        "spiffe://cluster.local/agent",
        "spiffe://cluster.local/ns/shop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/admin",
    ];
    let identity = identity_of(&certificate(&uris, &["shop.svc"])).unwrap();
    assert_eq!(identity.uri(), "spiffe://cluster.local/ns/shop/sa/web");
}

#[test]
fn a_certificate_that_names_nobody_says_what_it_holds() {
    let error = identity_of(&certificate(&["spiffe://x/y"], &["shop.svc"])).unwrap_err();
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        panic!("{error}");
    };
    let expected = "peer certificate holds no SPIFFE identity (names: spiffe://x/y, shop.svc)";
    assert_eq!(other.to_string(), expected);
    let undecodable = identity_of(&CertificateDer::from(vec![1, 2, 3])).unwrap_err();
    let bad = Error::InvalidCertificate(CertificateError::BadEncoding);
    assert_eq!(undecodable, bad);
}
