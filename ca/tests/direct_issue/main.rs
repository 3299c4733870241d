//! Asking a running CA for certificates over TLS: who gets what, who is
//! refused, and what rotation does to those who ask.

#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]

mod kit;
mod rotation;

use std::time::{Duration, SystemTime};

use culvert_api::proto::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use culvert_tls::{ControlPlaneClient, IssuedCertificate};
use culvert_token::TokenIssuer;
use tonic::Code;

use kit::{Bench, HOUR, SERVER_NAME, Token, assert_opaque, identity, of_node, request};

fn csr() -> String {
    culvert_tls::csr(&identity("shop", "web")).unwrap().1
}

#[tokio::test]
async fn tokens_that_prove_nothing_are_refused() {
    let bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let wrong_audience = bench.token(&Token {
        audience: "culvert-discovery",
        ..of_node("node-1")
    });
    let stranger = TokenIssuer::generate().unwrap();
    let forged = bench.token_of(&stranger, &of_node("node-1"));
    let good = bench.token(&of_node("node-1"));
    // In the middle of the signature, where every bit counts.
    let middle = good.len() - 40;
    let other = if good.as_bytes()[middle] == b'A' {
        "B"
    } else {
        "A"
    };
    let mut tampered = good;
    tampered.replace_range(middle..=middle, other);
    let expired = bench.token(&of_node("node-1"));
    for (token, reason) in [
        (wrong_audience, "wrong_audience"),
        (forged, "unknown_token_key"),
        (tampered, "bad_token_signature"),
        ("nonsense".to_owned(), "malformed_token"),
        (String::new(), "no_token"),
    ] {
        let web = "spiffe://cluster.local/ns/shop/sa/web";
        let refused = bench.ask(&token, &csr(), Some(web)).await;
        assert_opaque(&refused.unwrap_err(), Code::Unauthenticated);
        assert_eq!(bench.refusals(reason), 1, "{reason}");
    }
    bench.clock.advance(2 * HOUR);
    let refused = bench.ask(&expired, &csr(), None).await.unwrap_err();
    assert_opaque(&refused, Code::Unauthenticated);
    assert_eq!(bench.refusals("expired_token"), 1);
}

