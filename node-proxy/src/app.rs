//! The whole process, in order: state, certificates, workers, names, pods, admin.
//!
//! Everything here runs on one single-threaded runtime; traffic has threads of its own.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use culvert_runtime::{
    BoundAddresses, Clock, ConditionHandle, DrainWatch, Process, SystemClock, raise_file_limit,
};
use culvert_tls::ControlPlaneClient;
use tokio::sync::watch;

use crate::access_log::AccessLog;
use crate::admin::{Dump, routes};
use crate::certs::{CaClient, CaConfig, CertificateMetrics, Certificates, follow_roots};
use crate::channel::channel;
use crate::config::{CertificateSource, Config, ControlPlane, PodSource, StateSource};
use crate::dns::{Dns, DnsConfig, DnsMetrics};
use crate::fixed;
use crate::pods::client::{AgentClient, Host};
use crate::pods::keeper::Keeper;
use crate::pods::{NodeConfig, NodeHost, PodMetrics, PodView};
use crate::state::{Discovery, DiscoveryConfig, State};
use crate::token::TokenFile;
use crate::traffic::TrafficMetrics;
use crate::workers::{Workers, WorkersConfig, WorkersParts};

/// Series of deleted workloads are dropped this often: a scraper has seen their last
/// values by then.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// A node proxy whose ports are open.
#[derive(Debug)]
pub struct App {
    process: Process,
    /// Where the admin, metrics and readiness ports are.
    pub addresses: BoundAddresses,
    /// The mesh as this node sees it.
    pub state: State,
    /// The certificates of its pods.
    pub certificates: Certificates,
}

impl App {
    /// Runs until the process is asked to end and has drained.
    ///
    /// # Errors
    /// When a part that the process cannot do without has ended.
    pub async fn run(self) -> anyhow::Result<()> {
        Ok(self.process.wait().await?)
    }
}

/// Builds the process: every port is open and every task started when this returns.
/// Must run inside a tokio runtime.
///
/// # Errors
/// When a port cannot be opened or a file of the configuration cannot be used.
pub async fn build(config: Config, effective: serde_json::Value) -> anyhow::Result<App> {
    let mut process = Process::start("node-proxy", env!("CARGO_PKG_VERSION"), &config.process)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let state = state(&config, &mut process)?;
    let certificates = certificates(&config, &mut process, &clock)?;
    let workers = workers(&config, &mut process, &state, &certificates, &clock)?;
    let host = host(&config, &mut process, &state, &certificates, &workers)?;
    let pods = pods(&config, &mut process, host).await?;
    let dump = Dump {
        version: env!("CARGO_PKG_VERSION"),
        config: effective.clone(),
        state: state.clone(),
        certificates: certificates.clone(),
        pods,
        workers,
        clock,
    };
    let addresses = process
        .serve_admin(&config.process, effective, routes(dump))
        .await?;
    Ok(App {
        process,
        addresses,
        state,
        certificates,
    })
}

fn state(config: &Config, process: &mut Process) -> anyhow::Result<State> {
    let state = State::new(&config.network);
    let condition = process.readiness.condition("state");
    match &config.state {
        StateSource::File(path) => {
            state.apply(fixed::state(path, &config.trust_domain)?);
            condition.set_ready();
        }
        StateSource::Discovery(server) => {
            let discovery = DiscoveryConfig {
                node: config.node.clone(),
                cluster_id: config.process.cluster_id.clone(),
                network: config.network.clone(),
                token: TokenFile::new(&server.token_file),
            };
            let channel = control_plane(server).context("discovery")?;
            let metrics = &process.metrics;
            let client = Discovery::new(discovery, channel, state.clone(), condition, metrics);
            process
                .tasks
                .critical("discovery", client.run(process.drain.watch()));
        }
    }
    Ok(state)
}

