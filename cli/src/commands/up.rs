//! `culvert up`: starts the engine and shows what happens until all is ready.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::printers;
use crate::app::Environment;
use crate::args::Up;
use crate::client::Client;
use crate::engine::api::Overview;
use crate::engine::kubelet::environment::PATH;
use crate::engine::settings::{Settings, parse_values};
use crate::engine::source::{self, Findings};
use crate::engine::summary::Missing;
use crate::engine::world::write_whole;
use crate::output::{is_terminal, print};
use crate::state::{ProcessId, StateDir};
use crate::teardown::{leftovers, teardown};

/// How often the engine is asked.
const ASK: Duration = Duration::from_millis(200);
/// Time for the engine's socket to appear: it makes the network first.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long only things that need a person may be missing before `up` says so and
/// ends: a change that is on its way gets a chance.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs the command.
pub(crate) async fn run(args: Up, state: StateDir, environment: Environment) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("culvert up needs root: it makes network namespaces");
    }
    let settings = settings(&args, environment)?;
    let reading = source::read(&settings);
    show_findings(&reading.findings);
    if reading.findings.objects == 0 {
        bail!("nothing to run in {}", settings.directory.display());
    }
    check_binaries(&settings)?;
    let client = Client::new(&state);
    match client.overview().await {
        Ok(overview) if overview.settings == settings => {
            eprintln!("mesh {} is up already", state.mesh());
        }
        Ok(overview) => bail!(
            "mesh {} is up already with {} and other settings; `culvert down` first, or --mesh NAME",
            state.mesh(),
            overview.settings.directory.display()
        ),
        Err(_) => {
            clean(&state).await?;
            start(&state, &settings)?;
        }
    }
    let (overview, complete) = wait(&client, &state, args.timeout).await?;
    show(&client, &overview).await?;
    if complete {
        return Ok(ExitCode::SUCCESS);
    }
    let some_run = overview.pods.1 > 0 || overview.pods.0 == 0;
    let hopeless =
        !overview.missing.is_empty() && overview.missing.iter().all(|one| one.needs_help);
    // A broken object beside good ones is reported; it does not make the rest fail.
    if hopeless && some_run {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

fn settings(args: &Up, environment: Environment) -> Result<Settings> {
    let directory = fs::canonicalize(&args.directory)
        .with_context(|| format!("DIR {}: expected a directory", args.directory.display()))?;
    if !directory.is_dir() {
        bail!("DIR {}: expected a directory", directory.display());
    }
    let values = parse_values(&args.set).map_err(|faults| {
        let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
        anyhow::anyhow!(lines.join("\n       "))
    })?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let bin_dir = match &args.bin_dir {
        Some(directory) => fs::canonicalize(directory)
            .with_context(|| format!("--bin-dir {}", directory.display()))?,
        None => own
            .parent()
            .map(std::path::Path::to_path_buf)
            .unwrap_or_default(),
    };
    Ok(Settings {
        directory,
        nodes: args.nodes,
        mesh_enabled: !args.no_mesh,
        egress: args.egress,
        bin_dir,
        search_path: search_path(environment, &own),
        images: args.image.iter().cloned().collect(),
        values,
    })
}

/// The caller's PATH, and at its end the directory of this program, so that
/// `culvert testserver` is at hand in every pod.
fn search_path(environment: Environment, own: &std::path::Path) -> String {
    let path = environment.path.unwrap_or_else(|| PATH.to_owned());
    match own.parent() {
        Some(directory) => format!("{path}:{}", directory.display()),
        None => path,
    }
}

fn check_binaries(settings: &Settings) -> Result<()> {
    if !settings.mesh_enabled {
        return Ok(());
    }
    let missing: Vec<_> = [
        "culvert-ca",
        "culvert-discovery",
        "culvert-cni",
        "culvert-node-proxy",
    ]
    .into_iter()
    .filter(|name| !settings.bin_dir.join(name).is_file())
    .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "not in {}: {}; build them (`cargo build --workspace`) or give --bin-dir",
        settings.bin_dir.display(),
        missing.join(", ")
    )
}

fn show_findings(findings: &Findings) {
    for error in &findings.errors {
        eprintln!("error: {error}");
    }
    for warning in &findings.warnings {
        eprintln!("warning: {warning}");
    }
    for kept in &findings.kept {
        eprintln!("note: {kept}: schedules do not run on one machine");
    }
    for unknown in &findings.unknown {
        eprintln!("note: {unknown}: this kind is not known and left alone");
    }
}

