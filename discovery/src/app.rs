//! Puts the program together.

use std::sync::Arc;

use anyhow::Context as _;
use culvert_runtime::{Clock, Process, SystemClock};
use culvert_token::JwksReviewer;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};

use crate::{
    admin::{self, Pages},
    config::Config,
    engine::{BATCHES_MAX, Engine, Overview},
    metrics::DiscoveryMetrics,
    publish::ViewPublisher,
    serve::{
        Server, authenticate::TokenAuthenticator, ca_client::CaClient,
        certificate::CertificateKeeper,
    },
    status::StatusWriter,
    watch::{Source, directory::DirectorySource},
};

/// Runs the program until it is told to stop.
///
/// # Errors
/// When it cannot start, or a critical task fails.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let process = Process::start("discovery", env!("CARGO_PKG_VERSION"), &config.process)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    serve(process, config, listener).await
}

/// Runs the program on a listener that is open already.
///
/// # Errors
/// As [`run`].
pub async fn serve(
    mut process: Process,
    config: Config,
    listener: TcpListener,
) -> anyhow::Result<()> {
    let metrics = DiscoveryMetrics::new(&process.metrics);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let publisher = Arc::new(ViewPublisher::new(
        config.node_accounts.clone(),
        metrics.clone(),
    ));
    let (overview, overviews) = watch::channel(Arc::new(Overview::default()));
    let (tls, serving) = watch::channel(None);
    let keeper = CertificateKeeper {
        ca: CaClient::new(config.ca.clone())?,
        server: tls,
        clock: clock.clone(),
        ready: process.readiness.condition("certificate"),
        metrics: metrics.clone(),
    };
    let engine = Engine {
        settings: config.settings.clone(),
        publisher: publisher.clone(),
        statuses: config
            .status_directory
            .clone()
            .map(|dir| StatusWriter::new(dir, metrics.clone())),
        clock,
        ready: process.readiness.condition("objects"),
        metrics: metrics.clone(),
        overview,
    };
    let reviewer = Arc::new(JwksReviewer::from_file(&config.jwks_file));
    let authenticator = TokenAuthenticator::new(reviewer, metrics.clone());
    let server = Server::new(authenticator, publisher.clone(), serving, metrics);
    let pages = Pages {
        publisher,
        overview: overviews,
    };
    process
        .serve_admin(
            &config.process,
            config.effective.clone(),
            admin::routes(pages),
        )
        .await?;
    tracing::info!(address = %listener.local_addr()?, "serving discovery");

    let watch = process.drain.watch();
    let (batches, received) = mpsc::channel(BATCHES_MAX);
    let source = DirectorySource::new(config.directories.clone());
    let ends = watch.clone();
    // Reading files and compiling block: each has a thread of its own.
    process.tasks.worker("source", move || async move {
        tokio::select! {
            () = source.run(batches) => {}
            _ = ends.started() => {}
        }
    })?;
    let ends = watch.clone();
    process
        .tasks
        .worker("engine", move || engine.run(received, ends))?;
    process
        .tasks
        .critical("certificate", keeper.run(watch.clone()));
    let drain = process.drain.clone();
    process.tasks.critical("serve", async move {
        server.run(listener, watch).await;
        // Nothing else is worth waiting for.
        drain.stop("all streams have ended");
    });
    Ok(process.wait().await?)
}
