//! Both ends of a tunnel over a duplex, with sockets that are duplexes too.

use super::*;
use crate::client::{self, Tunnel};
use crate::head::ConnectHead;
use crate::server::{self, Incoming};
use crate::settings::Settings;
use crate::windows::Windows;
use crate::{OpenError, TunnelError};
use http::StatusCode;
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

fn head() -> ConnectHead {
    ConnectHead {
        authority: "10.0.0.2:80".parse().unwrap(),
        baggage: None,
        forwarded: None,
        traceparent: None,
        keepalive: None,
    }
}

/// Runs a test body on one worker with paused time.
fn run<F: Future<Output = ()>>(body: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    LocalSet::new().block_on(&runtime.unwrap(), body);
}

struct Pair {
    tunnel: Tunnel,
    incoming: mpsc::Receiver<Incoming>,
    drain: Option<oneshot::Sender<()>>,
    client_end: tokio::task::JoinHandle<Result<(), TunnelError>>,
    server_end: tokio::task::JoinHandle<Result<(), TunnelError>>,
}

async fn pair_with(pipe: usize, budget: u64) -> Pair {
    let windows = Windows::new(budget);
    let (near, far) = duplex(pipe);
    let settings = Settings::client();
    let (tunnel, driver) = client::start(near, &settings, &windows).await.unwrap();
    let client_end = spawn_local(driver);
    let (deliver, incoming) = mpsc::channel(300);
    let (drain, mut drained) = oneshot::channel();
    let server_end = spawn_local(async move {
        let mut server = server::start(far, &Settings::server(), &windows).await?;
        let mut draining = false;
        loop {
            tokio::select! {
                _ = &mut drained, if !draining => {
                    draining = true;
                    server.drain();
                }
                next = server.next() => match next {
                    None => return Ok(()),
                    Some(Err(error)) => return Err(error),
                    Some(Ok(request)) => deliver.send(request).await.unwrap(),
                },
            }
        }
    });
    Pair {
        tunnel,
        incoming,
        drain: Some(drain),
        client_end,
        server_end,
    }
}

async fn pair() -> Pair {
    pair_with(64 * 1024, 512 << 20).await
}

impl Pair {
    /// A stream that both ends have accepted.
    async fn stream(&mut self) -> (TunnelStream, TunnelStream) {
        let lease = self.tunnel.lease();
        let head = head();
        let (opened, accepted) = tokio::join!(lease.connect(&head), async {
            self.incoming.recv().await.unwrap().accept(None).unwrap()
        });
        (opened.unwrap().0, accepted)
    }

    /// Two applications joined through the tunnel, and the relays' outcomes.
    async fn joined(&mut self, pipe: usize) -> Joined {
        let (source, destination) = self.stream().await;
        let (client, client_side) = duplex(pipe);
        let (server, server_side) = duplex(pipe);
        Joined {
            client,
            server,
            source: spawn_relay(client_side, source),
            destination: spawn_relay(server_side, destination),
        }
    }
}

type Outcome = tokio::task::JoinHandle<Result<(), RelayError>>;

struct Joined {
    client: DuplexStream,
    server: DuplexStream,
    source: Outcome,
    destination: Outcome,
}

fn spawn_relay<S: Socket + 'static>(mut socket: S, stream: TunnelStream) -> Outcome {
    spawn_local(async move { tunnel(&mut socket, stream, &()).await })
}

/// A socket whose reads fail once told to.
struct Failing {
    inner: DuplexStream,
    fail: oneshot::Receiver<()>,
    panic: bool,
}

