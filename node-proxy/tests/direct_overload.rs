//! A node proxy that has no room left refuses at once, says so in a metric, and
//! goes on. The limits are those of the process: one test at a time. Run as root.

#[path = "support/mesh.rs"]
mod mesh;
#[path = "support/pair.rs"]
mod pair;

use std::fs::File;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use mesh::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pair::Pair;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};

static ALONE: Mutex<()> = Mutex::new(());

fn run_alone<F: Future<Output = ()>>(body: F) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run(body);
}

/// The first byte, or how the connection ended.
async fn first_byte(stream: &mut TcpStream) -> Result<u8, ErrorKind> {
    soon("byte or end", stream.read_u8())
        .await
        .map_err(|error| error.kind())
}

fn client(pair: &Pair) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("socket");
    let own = SocketAddr::new(ip(pair.net, 1), 0);
    socket.bind(own).expect("bind");
    socket
}

/// A refusal may come before the client knows that it was connected.
async fn end_of(socket: TcpSocket, to: SocketAddr) -> Result<u8, ErrorKind> {
    match soon("connect", socket.connect(to)).await {
        Ok(mut stream) => first_byte(&mut stream).await,
        Err(error) => Err(error.kind()),
    }
}

#[test]
fn connections_beyond_the_cap_are_refused_and_room_is_given_back() {
    run_alone(async {
        // Nearly no files: the least that a worker takes.
        const CAP: u64 = 64;
        let pair = Pair::new(0).await;
        pair.serve("server", 2, TUNNEL_PORT).await;
        let family = "culvert_connections_shed_total";
        let shed = || pair.near.sum(family, &["\"connections\""]);
        let mut held = Vec::new();
        for _ in 0..CAP {
            let mut stream = pair.dial().await;
            assert_eq!(first_byte(&mut stream).await, Ok(b'['));
            held.push(stream);
        }
        assert_eq!(shed(), 0);
        for refused in 1..=3 {
            let end = end_of(client(&pair), pair.vip()).await;
            assert_eq!(end, Err(ErrorKind::ConnectionReset));
            assert_eq!(shed(), refused);
        }
        // Those who are in are served on.
        for mut stream in held.drain(..32) {
            let answer = exchange(&mut stream, "still").await.expect("exchange");
            assert!(answer.ends_with("]still"), "{answer}");
        }
        let closed = "istio_tcp_connections_closed_total";
        pair.near.wait_sum(closed, &[], 32).await;
        let mut stream = pair.dial().await;
        let answer = exchange(&mut stream, "again").await.expect("exchange");
        assert!(answer.ends_with("]again"), "{answer}");
        assert_eq!(shed(), 3);
    });
}

/// Takes every descriptor that the process has left.
fn exhaust() -> Vec<File> {
    let mut taken = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(24), "EMFILE: {error}");
                return taken;
            }
        }
    }
}

/// Open files of the process, together with the one that counting takes.
fn open_files() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    u64::try_from(entries.count()).ok()
}

#[test]
fn without_descriptors_clients_are_refused_and_not_left_waiting() {
    run_alone(async {
        let pair = Pair::new(2048).await;
        pair.serve("server", 2, TUNNEL_PORT).await;
        let mut before = pair.dial().await;
        assert_eq!(first_byte(&mut before).await, Ok(b'['));
        let sockets: Vec<_> = (0..5).map(|_| client(&pair)).collect();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limit");
        // Few are open now: this many are soon taken.
        let limit = 512.min(soft);
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("limit");
        let mut taken = exhaust();
        let mut ends = Vec::new();
        for socket in sockets {
            ends.push(end_of(socket, pair.vip()).await);
            // The client's own descriptor is free again, and the worker has
            // taken back the one that it gave up for the refusal.
            wait("only one descriptor is free", || {
                (open_files() == Some(limit)).then_some(())
            })
            .await;
            taken.extend(exhaust());
        }
        let family = "culvert_connections_shed_total";
        let shed = pair.near.sum(family, &["\"descriptors\""]);
        drop(taken);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("limit");
        assert_eq!(ends, [Err(ErrorKind::ConnectionReset); 5]);
        assert_eq!(shed, 5);
        // The connection from before lives, and new ones are taken.
        let answer = exchange(&mut before, "still").await.expect("exchange");
        assert!(answer.ends_with("]still"), "{answer}");
        let mut stream = pair.dial().await;
        let answer = exchange(&mut stream, "again").await.expect("exchange");
        assert!(answer.ends_with("]again"), "{answer}");
    });
}
