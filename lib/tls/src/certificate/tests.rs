use super::*;
use crate::ca::{Authority, LeafRequest, Validity, public_key_from_csr};
use crate::key::csr;

const HOUR: Duration = Duration::from_secs(3600);

struct Parts {
    identity: Identity,
    key: WorkloadKey,
    leaf: String,
    intermediate: String,
    root: String,
}

fn parts() -> Parts {
    let identity: Identity = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
    let validity = Validity::lasting(SystemTime::now(), HOUR);
    let root = Authority::root(identity.trust_domain(), validity).unwrap();
    let intermediate = root
        .intermediate(identity.trust_domain(), validity)
        .unwrap();
    let (key, request) = csr(&identity).unwrap();
    let public = public_key_from_csr(request.as_bytes()).unwrap();
    let request = LeafRequest::new(&identity, validity);
    Parts {
        leaf: intermediate.sign(&public, &request).unwrap().pem,
        intermediate: intermediate.certificate_pem().to_owned(),
        root: root.certificate_pem().to_owned(),
        identity,
        key,
    }
}

#[test]
fn an_answer_is_leaf_intermediates_and_a_bundle_of_roots() {
    let parts = parts();
    let other = self::parts().root;
    let bundle = format!("{other}{root}{root}", root = parts.root);
    let answer = [&parts.leaf, &parts.intermediate, &bundle];
    let issued = IssuedCertificate::from_answer(&answer, &parts.key, &parts.identity).unwrap();
    assert_eq!(issued.identity(), &parts.identity);
    assert_eq!(issued.chain().count(), 2);
    assert_eq!(issued.roots().len(), 2);
    issued.check(SystemTime::now()).unwrap();
    let public = issued.certificate();
    assert!(public.is_valid_at(SystemTime::now()));
    assert!(!public.is_valid_at(SystemTime::now() + 2 * HOUR));
    let life = public
        .not_after()
        .duration_since(public.not_before())
        .unwrap();
    assert_eq!(public.half_life(), public.not_before() + life / 2);
    // Elements may also be joined, as in a certificate file.
    let joined = [format!("{}{}", parts.leaf, parts.intermediate), bundle];
    let issued = IssuedCertificate::from_answer(&joined, &parts.key, &parts.identity).unwrap();
    assert_eq!(issued.chain().count(), 2);
}

#[test]
fn answers_that_cannot_be_used_are_refused() {
    let parts = parts();
    let stranger = self::parts();
    let refuse = |answer: &[&str]| {
        IssuedCertificate::from_answer(answer, &parts.key, &parts.identity).unwrap_err()
    };
    let (leaf, root) = (parts.leaf.as_str(), parts.root.as_str());
    assert!(matches!(refuse(&[]), AnswerError::TooShort { count: 0 }));
    assert!(matches!(
        refuse(&[leaf]),
        AnswerError::TooShort { count: 1 }
    ));
    let many: Vec<_> = std::iter::repeat_n(leaf, 12).collect();
    assert!(matches!(refuse(&many), AnswerError::TooLong));
    let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    assert!(matches!(
        refuse(&[leaf, broken, root]),
        AnswerError::Pem { position: 2, .. }
    ));
    assert!(matches!(
        refuse(&[leaf, "x", root]),
        AnswerError::Undecodable { position: 2 }
    ));
    assert!(matches!(
        refuse(&[leaf, "x"]),
        AnswerError::Roots(TrustError::Empty)
    ));
    assert!(matches!(refuse(&[root, root]), AnswerError::NoIdentity(_)));
    assert!(matches!(
        refuse(&[&stranger.leaf, root]),
        AnswerError::WrongKey(_)
    ));
    let other: Identity = "spiffe://cluster.local/ns/shop/sa/api".parse().unwrap();
    let refused = IssuedCertificate::from_answer(&[leaf, root], &parts.key, &other);
    assert!(matches!(refused, Err(AnswerError::WrongIdentity { .. })));
    // Complete, but the chain leads nowhere.
    let issued = IssuedCertificate::from_answer(&[leaf, root], &parts.key, &parts.identity);
    assert_eq!(
        issued.unwrap().check(SystemTime::now()),
        Err(Fault::UnknownCa)
    );
}
