//! Peers that must not get in, and peers that must not be talked to. Nothing gets
//! through, nothing dies, and each is visible with its reason. Run as root.

#[path = "support/mesh.rs"]
mod mesh;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use culvert_identity::{Identity, TrustDomain};
use culvert_model::Change;
use culvert_node_proxy::pods::PodListeners;
use culvert_tls::ca::Validity;
use culvert_tls::{IssuedCertificate, client_config};
use mesh::*;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const APPLICATION_PORT: u16 = 9090;

/// A server pod behind a node proxy.
struct World {
    node: Node,
    ca: Ca,
    net: [u8; 3],
}

impl World {
    async fn new() -> Self {
        let net = fresh_net();
        let node = Node::new(1);
        let ca = Ca::new();
        node.certify(ca.issue(&identity("server")));
        node.state.apply([
            Change::Workload(workload("server", ip(net, 2), &[])),
            Change::Workload(workload("other", ip(net, 3), &[])),
        ]);
        let world = Self { node, ca, net };
        let listeners = PodListeners {
            outbound: listen(SocketAddr::new(ip(net, 2), 0)),
            inbound: listen(SocketAddr::new(ip(net, 2), 0)),
            tunnel: listen(world.tunnel()),
        };
        world.node.add_pod("server", listeners).await;
        world
    }

    fn tunnel(&self) -> SocketAddr {
        SocketAddr::new(ip(self.net, 2), TUNNEL_PORT)
    }

    fn application(&self) -> SocketAddr {
        SocketAddr::new(ip(self.net, 2), APPLICATION_PORT)
    }

    async fn handshake(&self, config: Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = connect(ip(self.net, 1), self.tunnel()).await;
        let name = ServerName::try_from("server").expect("name");
        soon(
            "handshake",
            TlsConnector::from(config).connect(name, stream),
        )
        .await
    }

    fn config(&self, certificate: &IssuedCertificate) -> Arc<ClientConfig> {
        client_config(certificate, &[identity("server")])
    }

    async fn tunnel_as(&self, certificate: &IssuedCertificate) -> Tunnel {
        let stream = self
            .handshake(self.config(certificate))
            .await
            .expect("handshake");
        let (sender, connection) = h2::client::handshake(stream).await.expect("preface");
        let driver = tokio::task::spawn_local(connection);
        Tunnel { sender, driver }
    }

    /// A peer with everything in order gets through.
    async fn check_alive(&self) {
        let app = echo(self.application());
        let mut tunnel = self.tunnel_as(&self.ca.issue(&identity("client"))).await;
        assert_eq!(tunnel.connect(&self.application().to_string()).await.0, 200);
        app.abort();
        let _ = app.await;
    }

    async fn refused_handshakes(&self, reason: &str, expected: u64) {
        let label = format!("reason=\"{reason}\"");
        let labels = [label.as_str(), "reporter=\"destination\""];
        self.node
            .wait_sum("culvert_handshake_failures_total", &labels, expected)
            .await;
    }
}

