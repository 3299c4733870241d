//! `culvert dns`: the DNS server of the one-machine cluster. It answers for
//! `cluster.local` from the engine's objects and sends everything else to the name
//! servers outside, if there is a way out.

mod objects;
mod server;
mod zone;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use culvert_runtime::{Drain, LogFormat, Readiness, Tasks, init_logging};
use tokio::sync::watch;

/// How `culvert dns` is started.
#[derive(Debug, Clone)]
pub(crate) struct DnsOptions {
    /// Directory of objects.
    pub objects: PathBuf,
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// Where to say whether it is ready.
    pub ready: SocketAddr,
    /// Name servers outside.
    pub forward: Vec<SocketAddr>,
}

/// Serves until it is told to stop.
pub(crate) async fn run(options: DnsOptions) -> Result<()> {
    let _log = init_logging(LogFormat::Text, "info");
    let zone = watch::Sender::new(objects::zone(&options.objects));
    let drain = Drain::new(std::time::Duration::from_secs(1));
    let readiness = Readiness::new();
    let mut tasks = Tasks::new();
    tasks.critical("signals", drain.clone().on_signals());
    let (watch, all) = (drain.watch(), drain.clone());
    tasks.critical("stop", async move {
        // A query is one datagram: there is no work to finish.
        let _ = watch.started().await;
        all.stop("nothing to finish");
    });
    for address in &options.listen {
        let server = server::Server {
            zone: zone.subscribe(),
            forward: options.forward.clone(),
        };
        let udp = tokio::net::UdpSocket::bind(address)
            .await
            .with_context(|| format!("UDP {address}"))?;
        let tcp = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("TCP {address}"))?;
        tasks.critical(format!("udp {address}"), server.clone().serve_udp(udp));
        tasks.critical(format!("tcp {address}"), server.serve_tcp(tcp));
    }
    let listener = tokio::net::TcpListener::bind(options.ready)
        .await
        .context("readiness port")?;
    let answer = readiness.clone();
    let router = axum::Router::new().route(
        "/healthz/ready",
        axum::routing::get(move || {
            let ready = answer.is_ready();
            async move {
                if ready {
                    (http::StatusCode::OK, "ready")
                } else {
                    (http::StatusCode::SERVICE_UNAVAILABLE, "starting")
                }
            }
        }),
    );
    tasks.critical("ready", async move { axum::serve(listener, router).await });
    tasks.critical("objects", objects::follow(options.objects, zone));
    tasks.wait(&drain).await?;
    Ok(())
}