impl AsyncRead for Failing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if Pin::new(&mut self.fail).poll(cx).is_ready() {
            assert!(!self.panic, "the relay panics");
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Failing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl Socket for Failing {
    fn pending_fault(&self) -> Option<io::Error> {
        None
    }
}

fn reset_reason(outcome: &Result<(), RelayError>) -> Option<h2::Reason> {
    match outcome {
        Err(RelayError::Reset(error)) => error.reason(),
        _ => None,
    }
}

#[test]
fn an_abort_reaches_the_far_side_as_connect_error_never_as_an_end() {
    for (panic, at_source) in [(false, true), (false, false), (true, true), (true, false)] {
        run(async move {
            let mut pair = pair().await;
            let (source, destination) = pair.stream().await;
            let (failing, other) = if at_source {
                (source, destination)
            } else {
                (destination, source)
            };
            let (_application, inner) = duplex(1024);
            let (mut peer, peer_side) = duplex(1024);
            let (tell, fail) = oneshot::channel();
            let aborted = spawn_relay(Failing { inner, fail, panic }, failing);
            let far = spawn_relay(peer_side, other);
            tell.send(()).unwrap();
            assert_eq!(aborted.await.is_err(), panic);
            let outcome = far.await.unwrap();
            assert_eq!(
                reset_reason(&outcome),
                Some(h2::Reason::CONNECT_ERROR),
                "{outcome:?}"
            );
            // The relay leaves the reset to its caller, who drops the socket.
            assert_eq!(peer.read(&mut [0; 8]).await.unwrap(), 0);
        });
    }
}

#[test]
fn a_dropped_stream_or_request_is_a_connect_error() {
    run(async {
        let mut pair = pair().await;
        let (source, destination) = pair.stream().await;
        let (_application, side) = duplex(1024);
        let relay = spawn_relay(side, destination);
        drop(source);
        assert_eq!(
            reset_reason(&relay.await.unwrap()),
            Some(h2::Reason::CONNECT_ERROR)
        );

        let lease = pair.tunnel.lease();
        let asking = spawn_local(async move { lease.connect(&head()).await.map(|_| ()) });
        let request = pair.incoming.recv().await.unwrap();
        drop(request);
        let Err(OpenError::Reset(error)) = asking.await.unwrap() else {
            panic!()
        };
        assert_eq!(error.reason(), Some(h2::Reason::CONNECT_ERROR));

        let lease = pair.tunnel.lease();
        let asking = spawn_local(async move { lease.connect(&head()).await.map(|_| ()) });
        let mut request = pair.incoming.recv().await.unwrap();
        asking.abort();
        std::future::poll_fn(|cx| request.poll_abandoned(cx)).await;
    });
}

#[test]
fn refusals_carry_status_and_reason() {
    run(async {
        let mut pair = pair().await;
        let lease = pair.tunnel.lease();
        let asking = spawn_local(async move { lease.connect(&head()).await.map(|_| ()) });
        let request = pair.incoming.recv().await.unwrap();
        assert_eq!(request.authority().unwrap().to_string(), "10.0.0.2:80");
        let reason = http::HeaderValue::from_static("policy; id=1");
        request.refuse(StatusCode::UNAUTHORIZED, Some(reason));
        let Err(OpenError::Refused { status, reason }) = asking.await.unwrap() else {
            panic!()
        };
        assert_eq!((status, reason.as_deref()), (401, Some("policy; id=1")));
        assert_eq!(pair.tunnel.streams(), 0);
        assert!(pair.tunnel.is_open());
    });
}

#[test]
fn each_direction_ends_on_its_own() {
    for client_first in [true, false] {
        run(async move {
            let mut pair = pair().await;
            let Joined {
                client,
                server,
                source,
                destination,
            } = pair.joined(1024).await;
            let (mut first, mut second) = if client_first {
                (client, server)
            } else {
                (server, client)
            };
            first.write_all(b"question").await.unwrap();
            first.shutdown().await.unwrap();
            let mut text = String::new();
            second.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "question");
            // The other direction still carries data after the half-close.
            second.write_all(b"answer").await.unwrap();
            second.shutdown().await.unwrap();
            let mut text = String::new();
            first.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "answer");
            source.await.unwrap().unwrap();
            destination.await.unwrap().unwrap();
            assert_eq!(pair.tunnel.streams(), 0);
        });
    }
}

