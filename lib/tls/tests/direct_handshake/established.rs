//! What an accepted connection looks like, and what rotation does to it.

use std::time::{Duration, SystemTime};

use culvert_tls::{CertificateStore, Fault, Roots, client_config, server_config};
use rustls::HandshakeKind;

use crate::kit::{DAY, Facts, Mesh, handshake, meet};

#[tokio::test]
async fn two_workloads_know_each_other() {
    let mesh = Mesh::new("cluster.local");
    let expected = [mesh.identity("other"), mesh.identity("api")];
    let outcome = meet(
        &mesh.certificate("api"),
        &mesh.certificate("web"),
        &expected,
    )
    .await;
    assert_eq!(outcome.server.unwrap(), mesh.identity("web"));
    assert_eq!(outcome.client.unwrap(), mesh.identity("api"));
    let facts = Facts {
        server_name: None,
        suite: "TLS13_AES_256_GCM_SHA384".to_owned(),
        group: "X25519MLKEM768".to_owned(),
        kind: HandshakeKind::Full,
    };
    assert_eq!(outcome.facts.unwrap(), facts);
}

#[tokio::test]
async fn nothing_is_resumed() {
    let mesh = Mesh::new("cluster.local");
    let server = server_config(&mesh.certificate("api"));
    let client = client_config(&mesh.certificate("web"), &[mesh.identity("api")]);
    for _ in 0..3 {
        let outcome = handshake(server.clone(), client.clone()).await;
        assert_eq!(outcome.facts.unwrap().kind, HandshakeKind::Full);
    }
}

#[tokio::test]
async fn a_published_root_counts_for_configurations_already_built() {
    let (old, new) = (Mesh::new("cluster.local"), Mesh::new("cluster.local"));
    let store = CertificateStore::new();
    store.set(old.certificate("api")).unwrap();
    let certificate = store.current(&old.identity("api")).unwrap();
    let server = server_config(&certificate);
    let stranger = new.certificate_trusting("web", &old);
    let call = || {
        handshake(
            server.clone(),
            client_config(&stranger, &[old.identity("api")]),
        )
    };
    assert_eq!(call().await.server.unwrap_err(), Fault::UnknownCa);

    let both = [old.root.certificate_pem(), new.root.certificate_pem()].concat();
    let published = Roots::from_pem(both.as_bytes()).unwrap();
    assert!(store.set_published_roots(published.clone()).unwrap());
    assert!(!store.set_published_roots(published).unwrap());
    assert_eq!(call().await.server.unwrap(), old.identity("web"));

    // The old root is pruned: certificates of the new root go on, the roots of
    // the leaf that is still in use remain trusted until it is replaced.
    let pruned = Roots::from_pem(new.root.certificate_pem().as_bytes()).unwrap();
    store.set_published_roots(pruned).unwrap();
    assert_eq!(call().await.server.unwrap(), old.identity("web"));
    store.set(new.certificate("api")).unwrap();
    let late = client_config(
        &old.certificate_trusting("web", &new),
        &[old.identity("api")],
    );
    let server = server_config(&store.current(&old.identity("api")).unwrap());
    let outcome = handshake(server, late).await;
    assert_eq!(outcome.server.unwrap_err(), Fault::UnknownCa);
}

#[tokio::test]
async fn the_store_keeps_an_expired_certificate_but_does_not_call_it_usable() {
    let mesh = Mesh::new("cluster.local");
    let store = CertificateStore::new();
    let mut changes = store.subscribe();
    store.set(mesh.certificate("web")).unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    let identity = mesh.identity("web");
    let now = SystemTime::now();
    assert!(store.usable(&identity, now).is_some());
    assert!(store.usable(&identity, now + 2 * DAY).is_none());
    assert!(store.current(&identity).is_some());
    let left = store
        .expires(&identity)
        .unwrap()
        .duration_since(now)
        .unwrap();
    assert!(left > DAY - Duration::from_secs(60) && left <= DAY);
    store.forget(&identity);
    assert!(changes.has_changed().unwrap());
    assert!(store.current(&identity).is_none() && store.all().is_empty());
}