fn certificates(
    config: &Config,
    process: &mut Process,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Certificates> {
    let certificates = match &config.certificates {
        CertificateSource::Directory(directory) => {
            let store = fixed::certificates(directory, &config.trust_domain)?;
            Certificates::fixed(Arc::new(store), Arc::clone(clock))
        }
        CertificateSource::Ca(server) => {
            let ca = CaConfig {
                address: server.address.clone(),
                token_file: server.token_file.clone(),
                cluster_id: config.process.cluster_id.clone(),
                // The CA's operator decides.
                lifetime: None,
            };
            let client = CaClient::new(ca, control_plane(server).context("CA")?);
            let counters = CertificateMetrics::register(&process.metrics);
            let (certificates, task) = Certificates::issued(client, Arc::clone(clock), counters);
            process
                .tasks
                .critical("certificates", task.run(process.drain.watch()));
            let store = Arc::clone(certificates.store());
            let follow = follow_roots(server.root_file.clone(), store, process.drain.watch());
            process.tasks.critical("roots", follow);
            certificates
        }
    };
    CertificateMetrics::register_expiry(&process.metrics, Arc::clone(certificates.store()));
    Ok(certificates)
}

fn control_plane(server: &ControlPlane) -> anyhow::Result<tonic::transport::Channel> {
    let tls = ControlPlaneClient::from_file(&server.root_file, &server.server_name)?;
    Ok(channel(&server.address, Arc::new(tls))?)
}

fn workers(
    config: &Config,
    process: &mut Process,
    state: &State,
    certificates: &Certificates,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Arc<Workers>> {
    let access_log = access_log(config)?;
    access_log.register(&process.metrics);
    let traffic = TrafficMetrics::register(&process.metrics);
    let parts = WorkersParts {
        state: state.clone(),
        certificates: certificates.clone(),
        traffic: traffic.clone(),
        access_log,
        clock: Arc::clone(clock),
    };
    let descriptors = raise_file_limit()
        .context("cannot read the limit of open files")?
        .now;
    let settings = WorkersConfig::new(config.workers.get(), descriptors);
    let workers = Arc::new(Workers::start(settings, parts)?);
    process.tasks.critical(
        "workers",
        supervise(Arc::clone(&workers), process.drain.clone()),
    );
    process.tasks.critical(
        "series",
        sweep(traffic, state.clone(), process.drain.watch()),
    );
    Ok(workers)
}

/// Ends with the workers; drains them when the process drains, and stops the process
/// as soon as that is done.
async fn supervise(
    workers: Arc<Workers>,
    drain: culvert_runtime::Drain,
) -> Result<(), crate::workers::WorkerEnded> {
    let watch = drain.watch();
    let deadline = tokio::select! {
        ended = workers.ended() => return ended,
        deadline = watch.started() => deadline,
    };
    let closed = workers.drain(deadline).await;
    if closed > 0 {
        tracing::warn!(
            closed,
            "connections had to be closed at the end of the drain"
        );
    }
    drain.stop("every connection has ended");
    Ok(())
}

async fn sweep(traffic: TrafficMetrics, state: State, drain: DrainWatch) {
    loop {
        tokio::select! {
            () = drain.stopped() => return,
            () = tokio::time::sleep(SWEEP_INTERVAL) => traffic.sweep(&state.snapshot()),
        }
    }
}

fn access_log(config: &Config) -> anyhow::Result<AccessLog> {
    let target: Box<dyn Write + Send> = match &config.access_log_file {
        None => Box::new(std::io::stdout()),
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Box::new(file.with_context(|| format!("cannot open {}", path.display()))?)
        }
    };
    AccessLog::start(config.access_log, target).context("cannot start the access log")
}

fn host(
    config: &Config,
    process: &mut Process,
    state: &State,
    certificates: &Certificates,
    workers: &Arc<Workers>,
) -> anyhow::Result<Arc<NodeHost<Arc<Workers>>>> {
    let node = NodeConfig {
        trust_domain: config.trust_domain.clone(),
        cluster_id: config.process.cluster_id.clone(),
    };
    let dns = match &config.dns {
        None => None,
        Some(resolv_conf) => {
            let domain = config
                .process
                .cluster_domain
                .trim_matches('.')
                .to_ascii_lowercase();
            let settings = DnsConfig {
                domain: domain.into(),
                resolv_conf: resolv_conf.clone(),
            };
            let metrics = DnsMetrics::register(&process.metrics);
            let (dns, thread) = Dns::new(settings, state.clone(), metrics)?;
            let watch = process.drain.watch();
            process.tasks.worker("dns", move || thread.run(watch))?;
            Some(dns)
        }
    };
    let keeper = match &config.pods {
        PodSource::Agent { keeper, .. } => keeper.clone().map(Keeper::new),
        PodSource::File(_) => None,
    };
    let host = NodeHost::new(node, Arc::clone(workers), certificates.clone());
    Ok(Arc::new(host.with_dns(dns).with_keeper(keeper)))
}

async fn pods<H: Host>(
    config: &Config,
    process: &mut Process,
    host: Arc<H>,
) -> anyhow::Result<watch::Receiver<Arc<[PodView]>>> {
    let condition: ConditionHandle = process.readiness.condition("pods");
    match &config.pods {
        PodSource::Agent { zds, .. } => {
            let metrics = PodMetrics::register(&process.metrics);
            let client = AgentClient::new(zds.clone(), host, condition, metrics);
            let view = client.view();
            process
                .tasks
                .critical("pods", client.run(process.drain.watch()));
            Ok(view)
        }
        PodSource::File(path) => {
            let mut views = Vec::new();
            for pod in fixed::pods(path)? {
                let view = PodView::of_fixed(&pod);
                let name = pod.info.display();
                host.start(pod)
                    .await
                    .map_err(|error| anyhow::anyhow!("pod {name}: {error}"))?;
                views.push(view);
            }
            condition.set_ready();
            // Nothing will change it: readers need only the last value.
            Ok(watch::Sender::new(Arc::from(views)).subscribe())
        }
    }
}