#[test]
fn a_peer_that_dies_after_its_data_ended_is_noticed() {
    run(async {
        let mut pair = pair().await;
        let (source, mut destination) = pair.stream().await;
        let (_application, side) = duplex(1024);
        let relay = spawn_relay(side, source);
        destination.send.send_data(Bytes::new(), true).unwrap();
        tokio::task::yield_now().await;
        drop(destination);
        assert_eq!(
            reset_reason(&relay.await.unwrap()),
            Some(h2::Reason::CONNECT_ERROR)
        );
    });
}

#[test]
fn readers_that_stop_cost_their_own_streams_only() {
    run(async {
        // The smallest windows: the connection's window must still cover all.
        let mut pair = pair_with(64 * 1024, 0).await;
        let mut stalled = Vec::new();
        for _ in 0..99 {
            let mut joined = pair.joined(4096).await;
            let data = vec![1; 1 << 20];
            let (mut read, mut write) = tokio::io::split(joined.client);
            let writer = spawn_local(async move { write.write_all(&data).await });
            joined.client = duplex(1).0;
            stalled.push((
                joined.server,
                joined.source,
                joined.destination,
                writer,
                spawn_local(async move { read.read(&mut [0; 1]).await }),
            ));
        }
        let mut lively = pair.joined(4096).await;
        for _ in 0..200 {
            lively.client.write_all(&[7; 3000]).await.unwrap();
            let mut echo = [0; 3000];
            lively.server.read_exact(&mut echo).await.unwrap();
            lively.server.write_all(&echo).await.unwrap();
            lively.client.read_exact(&mut echo).await.unwrap();
        }
        assert!(stalled.iter().all(|s| !s.3.is_finished()));
    });
}

/// Bytes that a source can send to a reader that never reads.
async fn sent_unread(joined: &mut Joined) -> usize {
    let mut sent = 0;
    let stuffed = async {
        while let Ok(n) = joined.client.write(&[7; 16 * 1024]).await {
            sent += n;
        }
    };
    let quiet = tokio::time::timeout(Duration::from_secs(2), stuffed).await;
    assert!(quiet.is_err(), "the stream ended");
    sent
}

#[test]
fn windows_shrink_with_many_streams_and_widen_with_few() {
    const MIB: usize = 1 << 20;
    run(async {
        // Both ends count their streams here: one of each fits with the full window.
        let mut pair = pair_with(64 * 1024, 8 << 20).await;
        let mut alone = pair.joined(1024).await;
        assert!(sent_unread(&mut alone).await >= MIB);
        let mut many = Vec::new();
        for _ in 0..31 {
            many.push(pair.joined(1024).await);
        }
        let mut last = pair.joined(1024).await;
        // The smallest window, and what the source itself may hold.
        assert!(sent_unread(&mut last).await < MIB / 2);
        drop((alone, many, last));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut again = pair.joined(1024).await;
        again.client.write_all(b"wake").await.unwrap();
        again.server.read_exact(&mut [0; 4]).await.unwrap();
        assert!(sent_unread(&mut again).await >= MIB);
        assert!(pair.tunnel.is_open());
    });
}

#[test]
fn tiny_frames_to_a_stopped_reader_do_not_end_the_tunnel() {
    run(async {
        let mut pair = pair().await;
        let (mut source, destination) = pair.stream().await;
        let (mut reader, side) = duplex(16);
        let relay = spawn_relay(side, destination);
        // More frames than h2's own budget for small ones would bear.
        let frames = 200_000;
        for _ in 0..frames {
            source.send.reserve_capacity(1);
            let window = std::future::poll_fn(|cx| {
                let window = source.send.capacity();
                if window > 0 {
                    Poll::Ready(window)
                } else {
                    source.send.poll_capacity(cx).map(|n| n.unwrap().unwrap())
                }
            });
            assert!(window.await > 0);
            source
                .send
                .send_data(Bytes::from_static(b"x"), false)
                .unwrap();
            tokio::task::yield_now().await;
        }
        source.send.send_data(Bytes::new(), true).unwrap();
        let mut all = Vec::new();
        let (mut read, write) = tokio::io::split(reader);
        read.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), frames);
        reader = read.unsplit(write);
        drop(reader);
        source.recv_done = true;
        source.send_done = true;
        relay.await.unwrap().unwrap();
    });
}

