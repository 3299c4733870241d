//! Connections through two node proxies in this process, over loopback: real
//! TLS, real tunnels, no namespaces. Marks on sockets need CAP_NET_ADMIN: run as
//! root.

#[path = "support/mesh.rs"]
mod mesh;

use std::net::SocketAddr;

use culvert_model::{Action, Change, Group, Match, Policy, PolicyName, Rules, Scope, StringMatch};
use culvert_node_proxy::pods::PodListeners;
use culvert_node_proxy::pods::session::StopMode;
use mesh::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SERVICE_PORT: u16 = 8080;
const APPLICATION_PORT: u16 = 9090;

/// A client pod on one node and a server pod on another.
struct World {
    near: Node,
    far: Node,
    net: [u8; 3],
}

impl World {
    async fn new() -> Self {
        Self::with_workers(1).await
    }

    async fn with_workers(workers: usize) -> Self {
        let net = fresh_net();
        let (near, far) = (Node::new(workers), Node::new(workers));
        let ca = Ca::new();
        near.certify(ca.issue(&identity("client")));
        near.certify(ca.issue(&identity("friend")));
        far.certify(ca.issue(&identity("server")));
        let world = Self { near, far, net };
        world.apply(world.mesh());
        world
            .near
            .add_pod("client", world.client_listeners(1))
            .await;
        world
            .near
            .add_pod("friend", world.client_listeners(5))
            .await;
        world.far.add_pod("server", world.server_listeners()).await;
        world
    }

    /// Both pods on one node.
    async fn same_node() -> Self {
        let net = fresh_net();
        let (near, far) = (Node::new(1), Node::new(1));
        let ca = Ca::new();
        near.certify(ca.issue(&identity("client")));
        near.certify(ca.issue(&identity("server")));
        let world = Self { near, far, net };
        world.apply(world.mesh());
        world
            .near
            .add_pod("client", world.client_listeners(1))
            .await;
        world.near.add_pod("server", world.server_listeners()).await;
        world
    }

    fn mesh(&self) -> Vec<Change> {
        let behind = [("web", SERVICE_PORT, APPLICATION_PORT)];
        let mut web = service("web", self.vip().ip(), SERVICE_PORT, APPLICATION_PORT);
        web.addresses
            .push(culvert_model::NetworkAddress::host("", self.vip_of(5).ip()));
        vec![
            Change::Service(web),
            Change::Workload(workload("client", ip(self.net, 1), &[])),
            Change::Workload(workload("friend", ip(self.net, 5), &[])),
            Change::Workload(workload("server", ip(self.net, 2), &behind)),
        ]
    }

    fn apply(&self, changes: Vec<Change>) {
        self.near.state.apply(changes.clone());
        self.far.state.apply(changes);
    }

    /// Where the client's redirected connections to the service arrive: under
    /// the address that the application named, as a transparent listener has it.
    fn vip(&self) -> SocketAddr {
        self.vip_of(1)
    }

    /// Each client has an address of the service of its own, since all live in
    /// one namespace.
    fn vip_of(&self, client: u8) -> SocketAddr {
        SocketAddr::new(ip(self.net, 100 + client), SERVICE_PORT)
    }

    fn application(&self) -> SocketAddr {
        SocketAddr::new(ip(self.net, 2), APPLICATION_PORT)
    }

    fn tunnel(&self) -> SocketAddr {
        SocketAddr::new(ip(self.net, 2), TUNNEL_PORT)
    }

    /// Where plain connections to the server arrive.
    fn plain(&self) -> SocketAddr {
        SocketAddr::new(ip(self.net, 2), 9191)
    }

    fn client_listeners(&self, client: u8) -> PodListeners {
        PodListeners {
            outbound: listen(self.vip_of(client)),
            inbound: listen(SocketAddr::new(ip(self.net, client), 0)),
            tunnel: listen(SocketAddr::new(ip(self.net, client), TUNNEL_PORT)),
        }
    }

