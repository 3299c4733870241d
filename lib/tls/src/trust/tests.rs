use std::time::Duration;

use super::*;
use crate::ca::{Authority, Validity};

fn root_pem() -> String {
    let validity = Validity::lasting(SystemTime::now(), Duration::from_secs(3600));
    let root = Authority::root(&"cluster.local".parse().unwrap(), validity).unwrap();
    root.certificate_pem().to_owned()
}

fn roots(pems: &[&String]) -> Roots {
    let joined: String = pems.iter().map(|pem| pem.as_str()).collect();
    Roots::from_pem(joined.as_bytes()).unwrap()
}

#[test]
fn a_bundle_is_taken_whole_or_not_at_all() {
    assert!(matches!(Roots::from_pem(b""), Err(TrustError::Empty)));
    assert!(matches!(Roots::from_pem(b"hello"), Err(TrustError::Empty)));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let mixed = format!("{}{broken}", root_pem());
    let refused = Roots::from_pem(mixed.as_bytes());
    assert!(matches!(
        refused,
        Err(TrustError::Unusable { position: 2, .. })
    ));
    let many: String = (0..=ROOTS_MAX).map(|_| root_pem()).collect();
    assert!(matches!(
        Roots::from_pem(many.as_bytes()),
        Err(TrustError::TooMany)
    ));
}

#[test]
fn both_sources_count_and_neither_takes_away_the_others() {
    let (old, new) = (root_pem(), root_pem());
    let bundle = TrustBundle::issued(roots(&[&old]));
    assert!(!bundle.set_published(roots(&[&old])).unwrap());
    assert!(bundle.set_published(roots(&[&old, &new])).unwrap());
    assert_eq!(bundle.current().len(), 2);
    let shared = bundle.clone();
    bundle.set_published(roots(&[&new])).unwrap();
    assert_eq!(shared.current().len(), 2, "the leaf's own root stays");
    assert!(bundle.set_issued(roots(&[&new])).unwrap());
    assert_eq!(shared.current().len(), 1);
}

#[test]
fn a_root_file_is_read_again_and_the_last_good_one_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("root-cert.pem");
    let file = RootFile::new(&path);
    assert!(matches!(file.roots(), Err(TrustError::Read { .. })));
    let (old, new) = (root_pem(), root_pem());
    std::fs::write(&path, &old).unwrap();
    assert_eq!(file.roots().unwrap().len(), 1);
    std::fs::write(&path, format!("{old}{new}")).unwrap();
    assert_eq!(file.roots().unwrap().len(), 2);
    std::fs::write(&path, "half a file").unwrap();
    assert_eq!(file.roots().unwrap().len(), 2);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.roots().unwrap().len(), 2);
    // Replaced by rename, same length: only the inode tells.
    let fresh = directory.path().join("next");
    std::fs::write(&fresh, &new).unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    let read = file.roots().unwrap();
    assert_eq!(read.certificates, roots(&[&new]).certificates);
}
