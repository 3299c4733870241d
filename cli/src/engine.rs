//! The one-machine engine behind `culvert up`: a small API server, scheduler,
//! controller manager and kubelet in one background process.
//!
//! ```text
//! directory → source → world ⇄ controllers, scheduler
//!                        ├→ objects/ → discovery, CA, CNI agents, DNS
//!                        ├→ kubelet → namespaces, CNI plugin, containers, probes → world
//!                        └→ service maps of every node
//! ```

pub(crate) mod api;
pub(crate) mod components;
pub(crate) mod controllers;
pub(crate) mod defaults;
pub(crate) mod enrollment;
pub(crate) mod kubelet;
pub(crate) mod network;
pub(crate) mod object;
pub(crate) mod scheduler;
pub(crate) mod selector;
pub mod settings;
pub(crate) mod source;
pub(crate) mod summary;
pub(crate) mod world;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use culvert_netns::Netns;
use culvert_runtime::{Drain, LogFormat, Tasks, init_logging};
use tokio::sync::watch;

use components::plan::{self, Inputs};
use components::supervisor::Supervisor;
use components::{Statuses, tokens::Tokens};
use kubelet::images::Images;
use kubelet::{Context, NodeNet, heartbeat};
use network::addresses::Names;
use network::{egress, services, topology};
use settings::{Settings, cluster_families};
use source::Source;
use world::{Action, Store};

use crate::state::{ProcessId, StateDir};

/// Time for tasks to end after SIGTERM: `down` ends the pods, not the engine.
const STOP_DEADLINE: Duration = Duration::from_millis(200);

/// Runs the engine until it is told to stop.
pub(crate) async fn run(state: StateDir) -> Result<()> {
    let _log = init_logging(LogFormat::Text, "info");
    let settings = read_settings(&state)?;
    culvert_netns::raise_open_files()?;
    let own = ProcessId::current().context("own process id")?;
    own.write(&state.pid_file())
        .context("cannot write the pid file")?;
    let names = Names::new(state.mesh());
    let reading = source::read(&settings);
    let store = Store::new(state.objects());
    let nodes = make_network(&settings, &names, &state).await?;
    let given = Images::given(&settings.images);
    let images = watch::Sender::new(reading.images.clone().unwrap_or(given));
    let findings = watch::Sender::new(reading.findings.clone());
    let statuses = watch::Sender::new(Statuses::new());
    let context = Arc::new(Context {
        store: store.clone(),
        names: names.clone(),
        images: images.subscribe(),
        nodes,
        program: std::env::current_exe().context("cannot find this program")?,
        machine_resolv: fs::read_to_string("/etc/resolv.conf").unwrap_or_default(),
        settings: settings.clone(),
        state: state.clone(),
    });
    let mut source = Source::default();
    seed(&context, &settings);
    source.apply(&store, &reading);
    let api = api::Api {
        context: Arc::clone(&context),
        statuses: statuses.subscribe(),
        findings: findings.subscribe(),
    };
    let drain = Drain::new(STOP_DEADLINE);
    let mut tasks = Tasks::new();
    tasks.critical("signals", drain.clone().on_signals());
    serve_api(&mut tasks, &state, api)?;
    start_components(&mut tasks, &context, &statuses)?;
    let node_names: Vec<_> = context.nodes.keys().cloned().collect();
    for node in &node_names {
        heartbeat::mark_ready(&store, node);
    }
    let access_logs = node_names
        .iter()
        .map(|node| state.node(node).join("access.log"));
    tasks.critical(
        "access logs",
        kubelet::logs::keep_small(access_logs.collect()),
    );
    let directories = node_names
        .iter()
        .map(|node| state.node(node).join("enrollment"))
        .collect();
    tasks.critical("controllers", controllers::run(store.clone()));
    tasks.critical("heartbeat", heartbeat::run(store.clone(), node_names));
    tasks.critical("kubelet", kubelet::run(Arc::clone(&context)));
    tasks.critical("service maps", service_maps(Arc::clone(&context)));
    tasks.critical("enrollment", enrollment::run(store.clone(), directories));
    tasks.critical(
        "directory",
        source::follow(settings, source, store, images, findings),
    );
    tracing::info!(mesh = state.mesh(), "engine started");
    tasks.wait(&drain).await?;
    Ok(())
}

fn read_settings(state: &StateDir) -> Result<Settings> {
    let path = state.settings();
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("cannot understand {}", path.display()))
}

