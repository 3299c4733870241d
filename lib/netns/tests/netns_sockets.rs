//! Sockets inside namespaces. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN: run as root.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use culvert_netns::{
    ConnectError, ConnectOptions, Family, Keepalive, ListenOptions, Netns, SocketDiag,
    abort_on_close, canonical, keepalive, listen_tcp, listen_udp, loopback_up, mark,
    original_destination, set_keepalive, set_user_timeout, tcp_socket, write_sysctl,
};

const ANY: ListenOptions = ListenOptions {
    family: Family::Dual,
    transparent: true,
    reuse_port: true,
    mark: Some(0x539),
    backlog: 4096,
};

fn fresh() -> Netns {
    let made = Netns::create().expect("these tests make network namespaces: run them as root");
    made.run(loopback_up).expect("enter").expect("loopback");
    made
}

fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    listener.set_nonblocking(false).expect("blocking");
    let (stream, peer) = listener.accept().expect("accept");
    (stream, canonical(peer))
}

#[test]
fn one_listener_takes_both_families() {
    fresh()
        .run(|| {
            let listener = listen_tcp(15001, &ANY).expect("listen");
            let targets = [
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ];
            for ip in targets {
                let client = TcpStream::connect((ip, 15001)).expect("connect");
                let (stream, peer) = accept(&listener);
                assert_eq!(peer, client.local_addr().expect("address"));
                assert_eq!(mark(&stream).expect("mark"), 0x539);
                assert!(stream.nodelay().expect("option"));
                assert_eq!(original_destination(&stream).expect("no error"), None);
            }
        })
        .expect("enter");
}

#[test]
fn ipv6_off_in_the_namespace_leaves_ipv4() {
    fresh()
        .run(|| {
            write_sysctl("net.ipv6.conf.all.disable_ipv6", "1").expect("setting");
            let listener = listen_tcp(15001, &ANY).expect("dual falls back");
            let _client = TcpStream::connect(("127.0.0.1", 15001)).expect("connect");
            accept(&listener);
            let family = Family::At(Ipv6Addr::LOCALHOST.into());
            let at = ListenOptions {
                family,
                transparent: false,
                ..ANY
            };
            assert!(
                listen_tcp(15053, &at)
                    .expect_err("no ::1 here")
                    .is_family_off()
            );
            assert!(
                listen_udp(15053, &at)
                    .expect_err("no ::1 here")
                    .is_family_off()
            );
        })
        .expect("enter");
}

#[test]
fn a_taken_port_is_an_error_and_a_shared_one_is_not() {
    fresh()
        .run(|| {
            let alone = ListenOptions {
                reuse_port: false,
                ..ANY
            };
            let first = listen_tcp(15008, &alone).expect("free");
            let error = listen_tcp(15008, &ANY).expect_err("taken");
            assert!(!error.is_family_off());
            drop(first);
            let _first = listen_tcp(15008, &ANY).expect("free");
            let _second = listen_tcp(15008, &ANY).expect("shared");
        })
        .expect("enter");
}