#[tokio::test]
async fn a_node_gets_nothing_of_another_node() {
    let bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let web = identity("shop", "web");
    let refused = bench.certificate("node-2", &web).await.unwrap_err();
    assert_opaque(&refused, Code::PermissionDenied);
    assert_eq!(bench.refusals("pod_not_on_node"), 1);
    let refused = bench.certificate("node-9", &web).await.unwrap_err();
    assert_opaque(&refused, Code::PermissionDenied);
    assert_eq!(bench.refusals("unknown_node"), 1);
    bench.certificate("node-1", &web).await.unwrap();
    // The pod ends, and with it the node's claim.
    let ended = serde_json::json!({
        "metadata": {"namespace": "shop", "name": "web-1", "uid": "uid-web-1"},
        "spec": {"nodeName": "node-1", "serviceAccountName": "web"},
        "status": {"phase": "Failed"},
    });
    bench.write("Pod", "shop.web-1.json", &ended);
    // Within the half second for which several requests share a look.
    let refused = async {
        loop {
            if let Err(refused) = bench.certificate("node-1", &web).await {
                return refused;
            }
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(10), refused).await;
    assert_opaque(&refused.unwrap(), Code::PermissionDenied);
}

#[tokio::test]
async fn only_node_accounts_ask_for_others() {
    let bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let discovery = bench.token(&Token {
        account: "culvert-discovery",
        ..of_node("node-1")
    });
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    let refused = bench.ask(&discovery, &csr(), Some(web)).await.unwrap_err();
    assert_opaque(&refused, Code::PermissionDenied);
    assert_eq!(bench.refusals("not_a_node_account"), 1);
    let node = bench.token(&of_node("node-1"));
    for (requested, reason) in [
        (
            "spiffe://elsewhere.org/ns/shop/sa/web",
            "wrong_trust_domain",
        ),
        ("spiffe://cluster.local/shop/web", "malformed_identity"),
    ] {
        let refused = bench.ask(&node, &csr(), Some(requested)).await.unwrap_err();
        assert_opaque(&refused, Code::PermissionDenied);
        assert_eq!(bench.refusals(reason), 1, "{reason}");
    }
    let unbound = bench.token(&Token {
        node: None,
        ..of_node("")
    });
    let refused = bench.ask(&unbound, &csr(), Some(web)).await.unwrap_err();
    assert_opaque(&refused, Code::PermissionDenied);
    assert_eq!(bench.refusals("unbound_token"), 1);
}

#[tokio::test]
async fn the_ca_stamps_its_own_name_whatever_the_request_says() {
    let bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let (key, csr) = culvert_tls::csr(&identity("bank", "admin")).unwrap();
    let token = bench.token(&of_node("node-1"));
    let web = identity("shop", "web");
    let chain = bench.ask(&token, &csr, Some(web.uri())).await.unwrap();
    assert_eq!(chain.len(), 3);
    let issued = IssuedCertificate::from_answer(&chain, &key, &web).unwrap();
    issued.check(SystemTime::now()).unwrap();
    assert_eq!(chain[2], bench.bundle());
    // Without an identity in the metadata it is the token's own.
    let chain = bench.ask(&token, &csr, None).await.unwrap();
    let own = identity("culvert-system", "culvert-node-proxy");
    IssuedCertificate::from_answer(&chain, &key, &own).unwrap();
}

#[tokio::test]
async fn a_request_that_cannot_be_read_is_refused() {
    let bench = Bench::start().await;
    let token = bench.token(&of_node("node-1"));
    let mut forged = csr();
    let middle = forged.len() / 2;
    let byte = if forged.as_bytes()[middle] == b'A' {
        "B"
    } else {
        "A"
    };
    forged.replace_range(middle..=middle, byte);
    for csr in ["", "garbage", forged.as_str(), &"A".repeat(20_000)] {
        let refused = bench.ask(&token, csr, None).await.unwrap_err();
        assert_opaque(&refused, Code::InvalidArgument);
    }
    assert_eq!(bench.refusals("bad_certificate_request"), 4);
}

#[tokio::test]
async fn lifetimes_are_bounded() {
    let bench = Bench::start().await;
    let token = bench.token(&of_node("node-1"));
    let own = identity("culvert-system", "culvert-node-proxy");
    let channel = bench.channel().await;
    for (asked, expected) in [
        (0, 24 * HOUR),
        (-5, 24 * HOUR),
        (3600, HOUR),
        (i64::MAX, 24 * HOUR),
    ] {
        let (key, csr) = culvert_tls::csr(&own).unwrap();
        let mut client = IstioCertificateServiceClient::new(channel.clone());
        let answer = client.create_certificate(request(&token, &csr, None, asked));
        let chain = answer.await.unwrap().into_inner().cert_chain;
        let issued = IssuedCertificate::from_answer(&chain, &key, &own).unwrap();
        let public = issued.certificate();
        let life = public
            .not_after()
            .duration_since(public.not_before())
            .unwrap();
        assert_eq!(life.as_secs(), expected.as_secs() + 120, "{asked}");
    }
    assert!(
        bench
            .metrics
            .encode()
            .unwrap()
            .contains("culvert_ca_certificates_issued_total 4")
    );
}

#[tokio::test]
async fn a_pod_that_is_written_after_the_request_is_waited_for() {
    let bench = Bench::start().await;
    let web = identity("shop", "web");
    let (asked, ()) = tokio::join!(bench.certificate("node-1", &web), async {
        bench.wait_for_metric("culvert_ca_requests_waiting 1").await;
        bench.pod("web-1", "node-1", "web");
    });
    asked.unwrap();
}

#[tokio::test]
async fn discovery_gets_its_dns_name_with_its_own_token_only() {
    let bench = Bench::start().await;
    let name = "culvert-discovery.culvert-system.svc";
    let discovery = identity("culvert-system", "culvert-discovery");
    let (key, csr) = culvert_tls::csr(&discovery).unwrap();
    let token = bench.token(&Token {
        account: "culvert-discovery",
        node: None,
        ..of_node("")
    });
    let chain = bench.ask(&token, &csr, None).await.unwrap();
    let own = IssuedCertificate::from_answer(&chain, &key, &discovery).unwrap();
    let pod = serde_json::json!({
        "metadata": {"namespace": "culvert-system", "name": "discovery-1", "uid": "u"},
        "spec": {"nodeName": "node-1", "serviceAccountName": "culvert-discovery"},
    });
    bench.write("Pod", "culvert-system.discovery-1.json", &pod);
    let nodes = bench.certificate("node-1", &discovery).await.unwrap();
    for (certificate, serves) in [(own, true), (nodes, false)] {
        let server = culvert_tls::ControlPlaneServer::new(&certificate);
        let client = ControlPlaneClient::from_file(bench.bundle_file(), name).unwrap();
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (_, connected) = tokio::join!(server.accept(far), client.connect(near));
        assert_eq!(connected.is_ok(), serves);
    }
}

#[tokio::test]
async fn a_herd_is_served() {
    let bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let token = bench.token(&of_node("node-1"));
    let channel = bench.channel().await;
    let web = identity("shop", "web");
    let mut herd = tokio::task::JoinSet::new();
    for _ in 0..500 {
        let (_, csr) = culvert_tls::csr(&web).unwrap();
        let request = request(&token, &csr, Some(web.uri()), 0);
        let mut client = IstioCertificateServiceClient::new(channel.clone());
        herd.spawn(async move { client.create_certificate(request).await.map(drop) });
    }
    while let Some(done) = herd.join_next().await {
        done.unwrap().unwrap();
    }
    assert!(
        bench
            .metrics
            .encode()
            .unwrap()
            .contains("culvert_ca_certificates_issued_total 500")
    );
}

#[tokio::test]
async fn what_is_not_tls_or_not_http2_is_counted_and_harms_nobody() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let bench = Bench::start().await;
    let mut plain = tokio::net::TcpStream::connect(bench.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest).await;
    let text = bench.metrics.encode().unwrap();
    let counted = "culvert_ca_handshake_failures_total{reason=\"not_tls\"} 1";
    assert!(text.contains(counted), "{text}");
    let tls = ControlPlaneClient::from_file(bench.bundle_file(), SERVER_NAME).unwrap();
    let stream = tokio::net::TcpStream::connect(bench.address).await.unwrap();
    let mut stream = tls.connect(stream).await.unwrap();
    stream.write_all(&[0xff; 512]).await.unwrap();
    let _ = stream.read_to_end(&mut rest).await;
    let token = bench.token(&of_node("node-1"));
    bench.ask(&token, &csr(), None).await.unwrap();
}