/// Makes the bridge and all nodes.
async fn make_network(
    settings: &Settings,
    names: &Names,
    state: &StateDir,
) -> Result<BTreeMap<String, NodeNet>> {
    let (count, names) = (settings.nodes, names.clone());
    let (way_out, state) = (settings.egress, state.clone());
    let make = move || -> Result<BTreeMap<String, NodeNet>> {
        let net = topology::make_net(&names, count)?;
        let mut nodes = BTreeMap::new();
        for node in 1..=count {
            let netns = topology::make_node(&names, &net, node, count)?;
            nodes.insert(format!("node-{node}"), NodeNet::new(netns));
        }
        if way_out {
            // Written before anything changes, so that `down` can put it back.
            let changed = serde_json::to_vec(&egress::before())?;
            world::write_whole(&state.path("egress.json"), &changed)?;
            egress::open(state.mesh(), &net)?;
        }
        Ok(nodes)
    };
    tokio::task::spawn_blocking(make).await?
}

/// Objects of the engine itself, and run directories of the nodes.
fn seed(context: &Context, settings: &Settings) {
    let store = &context.store;
    store.apply([Action::Put(settings.as_object())]);
    let families = cluster_families(&store.snapshot());
    store.apply(controllers::services::dns_service(families).map(Action::Put));
    let now = SystemTime::now();
    for node in 1..=settings.nodes {
        store.apply([Action::Put(scheduler::node_object(node, None, now))]);
        let directory = context.state.node(&format!("node-{node}"));
        let resolv = format!("nameserver {}\n", network::addresses::CONTROL_V4);
        if let Err(error) = world::write_whole(&directory.join("resolv.conf"), resolv.as_bytes()) {
            tracing::error!(%error, path = %directory.display(), "node directory");
        }
    }
}

fn serve_api(tasks: &mut Tasks, state: &StateDir, api: api::Api) -> Result<()> {
    let path = state.socket();
    let _ = fs::remove_file(&path);
    let listener = tokio::net::UnixListener::bind(&path)
        .with_context(|| format!("cannot listen on {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let router = api::router(api);
    tasks.critical("api", async move { axum::serve(listener, router).await });
    Ok(())
}

fn start_components(
    tasks: &mut Tasks,
    context: &Arc<Context>,
    statuses: &watch::Sender<Statuses>,
) -> Result<()> {
    let (settings, state) = (&context.settings, &context.state);
    if settings.mesh_enabled {
        let nodes = context.nodes.keys().cloned().collect();
        let tokens = Tokens::start(state.clone(), context.store.clone(), nodes)?;
        tasks.critical("tokens", tokens.run());
        for directory in ["ca", "status"] {
            fs::create_dir_all(state.path(directory))?;
        }
        fs::set_permissions(state.path("ca"), fs::Permissions::from_mode(0o700))?;
    }
    let forward = if settings.egress {
        name_servers(&context.machine_resolv)
    } else {
        Vec::new()
    };
    let program = context.program.display().to_string();
    let inputs = Inputs {
        settings,
        state,
        names: &context.names,
        program: &program,
        forward: &forward,
    };
    for component in plan::components(inputs) {
        let supervisor = Supervisor {
            state: state.clone(),
            program: PathBuf::from(&program),
            statuses: statuses.clone(),
        };
        tasks.critical(component.name.clone(), supervisor.run(component));
    }
    Ok(())
}

/// The machine's name servers, for names outside.
fn name_servers(resolv: &str) -> Vec<String> {
    resolv
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
        .map(|ip: std::net::IpAddr| std::net::SocketAddr::new(ip, 53).to_string())
        .collect()
}

/// Keeps the service maps of every node as the world has them.
async fn service_maps(context: Arc<Context>) {
    let mut revisions = context.store.watch();
    let mut written = BTreeMap::new();
    loop {
        revisions.mark_unchanged();
        let world = context.store.snapshot();
        for (name, node) in &context.nodes {
            let table = services::table(&world, name);
            if written.get(name) == Some(&table) {
                continue;
            }
            let (netns, wanted): (Netns, _) = (node.netns.clone(), table.clone());
            let write = move || netns.run(|| culvert_nft::replace(&wanted));
            match tokio::task::spawn_blocking(write).await {
                Ok(Ok(Ok(()))) => {
                    written.insert(name.clone(), table);
                }
                Ok(Ok(Err(error))) => {
                    tracing::error!(
                        node = name,
                        error = culvert_runtime::chain(&error),
                        "service maps"
                    );
                }
                Ok(Err(error)) => {
                    tracing::error!(
                        node = name,
                        error = culvert_runtime::chain(&error),
                        "service maps"
                    );
                }
                Err(error) => tracing::error!(node = name, %error, "service maps broke"),
            }
        }
        // A failed write is tried again soon; a good one waits for the next change.
        let pause = if written.len() == context.nodes.len() {
            30
        } else {
            1
        };
        let changed = tokio::time::timeout(Duration::from_secs(pause), revisions.changed());
        if matches!(changed.await, Ok(Err(_))) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
