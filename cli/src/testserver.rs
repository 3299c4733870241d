//! `culvert testserver`: a small server for examples and tests, at hand wherever
//! `culvert` is. Over HTTP it tells who asked and who answered; over TCP and UDP it
//! sends back what it gets.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{ConnectInfo, Query, Request, State};
use culvert_runtime::{ConnectionTracker, Drain, Tasks};
use http::StatusCode;
use serde::Deserialize;
use tokio::net::{TcpListener, UdpSocket};

use crate::args::Testserver;

/// Connections at a time; a test that needs more has another server.
const OPEN_MAX: usize = 10_000;
/// Time for open requests after SIGTERM.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs until it is told to stop.
pub(crate) async fn run(args: Testserver) -> Result<()> {
    let hostname = nix::unistd::gethostname()
        .context("host name")?
        .to_string_lossy()
        .into_owned();
    let drain = Drain::new(DRAIN);
    let mut tasks = Tasks::new();
    tasks.critical("signals", drain.clone().on_signals());
    let listener = listen(args.http).await?;
    let watch = drain.watch();
    let service = Router::new()
        .fallback(answer)
        .with_state((args.text, hostname))
        .into_make_service_with_connect_info::<SocketAddr>();
    let all = drain.clone();
    tasks.critical("http", async move {
        let stop = async move {
            let _ = watch.started().await;
        };
        let served = axum::serve(listener, service)
            .with_graceful_shutdown(stop)
            .await;
        // No request is open any more.
        all.stop("drained");
        served
    });
    if let Some(port) = args.tcp {
        tasks.critical("tcp", echo_tcp(listen(port).await?));
    }
    if let Some(port) = args.udp {
        let socket = UdpSocket::bind(any(port)).await;
        let socket = match socket {
            Ok(socket) => socket,
            Err(_) => UdpSocket::bind(("0.0.0.0", port))
                .await
                .with_context(|| format!("UDP port {port}"))?,
        };
        tasks.critical("udp", echo_udp(socket));
    }
    println!("listening on {}", args.http);
    tasks.wait(&drain).await?;
    Ok(())
}

fn any(port: u16) -> SocketAddr {
    (Ipv6Addr::UNSPECIFIED, port).into()
}

/// Listens for both families, or for IPv4 alone where IPv6 is off.
async fn listen(port: u16) -> Result<TcpListener> {
    match TcpListener::bind(any(port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(("0.0.0.0", port))
            .await
            .with_context(|| format!("port {port}")),
    }
}

/// Wishes in the query.
#[derive(Debug, Deserialize)]
struct Wish {
    /// Status to answer with.
    status: Option<u16>,
    /// Milliseconds to wait first.
    delay: Option<u64>,
    /// Bytes to add to the body.
    bytes: Option<usize>,
}

async fn answer(
    State((text, hostname)): State<(String, String)>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    Query(wish): Query<Wish>,
    request: Request,
) -> (StatusCode, String) {
    if let Some(delay) = wish.delay {
        tokio::time::sleep(Duration::from_millis(delay.min(60_000))).await;
    }
    let ip = client.ip().to_canonical();
    let (method, path) = (request.method(), request.uri().path());
    let host = request
        .headers()
        .get("host")
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let mut body = format!(
        "{text}\nserver: {hostname}\nclient: {ip}\nrequest: {method} {path}\nhost: {host}\n"
    );
    body.push_str(&"x".repeat(wish.bytes.unwrap_or(0).min(64 << 20)));
    let status = wish.status.and_then(|code| StatusCode::from_u16(code).ok());
    (status.unwrap_or(StatusCode::OK), body)
}

async fn echo_tcp(listener: TcpListener) -> std::io::Result<()> {
    let tracker = ConnectionTracker::new(OPEN_MAX);
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Full: the connection is closed, which the client sees.
        let _ = tracker.spawn(async move {
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        });
    }
}

async fn echo_udp(socket: UdpSocket) -> std::io::Result<()> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..length], from).await;
        }
    }
}
