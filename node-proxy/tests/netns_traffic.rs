//! Traffic between pods in network namespaces, with the real redirect rules:
//! IPv4 and IPv6, tunnelled, handed over and plain. Run as root.

#[path = "support/lan.rs"]
mod lan;
#[path = "support/mesh.rs"]
mod mesh;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use culvert_model::{
    Action, Change, Group, Match, NetworkAddress, Policy, PolicyName, Rules, Scope, StringMatch,
};
use culvert_netns::{Keepalive, Netns, SocketDiag, set_keepalive};
use culvert_node_proxy::pods::sockets::{self, Dns};
use lan::{Lan, enroll, listen_in};
use mesh::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const SERVICE_PORT: u16 = 80;
const APPLICATION_PORT: u16 = 8080;
const CLIENT: [&str; 2] = ["10.77.0.1", "fd00:77::1"];
const SERVER: [&str; 2] = ["10.77.0.2", "fd00:77::2"];
const NEIGHBOUR: [&str; 2] = ["10.77.0.3", "fd00:77::3"];
const STRANGER: [&str; 2] = ["10.77.0.9", "fd00:77::9"];
const VIPS: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

fn ips(texts: [&str; 2]) -> Vec<IpAddr> {
    texts
        .iter()
        .map(|text| text.parse().expect("address"))
        .collect()
}

struct World {
    near: Node,
    far: Node,
    client: Netns,
    server: Netns,
    neighbour: Netns,
    stranger: Netns,
    _lan: Lan,
}

async fn serve(node: &Node, account: &str, netns: &Netns) {
    enroll(netns);
    let sockets = sockets::open(netns, Dns::Off, Vec::new()).expect("listeners");
    node.add_pod_in(account, netns.clone(), sockets.listeners)
        .await;
}

impl World {
    /// A client and a neighbour on one node, a server on another, and a
    /// stranger who is not in the mesh.
    async fn new() -> Self {
        let mut lan = Lan::new();
        let [client, server, neighbour, stranger] =
            [CLIENT, SERVER, NEIGHBOUR, STRANGER].map(|addresses| lan.host(&ips(addresses)));
        let (near, far) = (Node::new(1), Node::new(1));
        let ca = Ca::new();
        near.certify(ca.issue(&identity("client")));
        near.certify(ca.issue(&identity("neighbour")));
        far.certify(ca.issue(&identity("server")));
        let world = Self {
            near,
            far,
            client,
            server,
            neighbour,
            stranger,
            _lan: lan,
        };
        world.apply(mesh());
        serve(&world.near, "client", &world.client).await;
        serve(&world.near, "neighbour", &world.neighbour).await;
        serve(&world.far, "server", &world.server).await;
        world
    }

    fn apply(&self, changes: Vec<Change>) {
        self.near.state.apply(changes.clone());
        self.far.state.apply(changes);
    }
}

fn mesh() -> Vec<Change> {
    let mut web = service("web", ips(VIPS)[0], SERVICE_PORT, APPLICATION_PORT);
    web.addresses.push(NetworkAddress::host("", ips(VIPS)[1]));
    let mut server = workload(
        "server",
        ips(SERVER)[0],
        &[("web", SERVICE_PORT, APPLICATION_PORT)],
    );
    server.addresses = ips(SERVER);
    let mut client = workload("client", ips(CLIENT)[0], &[]);
    client.addresses = ips(CLIENT);
    let mut neighbour = workload("neighbour", ips(NEIGHBOUR)[0], &[]);
    neighbour.addresses = ips(NEIGHBOUR);
    vec![
        Change::Service(web),
        Change::Workload(server),
        Change::Workload(client),
        Change::Workload(neighbour),
    ]
}