/// Takes away what an engine that crashed has left.
async fn clean(state: &StateDir) -> Result<()> {
    if leftovers(state)?.is_empty() {
        return Ok(());
    }
    eprintln!(
        "taking away what an earlier run of mesh {} left",
        state.mesh()
    );
    teardown(state, Duration::from_millis(500)).await?;
    Ok(())
}

fn start(state: &StateDir, settings: &Settings) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(settings)?;
    write_whole(&state.settings(), &bytes)
        .with_context(|| format!("cannot write {}", state.settings().display()))?;
    let log = state.log("engine");
    if let Some(directory) = log.parent() {
        fs::create_dir_all(directory)?;
    }
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("engine")
        .arg(state.root())
        .env_clear()
        .env("PATH", &settings.search_path)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A group of its own: Ctrl-C here must not reach it.
        .process_group(0);
    command.spawn().context("cannot start the engine")?;
    Ok(())
}

/// Waits until all is ready, or nothing but a person can help; true when all is.
async fn wait(client: &Client, state: &StateDir, limit: Duration) -> Result<(Overview, bool)> {
    let begun = Instant::now();
    let mut progress = Progress::new();
    let mut stuck_since = None;
    let mut overview = first_overview(client, state).await?;
    loop {
        let all = outstanding(&overview);
        progress.show(&overview, &all);
        if all.is_empty() {
            progress.finish();
            return Ok((overview, true));
        }
        let stuck = all.iter().all(|one| one.needs_help);
        let since = stuck.then(|| *stuck_since.get_or_insert_with(Instant::now));
        stuck_since = since;
        let settled = since.is_some_and(|since| since.elapsed() >= SETTLE);
        if settled || begun.elapsed() >= limit {
            progress.finish();
            if !settled {
                eprintln!("not ready after {} s:", limit.as_secs());
            }
            for one in &all {
                eprintln!("{}: {}", one.object, one.reason);
            }
            return Ok((overview, false));
        }
        tokio::time::sleep(ASK).await;
        overview = client.overview().await.with_context(|| log_hint(state))?;
    }
}

async fn first_overview(client: &Client, state: &StateDir) -> Result<Overview> {
    let begun = Instant::now();
    loop {
        let error = match client.overview().await {
            Ok(overview) => return Ok(overview),
            Err(error) => error,
        };
        let died = ProcessId::read(&state.pid_file()).is_some_and(|engine| !engine.is_alive());
        if died || begun.elapsed() >= START_TIMEOUT {
            return Err(error).with_context(|| log_hint(state));
        }
        tokio::time::sleep(ASK).await;
    }
}

fn log_hint(state: &StateDir) -> String {
    let log = state.log("engine");
    let text = fs::read_to_string(&log).unwrap_or_default();
    let last: Vec<_> = text.lines().rev().take(3).collect();
    let last: Vec<_> = last.into_iter().rev().collect();
    format!(
        "the engine failed; end of {}:\n{}\n",
        log.display(),
        last.join("\n")
    )
}

/// Everything that is not up: programs of the mesh, then objects.
fn outstanding(overview: &Overview) -> Vec<Missing> {
    let programs = overview
        .components
        .iter()
        .filter(|(_, one)| one.state != "ready")
        .map(|(name, one)| {
            let why = if one.reason.is_empty() {
                one.state.clone()
            } else {
                format!("{}: {}", one.state, one.reason)
            };
            Missing {
                object: name.clone(),
                reason: why,
                needs_help: false,
            }
        });
    programs.chain(overview.missing.iter().cloned()).collect()
}

/// A spinner for a person, a line for each change otherwise.
#[derive(Debug)]
struct Progress {
    bar: Option<ProgressBar>,
    told: BTreeSet<String>,
}

impl Progress {
    fn new() -> Self {
        let bar = is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self {
            bar,
            told: BTreeSet::new(),
        }
    }

    fn show(&mut self, overview: &Overview, outstanding: &[Missing]) {
        let programs = overview.components.len();
        let running = overview
            .components
            .values()
            .filter(|one| one.state == "ready")
            .count();
        let head = format!(
            "{running}/{programs} programs, {}/{} pods ready",
            overview.pods.1, overview.pods.0
        );
        if let Some(bar) = &self.bar {
            let next = outstanding
                .first()
                .map(|one| format!("; {}: {}", one.object, one.reason));
            bar.set_message(format!("{head}{}", next.unwrap_or_default()));
        } else if self.told.insert(head.clone()) {
            eprintln!("{head}");
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

async fn show(client: &Client, overview: &Overview) -> Result<()> {
    let nodes = client.objects("Node", None).await?;
    let pods = client.objects("Pod", None).await?;
    print(printers::node_table(&nodes));
    print("\n");
    print(printers::placement_table(
        &pods,
        overview.settings.mesh_enabled,
    ));
    Ok(())
}