    fn server_listeners(&self) -> PodListeners {
        PodListeners {
            outbound: listen(SocketAddr::new(ip(self.net, 2), 0)),
            inbound: listen(self.plain()),
            tunnel: listen(self.tunnel()),
        }
    }

    async fn dial(&self) -> TcpStream {
        self.dial_as(1).await
    }

    async fn dial_as(&self, client: u8) -> TcpStream {
        connect(ip(self.net, client), self.vip_of(client)).await
    }
}

fn deny(name: &str, principal: &str) -> Policy {
    let one = Match {
        principals: vec![StringMatch::Exact(principal.into())],
        ..Match::default()
    };
    let groups = vec![Group {
        rules: vec![Rules { matches: vec![one] }],
    }];
    Policy::new(
        PolicyName::new("shop", name),
        Scope::Namespace,
        Action::Deny,
        groups,
    )
}

fn strict() -> Policy {
    let one = Match {
        not_principals: vec![StringMatch::Presence],
        ..Match::default()
    };
    let groups = vec![Group {
        rules: vec![Rules { matches: vec![one] }],
    }];
    Policy::new(
        PolicyName::new("shop", "strict"),
        Scope::Namespace,
        Action::Deny,
        groups,
    )
}

const CLIENT: &str = "cluster.local/ns/shop/sa/client";