/// Answers with the client's address, then echoes; serves both families.
fn application(netns: &Netns) {
    for ip in ["0.0.0.0", "::"] {
        let address = SocketAddr::new(ip.parse().expect("address"), APPLICATION_PORT);
        let listener = if ip == "::" {
            let socket = netns.run(|| {
                let socket = TcpSocket::new_v6().expect("socket");
                socket2::SockRef::from(&socket)
                    .set_only_v6(true)
                    .expect("only v6");
                socket.set_reuseaddr(true).expect("reuse");
                socket.bind(address).expect("bind");
                socket
            });
            socket
                .expect("enter")
                .listen(64)
                .expect("listen")
                .into_std()
                .expect("std")
        } else {
            listen_in(netns, address)
        };
        tokio::task::spawn_local(serve_echo(listener));
    }
}

async fn serve_echo(listener: std::net::TcpListener) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
    loop {
        let (mut stream, peer) = listener.accept().await.expect("accept");
        tokio::task::spawn_local(async move {
            let greeting = format!("[{}]", peer.ip());
            if stream.write_all(greeting.as_bytes()).await.is_err() {
                return;
            }
            let (mut read, mut write) = stream.split();
            if tokio::io::copy(&mut read, &mut write).await.is_ok() {
                let _ = write.shutdown().await;
            }
        });
    }
}

async fn connect_in(netns: &Netns, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = netns.run(|| {
        if to.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }
    });
    soon(
        "connect",
        socket.expect("enter").expect("socket").connect(to),
    )
    .await
}

async fn ask(netns: &Netns, to: SocketAddr, text: &str) -> std::io::Result<String> {
    exchange(&mut connect_in(netns, to).await?, text).await
}

fn deny(name: &str, one: Match) -> Change {
    let groups = vec![Group {
        rules: vec![Rules { matches: vec![one] }],
    }];
    Change::Policy(Policy::new(
        PolicyName::new("shop", name),
        Scope::Namespace,
        Action::Deny,
        groups,
    ))
}

#[test]
fn services_and_pods_are_reached_through_the_tunnel_in_both_families() {
    run(async {
        let world = World::new().await;
        application(&world.server);
        for family in 0..2 {
            let client = ips(CLIENT)[family];
            let vip = SocketAddr::new(ips(VIPS)[family], SERVICE_PORT);
            let pod = SocketAddr::new(ips(SERVER)[family], APPLICATION_PORT);
            for to in [vip, pod] {
                let answer = ask(&world.client, to, "hello").await.expect("exchange");
                assert_eq!(
                    answer,
                    format!("[{client}]hello"),
                    "the client's own address, to {to}"
                );
            }
        }
        let labels = ["mutual_tls", "reporter=\"destination\"", "sa/client\""];
        world
            .far
            .wait_sum("istio_tcp_connections_closed_total", &labels, 4)
            .await;
        assert_eq!(
            world
                .far
                .sum("culvert_connections_without_client_address_total", &[]),
            0
        );
        assert_eq!(world.near.sum("istio_tcp_connections_failed_total", &[]), 0);
    });
}

#[test]
fn two_pods_of_a_node_and_a_pod_itself_are_joined_inside() {
    run(async {
        let world = World::new().await;
        application(&world.neighbour);
        for family in 0..2 {
            let to = SocketAddr::new(ips(NEIGHBOUR)[family], APPLICATION_PORT);
            let answer = ask(&world.client, to, "hello").await.expect("exchange");
            assert_eq!(answer, format!("[{}]hello", ips(CLIENT)[family]));
        }
        let labels = [
            "connection_security_policy=\"local\"",
            "reporter=\"destination\"",
        ];
        world
            .near
            .wait_sum("istio_tcp_connections_closed_total", &labels, 2)
            .await;
        // A pod that calls its own service.
        let behind = [("web", SERVICE_PORT, APPLICATION_PORT)];
        let mut neighbour = workload("neighbour", ips(NEIGHBOUR)[0], &behind);
        neighbour.addresses = ips(NEIGHBOUR);
        world.apply(vec![
            Change::RemoveAddress(uid("server").as_str().into()),
            Change::Workload(neighbour),
        ]);
        let vip = SocketAddr::new(ips(VIPS)[0], SERVICE_PORT);
        let answer = ask(&world.neighbour, vip, "me").await.expect("exchange");
        assert_eq!(answer, format!("[{}]me", ips(NEIGHBOUR)[0]));
    });
}

