//! TLS to the CA and to discovery over memory.

#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]

use std::time::{Duration, SystemTime};

use culvert_identity::Identity;
use culvert_tls::IssuedCertificate;
use culvert_tls::ca::{Authority, LeafRequest, Validity};
use culvert_tls::{ControlPlaneClient, ControlPlaneError, ControlPlaneServer, Fault, fault};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NAME: &str = "culvert-ca.culvert-system.svc";

fn root() -> Authority {
    let validity = Validity::lasting(SystemTime::now(), Duration::from_secs(3600));
    Authority::root(&"cluster.local".parse().unwrap(), validity).unwrap()
}

fn certificate(root: &Authority, name: &str) -> IssuedCertificate {
    let identity: Identity = "spiffe://cluster.local/ns/culvert-system/sa/culvert-ca"
        .parse()
        .unwrap();
    let request = LeafRequest {
        dns_names: vec![name.to_owned()],
        ..LeafRequest::new(&identity, root.validity())
    };
    root.issue(&request, &[], root.certificate_pem()).unwrap()
}

async fn call(client: &ControlPlaneClient, server: &ControlPlaneServer) -> Result<(), Fault> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (accepted, connected) = tokio::join!(
        async {
            let mut stream = server.accept(far).await.ok()?;
            stream.write_all(b"s").await.ok()?;
            stream.flush().await.ok()
        },
        async {
            let mut stream = client.connect(near).await?;
            assert_eq!(stream.read_u8().await.unwrap(), b's');
            Ok::<_, ControlPlaneError>(())
        }
    );
    match connected {
        Ok(()) => {
            accepted.unwrap();
            Ok(())
        }
        Err(ControlPlaneError::Handshake { source, .. }) => Err(fault::classify_io(&source)),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn the_server_must_prove_its_name_to_the_right_root() {
    let (ours, theirs) = (root(), root());
    let server = ControlPlaneServer::new(&certificate(&ours, NAME));
    let pem = ours.certificate_pem().as_bytes();
    let other_name = ControlPlaneClient::from_pem(pem, "elsewhere.svc").unwrap();
    assert_eq!(call(&other_name, &server).await, Err(Fault::WrongIdentity));
    let pem = theirs.certificate_pem().as_bytes();
    let other_root = ControlPlaneClient::from_pem(pem, NAME).unwrap();
    assert_eq!(call(&other_root, &server).await, Err(Fault::UnknownCa));
    let pem = ours.certificate_pem().as_bytes();
    let good = ControlPlaneClient::from_pem(pem, NAME).unwrap();
    assert_eq!(call(&good, &server).await, Ok(()));
}

#[tokio::test]
async fn certificate_and_roots_are_replaced_while_running() {
    let (old, new) = (root(), root());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("root-cert.pem");
    let client = ControlPlaneClient::from_file(&path, NAME).unwrap();
    assert!(matches!(
        client.config(),
        Err(ControlPlaneError::Roots { .. })
    ));
    std::fs::write(&path, old.certificate_pem()).unwrap();
    let server = ControlPlaneServer::new(&certificate(&old, NAME));
    assert_eq!(call(&client, &server).await, Ok(()));
    server.replace(&certificate(&new, NAME));
    assert_eq!(call(&client, &server).await, Err(Fault::UnknownCa));
    let both = [old.certificate_pem(), new.certificate_pem()].concat();
    std::fs::write(&path, both).unwrap();
    assert_eq!(call(&client, &server).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_given_up() {
    let root = root();
    let client = ControlPlaneClient::from_pem(root.certificate_pem().as_bytes(), NAME).unwrap();
    let (near, far) = tokio::io::duplex(1024);
    let error = client.connect(near).await.unwrap_err();
    let ControlPlaneError::Handshake { source, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(fault::classify_io(&source), Fault::TimedOut);
    drop(far);
    let (silent, far) = tokio::io::duplex(1024);
    let server = ControlPlaneServer::new(&certificate(&root, NAME));
    let error = server.accept(far).await.unwrap_err();
    assert_eq!(fault::classify_io(&error), Fault::TimedOut);
    drop(silent);
}

#[test]
fn a_name_that_is_none_is_refused_at_once() {
    let refused = ControlPlaneClient::from_file("/nowhere", "not a name");
    assert!(matches!(refused, Err(ControlPlaneError::ServerName { .. })));
}
