//! Endpoints that do not answer: swallowed connects and frozen processes. Run as
//! root.

#[path = "support/mesh.rs"]
mod mesh;
#[path = "support/pair.rs"]
mod pair;

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use mesh::*;
use pair::Pair;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// A dead peer is out of use within this time.
const OUT_OF_USE: Duration = Duration::from_secs(10);

/// An address whose SYNs are dropped: its backlog is full.
fn blackhole(at: SocketAddr) -> (Socket, std::net::TcpStream) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    socket.set_reuse_address(true).expect("reuse");
    socket.bind(&at.into()).expect("bind");
    socket.listen(0).expect("listen");
    let first = std::net::TcpStream::connect(at).expect("the one place");
    (socket, first)
}

#[test]
fn an_endpoint_that_swallows_connects_looks_like_a_network_policy() {
    run(async {
        let pair = Pair::new(2048).await;
        let _swallowed = blackhole(SocketAddr::new(ip(pair.net, 3), TUNNEL_PORT));
        pair.announce("dead", 3);
        let mut stream = pair.dial().await;
        let answer = exchange(&mut stream, "GET / HTTP/1.1\r\n\r\n").await;
        let answer = answer.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        let labels = ["response_flags=\"NETWORK_POLICY\"", "reporter=\"source\""];
        let failed = "istio_tcp_connections_failed_total";
        assert_eq!(pair.near.sum(failed, &labels), 1);
        let line = pair.near.log.wait_for("NETWORK_POLICY").await;
        assert!(line.contains("no answer from"), "{line}");
        assert!(pair.near.sum("culvert_endpoint_ejections_total", &[]) >= 1);
        // Whoever answers gets what comes next, and nobody waits for the dead one.
        pair.serve("server", 2, TUNNEL_PORT).await;
        let since = Instant::now();
        for _ in 0..5 {
            let answer = exchange(&mut pair.dial().await, "hello").await;
            assert!(answer.expect("exchange").ends_with("]hello"));
        }
        let took = since.elapsed();
        assert!(took < Duration::from_millis(1500), "{took:?}");
        assert_eq!(pair.near.sum(failed, &[]), 1);
    });
}

/// Passes on what arrives at `at` to `to` until it freezes: then its sockets stay
/// open and nothing moves any more, as with a stopped process.
fn freezable(at: SocketAddr, to: SocketAddr) -> watch::Sender<bool> {
    let (freeze, frozen) = watch::channel(false);
    let listener = listen(at);
    tokio::task::spawn_local(async move {
        let listener = TcpListener::from_std(listener).expect("listener");
        loop {
            let (mut near, _) = listener.accept().await.expect("accept");
            let mut frozen = frozen.clone();
            tokio::task::spawn_local(async move {
                let mut far = TcpStream::connect(to).await.expect("connect");
                tokio::select! {
                    biased;
                    _ = frozen.wait_for(|is_frozen| *is_frozen) => pending::<()>().await,
                    _ = copy_bidirectional(&mut near, &mut far) => {}
                }
            });
        }
    });
    freeze
}

#[test]
fn a_frozen_peer_is_out_of_use_within_ten_seconds() {
    run(async {
        let pair = Pair::new(2048).await;
        let at = |port| SocketAddr::new(ip(pair.net, 3), port);
        let freeze = freezable(at(TUNNEL_PORT), at(16008));
        pair.serve("frozen", 3, 16008).await;
        let mut held = pair.dial().await;
        assert_eq!(soon("greeting", held.read_u8()).await.expect("byte"), b'[');
        pair.serve("server", 2, TUNNEL_PORT).await;
        freeze.send(true).expect("the relay lives");
        let since = Instant::now();
        held.write_all(b"anybody?").await.expect("write");
        let mut rest = Vec::new();
        let end = tokio::time::timeout(OUT_OF_USE, held.read_to_end(&mut rest)).await;
        let end = end.expect("told in time").expect_err("no end of data");
        assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
        pair.near
            .wait_sum("culvert_endpoint_ejections_total", &[], 1)
            .await;
        for _ in 0..5 {
            let answer = exchange(&mut pair.dial().await, "hello").await;
            assert!(answer.expect("exchange").ends_with("]hello"));
        }
        let took = since.elapsed();
        assert!(took < OUT_OF_USE, "{took:?}");
        let to_frozen = ["destination_workload=\"frozen\"", "reporter=\"source\""];
        assert_eq!(
            pair.near
                .sum("istio_tcp_connections_opened_total", &to_frozen),
            1
        );
    });
}