#[test]
fn plain_connections_come_with_their_address_or_not_at_all() {
    run(async {
        let world = World::new().await;
        application(&world.server);
        for family in 0..2 {
            let to = SocketAddr::new(ips(SERVER)[family], APPLICATION_PORT);
            let answer = ask(&world.stranger, to, "hello").await.expect("exchange");
            assert_eq!(answer, format!("[{}]hello", ips(STRANGER)[family]));
        }
        let plain = [
            "connection_security_policy=\"unknown\"",
            "reporter=\"destination\"",
        ];
        world
            .far
            .wait_sum("istio_tcp_connections_closed_total", &plain, 2)
            .await;
        let strict = Match {
            not_principals: vec![StringMatch::Presence],
            ..Match::default()
        };
        world.apply(vec![deny("strict", strict)]);
        let to = SocketAddr::new(ips(SERVER)[0], APPLICATION_PORT);
        let answer = ask(&world.stranger, to, "GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("answer");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let answer = ask(&world.client, to, "hello").await.expect("exchange");
        assert!(answer.ends_with("]hello"), "{answer}");
    });
}

#[test]
fn pods_reach_what_is_not_in_the_mesh_plainly() {
    run(async {
        let world = World::new().await;
        application(&world.stranger);
        for family in 0..2 {
            let to = SocketAddr::new(ips(STRANGER)[family], APPLICATION_PORT);
            let answer = ask(&world.client, to, "hello").await.expect("exchange");
            assert_eq!(answer, format!("[{}]hello", ips(CLIENT)[family]));
        }
        world
            .near
            .wait_sum("istio_tcp_connections_closed_total", &["\"unknown\""], 2)
            .await;
        // Nobody listens there: the client sees a reset, soon.
        let to = SocketAddr::new(ips(STRANGER)[0], 4444);
        let refused = ask(&world.client, to, "").await.expect_err("refused");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

/// Sends its answer only when the client has ended.
async fn serve_late(listener: std::net::TcpListener) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
    loop {
        let (mut stream, _) = listener.accept().await.expect("accept");
        tokio::task::spawn_local(async move {
            stream.write_all(b"!").await.expect("greet");
            let _ = stream.read_to_end(&mut Vec::new()).await;
            let _ = stream.write_all(b"too late").await;
        });
    }
}

/// A socket of the client that will connect from `port`, or from any for 0.
fn bound(netns: &Netns, port: u16, to: SocketAddr) -> std::io::Result<TcpSocket> {
    let (socket, any) = if to.is_ipv4() {
        (netns.run(TcpSocket::new_v4), "0.0.0.0")
    } else {
        (netns.run(TcpSocket::new_v6), "::")
    };
    let socket = socket.expect("enter")?;
    socket.bind(SocketAddr::new(any.parse().expect("address"), port))?;
    Ok(socket)
}

/// The kernel answers what comes for a program that is gone with a RST. It has to
/// find the proxy's socket, which would repeat its bytes for a quarter of an hour
/// else, and take no new connection from the same port.
#[test]
fn an_answer_to_a_client_that_is_gone_ends_its_connection() {
    run(async {
        let world = World::new().await;
        let servers = [
            (&world.server, SERVER),
            (&world.neighbour, NEIGHBOUR),
            (&world.stranger, STRANGER),
        ];
        for (netns, addresses) in servers {
            for ip in ips(addresses) {
                let to = SocketAddr::new(ip, 9000);
                tokio::task::spawn_local(serve_late(listen_in(netns, to)));
                let mut port = 0;
                for _ in 0..2 {
                    // Free once the kernel has given the connection before up.
                    let free = format!("port {port} for {to}");
                    let socket = wait(&free, || bound(&world.client, port, to).ok()).await;
                    let connected = soon("connect", socket.connect(to)).await;
                    let mut stream = connected.expect("connect");
                    port = stream.local_addr().expect("address").port();
                    soon("greeting", stream.read_u8()).await.expect("greeting");
                }
            }
        }
    });
}

#[test]
fn curl_talks_through_the_tunnel_and_is_told_why_not() {
    run(async {
        let world = World::new().await;
        let listener = listen_in(
            &world.server,
            SocketAddr::new("0.0.0.0".parse().expect("ip"), APPLICATION_PORT),
        );
        tokio::task::spawn_local(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
            loop {
                let (mut stream, _) = listener.accept().await.expect("accept");
                tokio::task::spawn_local(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\ncurled";
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        let curl = |netns: &Netns| {
            let netns = netns.clone();
            tokio::task::spawn_blocking(move || {
                let run = || {
                    Command::new("curl")
                        .args([
                            "-sS",
                            "-m",
                            "8",
                            "-w",
                            " %{http_code}",
                            "http://10.96.0.10/",
                        ])
                        .output()
                };
                netns.run(run).expect("enter").expect("curl is installed")
            })
        };
        let output = curl(&world.client).await.expect("thread");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "curled 200",
            "{output:?}"
        );
        let principal = "cluster.local/ns/shop/sa/client".into();
        let client = Match {
            principals: vec![StringMatch::Exact(principal)],
            ..Match::default()
        };
        world.apply(vec![deny("no-client", client)]);
        let output = curl(&world.client).await.expect("thread");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.starts_with("connection refused by policy (id "),
            "{text}"
        );
        assert!(text.ends_with(" 403"), "{text}");
    });
}

/// Connects with the keepalive idle time, and says after how much silence the
/// leg to the application at the other end is probed.
async fn far_keepalive(
    client: &Netns,
    (server, at): (&Netns, IpAddr),
    to: SocketAddr,
    idle: Option<u64>,
) -> Duration {
    let listener = listen_in(server, SocketAddr::new(at, APPLICATION_PORT));
    let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
    let socket = client.run(|| {
        if to.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }
    });
    let socket = socket.expect("enter").expect("socket");
    if let Some(seconds) = idle {
        let wanted = Keepalive {
            enabled: true,
            idle: Duration::from_secs(seconds),
            interval: Duration::from_secs(1),
            probes: 3,
        };
        set_keepalive(&socket, &wanted).expect("option");
    }
    let mut stream = soon("connect", socket.connect(to)).await.expect("connect");
    let (mut accepted, peer) = soon("accept", listener.accept()).await.expect("accept");
    // Bytes that have come back say that the leg is complete.
    stream.write_all(b"x").await.expect("write");
    soon("read", accepted.read_u8()).await.expect("read");
    accepted.write_all(b"y").await.expect("write");
    soon("read", stream.read_u8()).await.expect("read");
    let diag = server.run(SocketDiag::open).expect("enter").expect("diag");
    let local = accepted.local_addr().expect("address");
    // Until the last bytes are acknowledged, another timer is in its place.
    wait("the far leg has keepalive", || {
        diag.keepalive_in(peer, local).expect("answer")
    })
    .await
}

#[test]
fn the_far_leg_has_the_applications_keepalive() {
    run(async {
        let world = World::new().await;
        for family in 0..2 {
            let address = |ip: IpAddr| SocketAddr::new(ip, APPLICATION_PORT);
            let tunnelled = ips(SERVER)[family];
            let handed = ips(NEIGHBOUR)[family];
            let vip = SocketAddr::new(ips(VIPS)[family], SERVICE_PORT);
            for (server, to) in [
                ((&world.server, tunnelled), vip),
                ((&world.server, tunnelled), address(tunnelled)),
                ((&world.neighbour, handed), address(handed)),
            ] {
                for (idle, seconds) in [(None, 45), (Some(90), 45), (Some(7), 7)] {
                    let found = far_keepalive(&world.client, server, to, idle).await;
                    let range = Duration::from_secs(seconds - 4)..=Duration::from_secs(seconds);
                    assert!(range.contains(&found), "{to} {idle:?}: {found:?}");
                }
            }
        }
    });
}

/// The plain leg is in the client's own namespace: its socket is the proxy's,
/// known by the port that the stranger sees.
#[test]
fn a_plain_leg_has_the_applications_keepalive() {
    run(async {
        let world = World::new().await;
        let stranger = SocketAddr::new(ips(STRANGER)[0], APPLICATION_PORT);
        let listener = listen_in(&world.stranger, stranger);
        let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
        let diag = world.client.run(SocketDiag::open);
        let diag = diag.expect("enter").expect("diag");
        for (idle, seconds) in [(None, 45), (Some(90), 45), (Some(7), 7)] {
            let socket = world.client.run(TcpSocket::new_v4);
            let socket = socket.expect("enter").expect("socket");
            if let Some(seconds) = idle {
                let wanted = Keepalive {
                    enabled: true,
                    idle: Duration::from_secs(seconds),
                    interval: Duration::from_secs(1),
                    probes: 3,
                };
                set_keepalive(&socket, &wanted).expect("option");
            }
            let connected = soon("connect", socket.connect(stranger)).await;
            let mut stream = connected.expect("connect");
            let (mut accepted, peer) = soon("accept", listener.accept()).await.expect("accept");
            accepted.write_all(b"y").await.expect("write");
            soon("read", stream.read_u8()).await.expect("read");
            let found = wait("the plain leg has keepalive", || {
                diag.keepalive_in(peer, stranger).expect("answer")
            });
            let found = found.await;
            let range = Duration::from_secs(seconds - 4)..=Duration::from_secs(seconds);
            assert!(range.contains(&found), "{idle:?}: {found:?}");
        }
    });
}

#[test]
fn an_application_of_one_family_is_reached_by_both_addresses_of_its_service() {
    run(async {
        let world = World::new().await;
        let only_v4 = |netns: &Netns| {
            let any = SocketAddr::new("0.0.0.0".parse().expect("ip"), APPLICATION_PORT);
            tokio::task::spawn_local(serve_echo(listen_in(netns, any)));
        };
        let vip = SocketAddr::new(ips(VIPS)[1], SERVICE_PORT);
        // Nobody listens at all: one refusal.
        let refused = ask(&world.client, vip, "").await.expect_err("refused");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionReset);
        let failed = "istio_tcp_connections_failed_total";
        let of_source = ["reporter=\"source\""];
        assert_eq!(world.near.sum(failed, &of_source), 1);
        // A pod's address means that address.
        only_v4(&world.server);
        let pod = SocketAddr::new(ips(SERVER)[1], APPLICATION_PORT);
        let refused = ask(&world.client, pod, "").await.expect_err("refused");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(world.near.sum(failed, &of_source), 2);
        let answer = ask(&world.client, vip, "hello").await.expect("exchange");
        assert_eq!(answer, format!("[{}]hello", ips(CLIENT)[0]));
        assert_eq!(world.near.sum(failed, &of_source), 2);
        // The same on one node.
        only_v4(&world.neighbour);
        let behind = [("web", SERVICE_PORT, APPLICATION_PORT)];
        let mut neighbour = workload("neighbour", ips(NEIGHBOUR)[0], &behind);
        neighbour.addresses = ips(NEIGHBOUR);
        world.apply(vec![
            Change::RemoveAddress(uid("server").as_str().into()),
            Change::Workload(neighbour),
        ]);
        let answer = ask(&world.client, vip, "hello").await.expect("exchange");
        assert!(answer.ends_with("]hello"), "{answer}");
    });
}
