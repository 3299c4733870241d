//! Handshakes between two configurations over an in-memory connection: who is
//! let in, who is refused, and with which reason at each end.

#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]

mod established;
mod foreign;
mod kit;

use std::time::{Duration, SystemTime};

use culvert_tls::Fault;
use culvert_tls::ca::{Usage, Validity};

use kit::{Mesh, meet};

#[tokio::test]
async fn wrong_trust_domain_is_refused_by_the_server() {
    let (ours, theirs) = (Mesh::new("cluster.local"), Mesh::new("elsewhere.org"));
    // Even when the other root is trusted (a federated bundle, a shared CA).
    let server = ours.certificate_trusting("api", &theirs);
    let client = theirs.certificate_trusting("web", &ours);
    let outcome = meet(&server, &client, &[ours.identity("api")]).await;
    assert_eq!(outcome.server.unwrap_err(), Fault::WrongTrustDomain);
    assert_eq!(outcome.client.unwrap_err(), Fault::RefusedByPeer);
}

#[tokio::test]
async fn unknown_ca_is_refused_by_either_end() {
    let (ours, impostor) = (Mesh::new("cluster.local"), Mesh::new("cluster.local"));
    let client = impostor.certificate_trusting("web", &ours);
    let outcome = meet(&ours.certificate("api"), &client, &[ours.identity("api")]).await;
    assert_eq!(outcome.server.unwrap_err(), Fault::UnknownCa);
    assert_eq!(outcome.client.unwrap_err(), Fault::RefusedByPeer);

    let server = impostor.certificate_trusting("api", &ours);
    let outcome = meet(&server, &ours.certificate("web"), &[ours.identity("api")]).await;
    assert_eq!(outcome.client.unwrap_err(), Fault::UnknownCa);
    assert_eq!(outcome.server.unwrap_err(), Fault::RefusedByPeer);
}

#[tokio::test]
async fn expired_and_future_certificates_are_refused_by_either_end() {
    let mesh = Mesh::new("cluster.local");
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    for (not_before, not_after, fault) in [
        (now - 2 * hour, now - hour, Fault::Expired),
        (now + hour, now + 2 * hour, Fault::NotYetValid),
    ] {
        let faulty = |account| {
            let mut request = mesh.request(account);
            request.validity = Validity {
                not_before,
                not_after,
            };
            mesh.issue(&request)
        };
        assert_eq!(faulty("web").check(now), Err(fault));
        let outcome = meet(
            &mesh.certificate("api"),
            &faulty("web"),
            &[mesh.identity("api")],
        )
        .await;
        assert_eq!(outcome.server.unwrap_err(), fault);
        assert_eq!(outcome.client.unwrap_err(), Fault::RefusedByPeer);
        let outcome = meet(
            &faulty("api"),
            &mesh.certificate("web"),
            &[mesh.identity("api")],
        )
        .await;
        assert_eq!(outcome.client.unwrap_err(), fault);
    }
}

#[tokio::test]
async fn another_workloads_certificate_is_refused_by_the_client() {
    let mesh = Mesh::new("cluster.local");
    let (server, client) = (mesh.certificate("other"), mesh.certificate("web"));
    for expected in [vec![mesh.identity("api")], Vec::new()] {
        let outcome = meet(&server, &client, &expected).await;
        assert_eq!(outcome.client.unwrap_err(), Fault::WrongIdentity);
        assert_eq!(outcome.server.unwrap_err(), Fault::RefusedByPeer);
    }
}

#[tokio::test]
async fn usage_is_checked_at_both_ends() {
    let mesh = Mesh::new("cluster.local");
    let with_usage = |account, usage| {
        let mut request = mesh.request(account);
        request.usage = usage;
        mesh.issue(&request)
    };
    let expected = [mesh.identity("api")];
    let client = with_usage("web", Usage::Server);
    let outcome = meet(&mesh.certificate("api"), &client, &expected).await;
    assert_eq!(outcome.server.unwrap_err(), Fault::WrongUsage);
    let server = with_usage("api", Usage::Client);
    let outcome = meet(&server, &mesh.certificate("web"), &expected).await;
    assert_eq!(outcome.client.unwrap_err(), Fault::WrongUsage);
}