#[test]
fn bytes_cross_the_tunnel_and_both_sides_keep_the_books() {
    run(async {
        let world = World::new().await;
        let _app = echo(world.application());
        for _ in 0..3 {
            let mut stream = world.dial().await;
            let answer = exchange(&mut stream, "hello").await.expect("exchange");
            // A loopback address is never taken along: it would pass for local.
            assert_eq!(answer, "[127.0.0.1]hello");
        }
        let line = world.near.log.wait_for("connection complete").await;
        for part in [
            "direction=outbound",
            "connection_security_policy=mutual_tls",
            "src.workload=client",
            "src.identity=spiffe://cluster.local/ns/shop/sa/client",
            "dst.identity=spiffe://cluster.local/ns/shop/sa/server",
            "dst.service=web.shop.svc.cluster.local",
            "bytes_sent=5",
            "bytes_recv=16",
            "response_flags=-",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        let line = world.far.log.wait_for("connection complete").await;
        for part in [
            "direction=inbound",
            "src.workload=client",
            "src.identity=spiffe://cluster.local/ns/shop/sa/client",
            "bytes_recv=5",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        let trace = |line: &str| line.split("trace=").nth(1).map(|t| t[..32].to_owned());
        let near = world.near.log.text();
        assert!(
            near.contains(&trace(&line).expect("trace")),
            "one trace joins both records"
        );
        let labels = [
            "source_workload=\"client\"",
            "destination_workload=\"server\"",
            "mutual_tls",
        ];
        for (node, reporter) in [(&world.near, "source"), (&world.far, "destination")] {
            let reporter = format!("reporter=\"{reporter}\"");
            let labels = [labels[0], labels[1], labels[2], &reporter];
            node.wait_sum("istio_tcp_connections_closed_total", &labels, 3)
                .await;
            assert_eq!(node.sum("istio_tcp_connections_opened_total", &labels), 3);
            assert_eq!(node.sum("istio_tcp_received_bytes_total", &labels), 15);
            assert_eq!(node.sum("istio_tcp_sockets_open", &[&reporter]), 0);
            assert_eq!(node.sum("culvert_tunnels_open", &[&reporter]), 1);
        }
        // Nothing but the tunnel leads to the server.
        let handshakes = world.far.sum("culvert_handshake_failures_total", &[]);
        assert_eq!(handshakes, 0);
    });
}

#[test]
fn a_denied_client_is_told_by_category_and_id_alone() {
    run(async {
        let world = World::new().await;
        let _app = echo(world.application());
        world.apply(policies([deny("no-client", CLIENT)]));
        let mut stream = world.dial().await;
        let answer = exchange(&mut stream, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let answer = answer.expect("an answer, not a reset");
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
        assert!(answer.contains("x-culvert-reason: policy; id="), "{answer}");
        assert!(!answer.contains("no-client"), "{answer}");
        let id = answer.split("id=").nth(1).expect("id")[..16].to_owned();
        let far = world.far.log.wait_for(&format!("refusal={id}")).await;
        assert!(
            far.contains("shop/no-client") && far.contains("rule 0"),
            "{far}"
        );
        assert!(
            far.contains("src.identity=spiffe://cluster.local/ns/shop/sa/client"),
            "{far}"
        );
        assert!(
            far.contains("dst.identity=spiffe://cluster.local/ns/shop/sa/server"),
            "{far}"
        );
        assert!(far.contains("response_flags=DENY"), "{far}");
        let near = world.near.log.wait_for(&format!("refusal={id}")).await;
        assert!(
            near.contains("response_flags=DENY") && !near.contains("no-client"),
            "{near}"
        );
        let labels = [
            "policy=\"shop/no-client\"",
            "rule=\"0\"",
            "sa/client\"",
            "sa/server\"",
        ];
        assert_eq!(world.far.sum("culvert_policy_denials_total", &labels), 1);
        world
            .near
            .wait_sum("istio_tcp_connections_failed_total", &["DENY"], 1)
            .await;

        // What is not HTTP gets a RST.
        let mut stream = world.dial().await;
        let refused = exchange(&mut stream, "\x16\x03\x01").await;
        let kind = refused.expect_err("refused").kind();
        assert_eq!(kind, std::io::ErrorKind::ConnectionReset);
        // Who waits for the server to speak, too.
        let mut stream = world.dial().await;
        let silent = soon("reset", stream.read(&mut [0; 1])).await;
        assert_eq!(
            silent.expect_err("refused").kind(),
            std::io::ErrorKind::ConnectionReset
        );
    });
}

#[test]
fn an_http2_client_gets_its_refusal_on_every_stream() {
    run(async {
        let world = World::new().await;
        world.apply(policies([deny("no-client", CLIENT)]));
        let stream = world.dial().await;
        let (mut sender, connection) = h2::client::handshake(stream).await.expect("handshake");
        let driver = tokio::task::spawn_local(connection);
        let ask = |kind: &str| {
            http::Request::post("http://web/")
                .header("content-type", kind)
                .body(())
                .expect("ok")
        };
        let plain = sender
            .send_request(ask("text/plain"), true)
            .expect("sent")
            .0;
        let grpc = sender
            .send_request(ask("application/grpc"), true)
            .expect("sent")
            .0;
        let plain = soon("answer", plain).await.expect("answer");
        assert_eq!(plain.status(), 403);
        let reason = plain.headers()["x-culvert-reason"].to_str().expect("text");
        assert!(reason.starts_with("policy; id="), "{reason}");
        let grpc = soon("answer", grpc).await.expect("answer");
        assert_eq!(grpc.status(), 200);
        assert_eq!(grpc.headers()["grpc-status"], "7");
        drop((sender, plain, grpc));
        let _ = soon("end", driver).await;
    });
}

#[test]
fn a_policy_change_closes_exactly_what_it_denies() {
    run(async {
        let world = World::new().await;
        let _app = echo(world.application());
        let mut denied = world.dial().await;
        let mut kept = world.dial_as(5).await;
        for stream in [&mut denied, &mut kept] {
            stream.write_all(b"x").await.expect("write");
            let mut seen = Vec::new();
            while !seen.ends_with(b"]x") {
                soon("echo", stream.read_buf(&mut seen))
                    .await
                    .expect("read");
            }
        }
        world.apply(policies([deny("late", CLIENT)]));
        let end = soon("reset", denied.read(&mut [0; 1])).await;
        assert_eq!(
            end.expect_err("closed").kind(),
            std::io::ErrorKind::ConnectionReset
        );
        let line = world.far.log.wait_for("closed by a policy change").await;
        assert!(
            line.contains("shop/late") && line.contains("response_flags=DENY"),
            "{line}"
        );
        kept.write_all(b"y").await.expect("write");
        let mut byte = [0];
        soon("echo", kept.read_exact(&mut byte))
            .await
            .expect("read");
        assert_eq!(byte, *b"y");
        // A change that concerns nobody closes nothing.
        world.apply(policies([deny("other", "cluster.local/ns/x/sa/y")]));
        world.apply(policies([strict()]));
        kept.write_all(b"z").await.expect("write");
        soon("echo", kept.read_exact(&mut byte))
            .await
            .expect("read");
        assert_eq!(byte, *b"z");
    });
}

#[test]
fn plain_connections_obey_strict_mode() {
    run(async {
        let world = World::new().await;
        let app = SocketAddr::new(ip(world.net, 2), 9191);
        assert_eq!(app, world.plain());
        world.apply(policies([strict()]));
        let mut stream = connect(ip(world.net, 77), world.plain()).await;
        let answer = exchange(&mut stream, "HEAD / HTTP/1.1\r\n\r\n")
            .await
            .expect("answer");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "a HEAD has no body: {answer}");
        let line = world.far.log.wait_for("response_flags=DENY").await;
        assert!(line.contains("shop/strict"), "{line}");
        assert!(!line.contains("src.identity"), "{line}");
    });
}

#[test]
fn a_reset_crosses_in_both_directions_and_is_no_end() {
    run(async {
        let world = World::new().await;
        let listener = listen(world.application());
        let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
        // The server resets.
        let mut client = world.dial().await;
        client.write_all(b"x").await.expect("write");
        let (mut server, _) = soon("accept", listener.accept()).await.expect("accept");
        server.read_exact(&mut [0]).await.expect("read");
        server.write_all(b"y").await.expect("write");
        client.read_exact(&mut [0]).await.expect("read");
        server.set_zero_linger().expect("linger");
        drop(server);
        let end = soon("reset", client.read(&mut [0; 1])).await;
        assert_eq!(
            end.expect_err("reset").kind(),
            std::io::ErrorKind::ConnectionReset
        );
        // The client resets.
        let mut client = world.dial().await;
        client.write_all(b"x").await.expect("write");
        let (mut server, _) = soon("accept", listener.accept()).await.expect("accept");
        server.read_exact(&mut [0]).await.expect("read");
        client.set_zero_linger().expect("linger");
        drop(client);
        let end = soon("reset", server.read(&mut [0; 1])).await;
        assert_eq!(
            end.expect_err("reset").kind(),
            std::io::ErrorKind::ConnectionReset
        );
        world.far.log.wait_for("error=").await;
        wait("books closed", || {
            (world.far.sum("istio_tcp_sockets_open", &[]) == 0).then_some(())
        })
        .await;
    });
}

#[test]
fn a_refused_application_connection_is_a_503() {
    run(async {
        let world = World::new().await;
        let mut stream = world.dial().await;
        let answer = exchange(&mut stream, "GET / HTTP/1.0\r\n\r\n")
            .await
            .expect("answer");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(
            answer.contains("x-culvert-reason: unavailable; id="),
            "{answer}"
        );
        world
            .far
            .wait_sum("istio_tcp_connections_failed_total", &["CONNECT"], 1)
            .await;
    });
}

#[test]
fn another_endpoint_is_tried_when_one_cannot_be_reached() {
    run(async {
        let world = World::new().await;
        let _app = echo(world.application());
        // Nobody listens at the tunnel port of the second endpoint.
        let dead = workload(
            "dead",
            ip(world.net, 3),
            &[("web", SERVICE_PORT, APPLICATION_PORT)],
        );
        world.apply(vec![Change::Workload(dead)]);
        for _ in 0..20 {
            let mut stream = world.dial().await;
            let answer = exchange(&mut stream, "hello").await.expect("exchange");
            assert!(answer.ends_with("]hello"), "{answer}");
        }
        let ejections = world.near.sum("culvert_endpoint_ejections_total", &[]);
        assert!(
            (1..=3).contains(&ejections),
            "ejected once, not tried each time: {ejections}"
        );
        // With only the dead one left there is an answer, and no plain fallback.
        world.apply(vec![Change::RemoveAddress(uid("server").as_str().into())]);
        let mut stream = world.dial().await;
        let answer = exchange(&mut stream, "GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("answer");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    });
}

#[test]
fn what_is_not_in_the_mesh_is_passed_on_and_what_is_never() {
    run(async {
        let world = World::new().await;
        // An address that nobody knows: passed on to itself, from where the
        // listener below answers under the same address.
        let mut plain = workload("outside", ip(world.net, 9), &[("web", SERVICE_PORT, 7070)]);
        plain.tunnel_protocol = culvert_model::TunnelProtocol::None;
        world.apply(vec![
            Change::RemoveAddress(uid("server").as_str().into()),
            Change::Workload(plain),
        ]);
        let _app = echo(SocketAddr::new(ip(world.net, 9), 7070));
        let mut stream = world.dial().await;
        let answer = exchange(&mut stream, "plain").await.expect("exchange");
        assert!(answer.ends_with("]plain"), "{answer}");
        let line = world.near.log.wait_for("connection complete").await;
        assert!(
            line.contains("connection_security_policy=unknown"),
            "{line}"
        );
        assert!(!line.contains("dst.identity"), "{line}");
        // Without any endpoint nothing is sent anywhere.
        world.apply(vec![Change::RemoveAddress(uid("outside").as_str().into())]);
        let mut stream = world.dial().await;
        let answer = exchange(&mut stream, "GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("answer");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        world
            .near
            .wait_sum("culvert_route_rejects_total", &["no_endpoints"], 1)
            .await;
    });
}

#[test]
fn two_pods_of_one_node_are_joined_under_the_same_checks() {
    run(async {
        let world = World::same_node().await;
        let _app = echo(world.application());
        let mut stream = world.dial().await;
        let answer = exchange(&mut stream, "hello").await.expect("exchange");
        assert!(answer.ends_with("]hello"), "{answer}");
        let local = "connection_security_policy=\"local\"";
        for reporter in ["reporter=\"source\"", "reporter=\"destination\""] {
            let labels = [local, reporter, "sa/client\"", "sa/server\""];
            world
                .near
                .wait_sum("istio_tcp_connections_closed_total", &labels, 1)
                .await;
            assert_eq!(world.near.sum("istio_tcp_received_bytes_total", &labels), 5);
        }
        assert_eq!(world.near.sum("culvert_tunnels_open", &[]), 0);

        let mut open = world.dial().await;
        open.write_all(b"x").await.expect("write");
        let mut seen = Vec::new();
        while !seen.ends_with(b"]x") {
            soon("echo", open.read_buf(&mut seen)).await.expect("read");
        }
        world.apply(policies([deny("no-client", CLIENT)]));
        let end = soon("reset", open.read(&mut [0; 1])).await;
        assert_eq!(
            end.expect_err("closed").kind(),
            std::io::ErrorKind::ConnectionReset
        );
        let mut stream = world.dial().await;
        let answer = exchange(&mut stream, "GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("answer");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(
            world
                .near
                .sum("culvert_policy_denials_total", &["shop/no-client"]),
            2
        );
    });
}

#[test]
fn egress_policies_are_enforced_at_the_source_on_both_ways() {
    run(async {
        for world in [World::new().await, World::same_node().await] {
            let _app = echo(world.application());
            let mut open = world.dial().await;
            open.write_all(b"x").await.expect("write");
            let mut seen = Vec::new();
            while !seen.ends_with(b"]x") {
                soon("echo", open.read_buf(&mut seen)).await.expect("read");
            }
            let one = Match {
                destination_ports: vec![APPLICATION_PORT],
                ..Match::default()
            };
            let groups = vec![Group {
                rules: vec![Rules { matches: vec![one] }],
            }];
            let name = PolicyName::new("shop", "egress");
            let policy = Policy::new(name.clone(), Scope::WorkloadSelector, Action::Deny, groups);
            let mut client = workload("client", ip(world.net, 1), &[]);
            client.egress_policies = vec![name];
            world.apply(vec![Change::EgressPolicy(policy), Change::Workload(client)]);
            let end = soon("reset", open.read(&mut [0; 1])).await;
            assert_eq!(
                end.expect_err("closed").kind(),
                std::io::ErrorKind::ConnectionReset
            );
            let mut stream = world.dial().await;
            let answer = exchange(&mut stream, "GET / HTTP/1.1\r\n\r\n")
                .await
                .expect("answer");
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            let labels = ["reporter=\"source\"", "policy=\"shop/egress\""];
            assert_eq!(world.near.sum("culvert_policy_denials_total", &labels), 2);
        }
    });
}

#[test]
fn a_pod_that_is_gone_takes_its_connections_with_it() {
    run(async {
        let world = World::new().await;
        let _app = echo(world.application());
        let mut stream = world.dial().await;
        stream.write_all(b"x").await.expect("write");
        let mut seen = Vec::new();
        while !seen.ends_with(b"]x") {
            soon("echo", stream.read_buf(&mut seen))
                .await
                .expect("read");
        }
        assert_eq!(world.far.workers.connections().await.len(), 1);
        world
            .far
            .workers
            .remove_pod(&"uid-server".into(), StopMode::Now)
            .await;
        let end = soon("reset", stream.read(&mut [0; 1])).await;
        assert_eq!(
            end.expect_err("closed").kind(),
            std::io::ErrorKind::ConnectionReset
        );
        wait("no connections", || {
            (world.far.sum("istio_tcp_sockets_open", &[]) == 0).then_some(())
        })
        .await;
    });
}

#[test]
fn a_drain_lets_connections_finish_until_the_deadline() {
    run(async {
        let world = World::new().await;
        let _app = echo(world.application());
        let mut finishes = world.dial().await;
        let mut lasts = world.dial().await;
        for stream in [&mut finishes, &mut lasts] {
            stream.write_all(b"x").await.expect("write");
            let mut seen = Vec::new();
            while !seen.ends_with(b"]x") {
                soon("echo", stream.read_buf(&mut seen))
                    .await
                    .expect("read");
            }
        }
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_millis(800);
        let (cut, answer) = tokio::join!(
            world.far.workers.drain(deadline),
            exchange(&mut finishes, "last words"),
        );
        assert_eq!(answer.expect("finishes"), "last words");
        assert_eq!(cut, 1);
        let end = soon("reset", lasts.read(&mut [0; 1])).await;
        assert!(end.is_err(), "{end:?}");
    });
}

#[test]
fn connections_are_spread_over_the_workers() {
    run(async {
        let world = World::with_workers(2).await;
        let _app = echo(world.application());
        let mut streams = Vec::new();
        for _ in 0..60 {
            let mut stream = world.dial().await;
            stream.write_all(b"x").await.expect("write");
            let mut seen = Vec::new();
            while !seen.ends_with(b"]x") {
                soon("echo", stream.read_buf(&mut seen))
                    .await
                    .expect("read");
            }
            streams.push(stream);
        }
        let views = world.near.workers.connections().await;
        assert_eq!(views.len(), 60);
        let first = views.iter().filter(|view| view.worker == 0).count();
        assert!(
            (15..=45).contains(&first),
            "{first} of 60 on the first worker"
        );
    });
}