#[test]
fn the_peer_sees_the_source_that_was_asked_for() {
    let netns = fresh();
    let home = Netns::current().expect("own namespace");
    let listen = || {
        listen_tcp(
            8080,
            &ListenOptions {
                transparent: false,
                mark: None,
                ..ANY
            },
        )
    };
    let listener = netns
        .run_here(&home, listen)
        .expect("enter")
        .expect("listen");
    let source = IpAddr::V4(Ipv4Addr::new(127, 9, 9, 9));
    let destination = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
    let options = ConnectOptions {
        source: Some(source),
        mark: Some(0x77),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let stream = runtime.block_on(async {
        let socket = netns
            .run_here(&home, || tcp_socket(destination, &options))
            .expect("enter")
            .expect("socket");
        // Connected outside: the socket keeps its namespace.
        socket.connect(destination).await.expect("connect")
    });
    let (accepted, peer) = accept(&listener);
    assert_eq!(peer.ip(), source);
    assert_eq!(stream.local_addr().expect("address"), peer);
    assert_eq!(mark(&stream).expect("mark"), 0x77);
    drop(accepted);
}

#[test]
fn a_foreign_source_can_be_bound() {
    let foreign: [(IpAddr, SocketAddr); 2] = [
        (
            Ipv4Addr::new(10, 99, 0, 1).into(),
            (Ipv4Addr::LOCALHOST, 80).into(),
        ),
        (
            "fd00:99::1".parse().expect("address"),
            (Ipv6Addr::LOCALHOST, 80).into(),
        ),
    ];
    fresh()
        .run(|| {
            for (source, destination) in foreign {
                let options = ConnectOptions {
                    source: Some(source),
                    mark: None,
                };
                let socket = tcp_socket(destination, &options).expect("bind");
                assert_eq!(
                    socket.local_addr().expect("address"),
                    SocketAddr::new(source, 0)
                );
            }
            let mixed = ConnectOptions {
                source: Some(foreign[1].0),
                mark: None,
            };
            let error = tcp_socket(foreign[0].1, &mixed).expect_err("two families");
            assert!(matches!(error, ConnectError::Families { .. }));
        })
        .expect("enter");
}

#[test]
fn keepalive_is_read_as_it_was_set_and_an_abort_is_a_reset() {
    fresh()
        .run(|| {
            let listener = listen_tcp(80, &ANY).expect("listen");
            let mut client = TcpStream::connect(("127.0.0.1", 80)).expect("connect");
            let (mut server, _) = accept(&listener);
            assert!(!keepalive(&client).expect("read").enabled);
            let wanted = Keepalive {
                enabled: true,
                idle: Duration::from_secs(11),
                interval: Duration::from_secs(7),
                probes: 3,
            };
            set_keepalive(&client, &wanted).expect("set");
            assert_eq!(keepalive(&client).expect("read"), wanted);
            set_keepalive(
                &client,
                &Keepalive {
                    enabled: false,
                    ..wanted
                },
            )
            .expect("set");
            assert!(!keepalive(&client).expect("read").enabled);
            set_user_timeout(&client, Duration::from_secs(5)).expect("set");
            server.write_all(b"x").expect("write");
            client.read_exact(&mut [0]).expect("read");
            abort_on_close(&server).expect("set");
            drop(server);
            let error = client.read(&mut [0]).expect_err("a reset, not an end");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        })
        .expect("enter");
}

#[test]
fn the_keepalive_of_a_foreign_socket_is_known() {
    let idle = |seconds| Keepalive {
        enabled: true,
        idle: Duration::from_secs(seconds),
        interval: Duration::from_secs(3),
        probes: 2,
    };
    let elsewhere = fresh().run(SocketDiag::open).expect("enter").expect("diag");
    let netns = fresh();
    // Asked from another namespace's thread: the channel stays in its own.
    let diag = netns.run(SocketDiag::open).expect("enter").expect("diag");
    for ip in [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ] {
        let connect = || {
            let listener = TcpListener::bind((ip, 0)).expect("bind");
            let to = listener.local_addr().expect("address");
            let client = TcpStream::connect(to).expect("connect");
            (accept(&listener).0, client, to)
        };
        let (_server, client, to) = netns.run(connect).expect("enter");
        let from = client.local_addr().expect("address");
        let asked = |diag: &SocketDiag| diag.keepalive_in(from, to).expect("answer");
        assert_eq!(asked(&diag), None, "no keepalive");
        set_keepalive(&client, &idle(17)).expect("option");
        assert_eq!(asked(&elsewhere), None, "not of that namespace");
        let left = asked(&diag).expect("armed");
        assert!(left <= Duration::from_secs(17), "{left:?}");
        assert!(left > Duration::from_secs(10), "{left:?}");
        let nobody = SocketAddr::new(ip, 1);
        assert_eq!(diag.keepalive_in(from, nobody).expect("answer"), None);
        // The other end is a socket of its own.
        assert_eq!(diag.keepalive_in(to, from).expect("answer"), None);
    }
}