struct Tunnel {
    sender: h2::client::SendRequest<Bytes>,
    driver: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Tunnel {
    /// Status and reason header of the answer to a CONNECT.
    async fn connect(&mut self, authority: &str) -> (u16, String) {
        let uri = http::Uri::try_from(authority).expect("authority");
        self.request(http::Request::connect(uri).body(()).expect("request"))
            .await
    }

    async fn request(&mut self, request: http::Request<()>) -> (u16, String) {
        let (response, _body) = self.sender.send_request(request, false).expect("sent");
        let response = soon("answer", response).await.expect("answer");
        let reason = response.headers().get("x-culvert-reason");
        let reason = reason.map(|r| r.to_str().expect("text").to_owned());
        (response.status().as_u16(), reason.unwrap_or_default())
    }
}

/// A client learns that its certificate was refused when it reads.
async fn is_refused(stream: std::io::Result<TlsStream<TcpStream>>) -> bool {
    match stream {
        Err(_) => true,
        Ok(mut stream) => soon("alert", stream.read(&mut [0; 64])).await.is_err(),
    }
}

#[test]
fn strangers_and_impostors_fail_the_handshake() {
    run(async {
        let world = World::new().await;
        let _app = echo(world.application());
        let elsewhere: TrustDomain = "elsewhere.example".parse().expect("trust domain");
        let foreign = Identity::new(&elsewhere, "shop", "client").expect("identity");
        let now = SystemTime::now();
        let past = Validity {
            not_before: now - 2 * HOUR,
            not_after: now - HOUR,
        };
        let future = Validity {
            not_before: now + HOUR,
            not_after: now + 2 * HOUR,
        };
        let (ca, client) = (&world.ca, identity("client"));
        for (certificate, reason) in [
            (ca.issue(&foreign), "wrong_trust_domain"),
            (ca.issue_for(&client, past), "expired_certificate"),
            (ca.issue_for(&client, future), "certificate_not_yet_valid"),
        ] {
            let stream = world.handshake(world.config(&certificate)).await;
            assert!(is_refused(stream).await, "{reason}");
            world.refused_handshakes(reason, 1).await;
        }
        // Of another CA: it trusts neither us nor we it; here it trusts anybody.
        let stranger = Ca::new().issue(&client);
        let config = world.config(&stranger.with_trust(ca.issue(&client).trust().clone()));
        assert!(is_refused(world.handshake(config).await).await);
        world.refused_handshakes("unknown_ca", 1).await;
        // Without HTTP/2 in the handshake.
        let mut config = ClientConfig::clone(&world.config(&ca.issue(&client)));
        config.alpn_protocols.clear();
        assert!(!is_established(world.handshake(Arc::new(config)).await).await);
        world
            .refused_handshakes("wrong_application_protocol", 1)
            .await;
        assert_eq!(world.node.sum("istio_tcp_connections_opened_total", &[]), 0);
        drop(_app);
    });
}

/// Whether the server goes on talking.
async fn is_established(stream: std::io::Result<TlsStream<TcpStream>>) -> bool {
    match stream {
        Err(_) => false,
        Ok(mut stream) => matches!(soon("end", stream.read(&mut [0; 64])).await, Ok(n) if n > 0),
    }
}

#[test]
fn bytes_that_are_no_tunnel_end_that_connection_alone() {
    run(async {
        let world = World::new().await;
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0x16, 0x03, 0x01, 0xff, 0xff, 0, 0, 0],
            &[0xff; 2000],
        ] {
            let mut stream = connect(ip(world.net, 1), world.tunnel()).await;
            stream.write_all(bytes).await.expect("write");
            let _ = stream.shutdown().await;
            let mut rest = Vec::new();
            let _ = soon("end", stream.read_to_end(&mut rest)).await;
            assert!(rest.len() < 16, "nothing but an alert: {rest:?}");
        }
        world.refused_handshakes("not_tls", 1).await;
        // HTTP/2 that is none, behind a proper handshake.
        let certificate = world.ca.issue(&identity("client"));
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x00",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\
              \x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff",
        ] {
            let mut stream = world
                .handshake(world.config(&certificate))
                .await
                .expect("handshake");
            stream.write_all(bytes).await.expect("write");
            let mut rest = Vec::new();
            let _ = soon("end", stream.read_to_end(&mut rest)).await;
        }
        world.check_alive().await;
    });
}

#[test]
fn an_authority_of_somebody_else_is_refused() {
    run(async {
        let world = World::new().await;
        let mut tunnel = world.tunnel_as(&world.ca.issue(&identity("client"))).await;
        let own = ip(world.net, 2);
        for (authority, status) in [
            (SocketAddr::new(ip(world.net, 3), 80).to_string(), 400),
            ("127.0.0.1:80".to_owned(), 400),
            (format!("{own}:15001"), 503),
            (format!("{own}:15006"), 503),
            (format!("{own}:15008"), 503),
            ("unknown.example:80".to_owned(), 503),
            (format!("{own}:1"), 503),
        ] {
            let (got, reason) = tunnel.connect(&authority).await;
            assert_eq!(got, status, "{authority}");
            assert!(
                reason.starts_with("unavailable; id="),
                "{authority}: {reason}"
            );
        }
        let get = http::Request::get(format!("https://{own}/"))
            .body(())
            .expect("request");
        assert_eq!(tunnel.request(get).await.0, 400);
        assert!(!tunnel.driver.is_finished());
        let line = world.node.log.wait_for("is not of this pod").await;
        assert!(
            line.contains("src.identity=spiffe://cluster.local/ns/shop/sa/client"),
            "{line}"
        );
        world.check_alive().await;
    });
}