#[test]
fn many_abandoned_requests_do_not_end_the_tunnel() {
    run(async {
        let mut pair = pair().await;
        for _ in 0..20 {
            let asking: Vec<_> = (0..50)
                .map(|_| {
                    let lease = pair.tunnel.lease();
                    spawn_local(async move { lease.connect(&head()).await.map(|_| ()) })
                })
                .collect();
            tokio::task::yield_now().await;
            for one in asking {
                one.abort();
            }
            tokio::task::yield_now().await;
        }
        let lease = pair.tunnel.lease();
        let asking = spawn_local(async move { lease.connect(&head()).await.map(|_| ()) });
        // Requests that were given up cannot be answered any more.
        let _accepted = loop {
            let request = pair.incoming.recv().await.unwrap();
            if let Ok(stream) = request.accept(None) {
                break stream;
            }
        };
        asking.await.unwrap().unwrap();
        assert!(pair.tunnel.is_open());
    });
}

#[test]
fn draining_lets_streams_finish_and_takes_no_new_ones() {
    run(async {
        let mut pair = pair().await;
        let mut joined = pair.joined(1024).await;
        pair.drain.take().unwrap().send(()).unwrap();
        // One exchange later the GOAWAY has arrived.
        for _ in 0..3 {
            joined.client.write_all(b"x").await.unwrap();
            joined.server.read_exact(&mut [0]).await.unwrap();
            joined.server.write_all(b"y").await.unwrap();
            joined.client.read_exact(&mut [0]).await.unwrap();
        }
        let refused = pair
            .tunnel
            .lease()
            .connect(&head())
            .await
            .map(|_| ())
            .unwrap_err();
        assert!(refused.is_retry_safe(), "{refused:?}");
        assert!(!pair.tunnel.is_open());
        joined.client.shutdown().await.unwrap();
        joined.server.shutdown().await.unwrap();
        joined.source.await.unwrap().unwrap();
        joined.destination.await.unwrap().unwrap();
        pair.server_end.await.unwrap().unwrap();
        let _ = pair.client_end.await.unwrap();
    });
}

#[test]
fn a_peer_that_stops_answering_is_dead_within_five_seconds() {
    run(async {
        let mut pair = pair().await;
        let (source, destination) = pair.stream().await;
        let (mut application, side) = duplex(1024);
        let relay = spawn_relay(side, source);
        // Nobody polls the server's end from here on.
        pair.server_end.abort();
        let frozen = pair.server_end.await;
        assert!(frozen.is_err());
        std::mem::forget(destination);
        let started = Instant::now();
        let _ = application.write_all(b"anyone?").await;
        let outcome = relay.await.unwrap();
        assert!(outcome.is_err());
        assert!(
            started.elapsed() <= Duration::from_secs(5),
            "{:?}",
            started.elapsed()
        );
        assert!(!pair.tunnel.is_open());
    });
}

/// A transport whose peer is reachable but silent.
#[test]
fn silence_while_streams_wait_ends_the_tunnel() {
    run(async {
        let (near, far) = duplex(1 << 20);
        let windows = Windows::new(1 << 20);
        let (tunnel, driver) = client::start(near, &Settings::client(), &windows)
            .await
            .unwrap();
        let driver = spawn_local(driver);
        let started = Instant::now();
        let opened = tunnel.lease().connect(&head()).await.map(|_| ());
        assert!(matches!(opened, Err(OpenError::Tunnel(_))), "{opened:?}");
        assert!(matches!(
            driver.await.unwrap(),
            Err(TunnelError::Unresponsive)
        ));
        assert!(
            started.elapsed() <= Duration::from_secs(5),
            "{:?}",
            started.elapsed()
        );
        drop(far);
    });
}

#[test]
fn idle_streams_are_no_sign_of_death_and_idle_tunnels_are_released() {
    run(async {
        let mut pair = pair().await;
        let mut joined = pair.joined(1024).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        joined.client.write_all(b"still").await.unwrap();
        joined.server.read_exact(&mut [0; 5]).await.unwrap();
        joined.client.shutdown().await.unwrap();
        joined.server.shutdown().await.unwrap();
        joined.source.await.unwrap().unwrap();
        let idle = Instant::now();
        pair.client_end.await.unwrap().unwrap();
        pair.server_end.await.unwrap().unwrap();
        assert!(idle.elapsed() <= Duration::from_secs(30));
        assert!(!pair.tunnel.is_open());
    });
}

#[test]
fn bytes_that_are_not_http2_are_an_error() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 64],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x09\x09",
    ] {
        run(async move {
            let (mut near, far) = duplex(1 << 16);
            near.write_all(bytes).await.unwrap();
            near.shutdown().await.unwrap();
            match server::start(far, &Settings::server(), &Windows::new(0)).await {
                Err(_) => {}
                Ok(mut server) => assert!(!matches!(server.next().await, Some(Ok(_)))),
            }
        });
    }
}

/// Counts what the meter is told.
#[derive(Default)]
struct Count(std::cell::Cell<usize>, std::cell::Cell<usize>);

impl Meter for Rc<Count> {
    fn sent(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
    }
    fn received(&self, bytes: usize) {
        self.1.set(self.1.get() + bytes);
    }
}

async fn exchange(up: Vec<Vec<u8>>, down: Vec<Vec<u8>>, pipes: (usize, usize)) {
    let mut pair = pair_with(pipes.0, 0).await;
    let (source, destination) = pair.stream().await;
    let (client, mut client_side) = duplex(pipes.1);
    let (server, server_side) = duplex(pipes.1);
    let count = Rc::new(Count::default());
    let counted = Rc::clone(&count);
    let near = spawn_local(async move { tunnel(&mut client_side, source, &counted).await });
    let far = spawn_relay(server_side, destination);
    let got = Rc::new(RefCell::new((Vec::new(), Vec::new())));
    let speak = |chunks: Vec<Vec<u8>>, stream: DuplexStream| async move {
        let (mut read, mut write) = tokio::io::split(stream);
        let mut heard = Vec::new();
        let (wrote, heard_all) = tokio::join!(
            async {
                for chunk in chunks {
                    write.write_all(&chunk).await?;
                }
                write.shutdown().await
            },
            read.read_to_end(&mut heard)
        );
        wrote.unwrap();
        heard_all.unwrap();
        heard
    };
    let (heard_down, heard_up) =
        tokio::join!(speak(up.clone(), client), speak(down.clone(), server));
    *got.borrow_mut() = (heard_up, heard_down);
    near.await.unwrap().unwrap();
    far.await.unwrap().unwrap();
    assert!(got.borrow().0 == up.concat());
    assert!(got.borrow().1 == down.concat());
    assert_eq!(count.0.get(), up.concat().len());
    assert_eq!(count.1.get(), down.concat().len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn bytes_cross_unchanged_in_both_directions(
        up in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40_000), 0..8),
        down in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40_000), 0..8),
        tunnel_pipe in 64usize..100_000, application_pipe in 1usize..100_000,
    ) {
        run(exchange(up, down, (tunnel_pipe, application_pipe)));
    }
}

#[test]
fn a_relay_between_sockets_carries_half_closes_and_reports_who_failed() {
    run(async {
        let (mut client, mut near) = duplex(64);
        let (mut server, mut far) = duplex(64);
        let relay = spawn_local(async move { between(&mut near, &mut far, &()).await });
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        server.write_all(b"pong").await.unwrap();
        server.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        relay.await.unwrap().unwrap();
        assert_eq!((text.as_str(), answer.as_str()), ("ping", "pong"));

        let (_client, inner) = duplex(64);
        let (_server, mut far) = duplex(64);
        let (tell, fail) = oneshot::channel();
        let mut near = Failing {
            inner,
            fail,
            panic: false,
        };
        let relay = spawn_local(async move { between(&mut near, &mut far, &()).await });
        tell.send(()).unwrap();
        assert!(matches!(relay.await.unwrap(), Err(DirectError::Near(_))));
    });
}