/// A client pod whose server is somebody else than it should be.
#[test]
fn a_server_that_is_not_who_it_should_be_gets_nothing() {
    run(async {
        let net = fresh_net();
        let (near, far) = (Node::new(1), Node::new(1));
        let (ca, other_ca) = (Ca::new(), Ca::new());
        near.certify(ca.issue(&identity("client")));
        let vip = SocketAddr::new(ip(net, 100), 8080);
        let behind = [("web", 8080, APPLICATION_PORT)];
        let changes = [
            Change::Service(service("web", vip.ip(), 8080, APPLICATION_PORT)),
            Change::Workload(workload("client", ip(net, 1), &[])),
            Change::Workload(workload("server", ip(net, 2), &behind)),
        ];
        near.state.apply(changes.clone());
        far.state.apply(changes);
        let _app = echo(SocketAddr::new(ip(net, 2), APPLICATION_PORT));
        let listeners = |host, outbound| PodListeners {
            outbound: listen(outbound),
            inbound: listen(SocketAddr::new(ip(net, host), 0)),
            tunnel: listen(SocketAddr::new(ip(net, host), TUNNEL_PORT)),
        };
        near.add_pod("client", listeners(1, vip)).await;
        // An impostor pod, with a certificate of its own, at the server's address.
        let port = SocketAddr::new(ip(net, 2), 0);
        far.certify(ca.issue(&identity("impostor")));
        far.add_pod("impostor", listeners(2, port)).await;
        let ask = async || {
            let mut stream = connect(ip(net, 1), vip).await;
            exchange(&mut stream, "GET / HTTP/1.1\r\n\r\n")
                .await
                .expect("answer")
        };
        assert!(ask().await.starts_with("HTTP/1.1 503 "));
        let labels = ["reporter=\"source\"", "reason=\"wrong_identity\""];
        near.wait_sum("culvert_handshake_failures_total", &labels, 1)
            .await;
        let failed = ["TLS_FAILURE", "destination_workload=\"server\""];
        near.wait_sum("istio_tcp_connections_failed_total", &failed, 1)
            .await;

        // The right identity, signed by a CA that nobody knows.
        far.workers
            .remove_pod(
                &"uid-impostor".into(),
                culvert_node_proxy::pods::session::StopMode::Now,
            )
            .await;
        let fake = Node::new(1);
        fake.certify(other_ca.issue(&identity("server")));
        fake.add_pod("server", listeners(2, port)).await;
        assert!(ask().await.starts_with("HTTP/1.1 503 "));
        let labels = ["reporter=\"source\"", "reason=\"unknown_ca\""];
        near.wait_sum("culvert_handshake_failures_total", &labels, 1)
            .await;
        assert_eq!(near.sum("istio_tcp_sent_bytes_total", &[]), 0);
    });
}

#[test]
fn without_a_certificate_nothing_leaves_a_pod() {
    run(async {
        let net = fresh_net();
        let node = Node::new(1);
        let vip = SocketAddr::new(ip(net, 100), 8080);
        let behind = [("web", 8080, APPLICATION_PORT)];
        node.state.apply([
            Change::Service(service("web", vip.ip(), 8080, APPLICATION_PORT)),
            Change::Workload(workload("client", ip(net, 1), &[])),
            Change::Workload(workload("server", ip(net, 2), &behind)),
        ]);
        let listeners = PodListeners {
            outbound: listen(vip),
            inbound: listen(SocketAddr::new(ip(net, 1), 0)),
            tunnel: listen(SocketAddr::new(ip(net, 1), TUNNEL_PORT)),
        };
        node.add_pod("client", listeners).await;
        let peer = listen(SocketAddr::new(ip(net, 2), TUNNEL_PORT));
        let mut stream = connect(ip(net, 1), vip).await;
        let answer = exchange(&mut stream, "GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("answer");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        node.wait_sum("istio_tcp_connections_failed_total", &["IDENTITY_ERROR"], 1)
            .await;
        let kind = peer.accept().expect_err("nobody came").kind();
        assert_eq!(kind, std::io::ErrorKind::WouldBlock);
    });
}

#[test]
fn readers_that_stop_do_not_stall_others_of_the_same_tunnel() {
    run(async {
        let world = World::new().await;
        let listener = tokio::net::TcpListener::from_std(listen(world.application()));
        let listener = listener.expect("listener");
        let mut tunnel = world.tunnel_as(&world.ca.issue(&identity("client"))).await;
        let mut held = Vec::new();
        let authority = world.application().to_string();
        for _ in 0..40 {
            let uri = http::Uri::try_from(authority.as_str()).expect("authority");
            let request = http::Request::connect(uri).body(()).expect("request");
            let (response, mut send) = tunnel.sender.send_request(request, false).expect("sent");
            let (accepted, response) = tokio::join!(listener.accept(), response);
            // An application that reads nothing; the peer sends all that it may.
            send.send_data(Bytes::from(vec![0; 4 << 20]), false)
                .expect("queued");
            held.push((accepted.expect("accepted"), response.expect("answer"), send));
        }
        // The applications' socket buffers fill, then the streams' windows; the
        // tunnel stays usable.
        let labels = ["reporter=\"destination\""];
        let node = &world.node;
        node.wait_sum("istio_tcp_received_bytes_total", &labels, 40 * 64 * 1024)
            .await;
        let uri = http::Uri::try_from(authority.as_str()).expect("authority");
        let request = http::Request::connect(uri).body(()).expect("request");
        let (response, mut send) = tunnel.sender.send_request(request, false).expect("sent");
        let (accepted, response) = tokio::join!(listener.accept(), response);
        let (mut application, _) = accepted.expect("accepted");
        let _response = soon("answer", async { response }).await.expect("answer");
        for _ in 0..50 {
            send.send_data(Bytes::from(vec![7; 1000]), false)
                .expect("queued");
            soon("bytes", application.read_exact(&mut [0; 1000]))
                .await
                .expect("read");
        }
    });
}
