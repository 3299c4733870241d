//! Level chaos: parts of the mesh are killed, again and again, while new
//! connections come at a steady rate. New connections wait and succeed, no
//! payload is seen on the wire, and nobody speaks to a wrong server.
//!
//! `--kills N` says how often each part is killed (3 if not given).

use std::io::{Read, Write};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_netns::Netns;
use culvert_tests::harness::capture::Capture;
use culvert_tests::harness::command::{self, Running};
use culvert_tests::harness::mesh::{LIMIT, Mesh, MeshOptions, Part};
use culvert_tests::harness::processes::Process;
use culvert_tests::harness::runner::{Suite, Test};
use culvert_tests::harness::wait::{holds_for, wait_until};
use culvert_tests::kit::load::LoadReport;
use culvert_tests::kit::socket;
use nix::sys::signal::Signal;

const TESTS: &[Test<Mesh>] = &[
    ("kill_source_node_proxy", kill_source_node_proxy),
    ("kill_destination_node_proxy", kill_destination_node_proxy),
    ("kill_agent", kill_agent),
    ("kill_discovery", kill_discovery),
    ("kill_ca", kill_ca),
    ("kill_node_proxy_and_agent", kill_node_proxy_and_agent),
    ("sigterm_hands_over", sigterm_hands_over),
];

static KILLS: AtomicUsize = AtomicUsize::new(3);

/// Servers across the wire and on the client's own node.
const NAMES: [&str; 2] = ["far.shop:80", "near.shop:80"];

/// Between two kills: a part is back and works within this, or the next kill
/// would test the engine's restart and not the mesh.
const LULL: Duration = Duration::from_secs(2);
/// How long the old proxy is watched while it drains.
const DRAIN: Duration = Duration::from_secs(4);
/// Connections that were established when a proxy died break. At 200 a second
/// and some milliseconds each, a handful is open at any moment; those that
/// waited for the proxy before are at most the ones of one restart.
const BROKEN_A_KILL_MAX: u64 = 40;

fn main() -> ExitCode {
    let mut suite = match Suite::start("chaos") {
        Ok(suite) => suite,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(kills) = suite.value("kills").and_then(|text| text.parse().ok()) {
        KILLS.store(kills, Ordering::SeqCst);
    }
    suite.group("chaos", up, TESTS);
    suite.finish()
}

fn up() -> Result<Mesh> {
    let options = MeshOptions::new("chaos", 2).with("accessLog=off");
    Mesh::up_fixture(options, "chaos")
}

fn kills() -> usize {
    KILLS.load(Ordering::SeqCst)
}

/// Runs `body` under load and gives what the load saw.
fn under_load(
    mesh: &Mesh,
    what: &str,
    targets: [&str; 2],
    body: impl FnOnce() -> Result<()>,
) -> Result<LoadReport> {
    let stop = mesh
        .manifests()
        .work()?
        .join(format!("stop-{}", what.replace(' ', "-")));
    let stop_file = stop.to_string_lossy().into_owned();
    let capture = Capture::start(&format!("cv-{}-net", mesh.name()), b"over the hills")?;
    let words = [
        "load", targets[0], targets[1], "--rate", "200", "--server", "server-", "--stop",
        &stop_file,
    ];
    let load = mesh.start_testkit("client.shop", &words)?;
    let outcome = body();
    std::fs::write(&stop, "")?;
    let report: LoadReport = load.wait(Duration::from_secs(120))?.json()?;
    outcome.with_context(|| format!("{report:?}"))?;
    let seen = capture.finish()?;
    println!(
        "    {what}: {} connections, {} broken, p99 {:.1} ms, longest {:.0} ms",
        report.attempted, report.broken, report.latencies.p99_ms, report.latencies.max_ms
    );
    ensure!(seen.packets > 0, "the capture saw nothing");
    ensure!(
        seen.with_marker == 0,
        "the payload was seen on the wire: {seen:?}"
    );
    ensure!(
        report.wrong_server == 0,
        "a wrong server answered: {report:?}"
    );
    ensure!(
        report.not_connected == 0,
        "new connections were refused: {report:?}"
    );
    ensure!(report.attempted > 100, "hardly any load: {report:?}");
    Ok(report)
}

fn talks(mesh: &Mesh, what: &str) -> Result<()> {
    wait_until(what, LIMIT, || {
        let said = mesh.testkit("client.shop", &["talk", "far.shop:80", "--limit", "20"])?;
        Ok(said.status.success())
    })
}

/// Kills parts together, as often as asked, each time until they are back.
fn kill_all(mesh: &Mesh, parts: &[Part<'_>]) -> Result<()> {
    for number in 0..kills() {
        let dead: Vec<Process> = parts
            .iter()
            .map(|part| mesh.kill(*part))
            .collect::<Result<_>>()?;
        let mut back = Vec::new();
        for (part, dead) in parts.iter().zip(&dead) {
            back.push(mesh.wait_returned(*part, dead)?);
        }
        talks(
            mesh,
            &format!("traffic after kill {} of {parts:?}", number + 1),
        )?;
        holds_for("life of what came back", LULL, || {
            Ok(back.iter().all(Process::is_alive))
        })?;
    }
    Ok(())
}

fn proxy(mesh: &Mesh, node: &str) -> Result<()> {
    let part = Part::NodeProxy(node);
    let report = under_load(mesh, &format!("node proxy {node}"), NAMES, || {
        kill_all(mesh, &[part])
    })?;
    let most = BROKEN_A_KILL_MAX * kills() as u64;
    ensure!(
        report.broken <= most,
        "{} connections broke: {report:?}",
        report.broken
    );
    Ok(())
}

/// These parts are not on the way of a connection: nothing at all may break.
fn bystander(mesh: &Mesh, part: Part<'_>) -> Result<()> {
    let report = under_load(mesh, &format!("{part:?}"), NAMES, || {
        kill_all(mesh, &[part])
    })?;
    ensure!(
        report.succeeded == report.attempted,
        "connections failed: {report:?}"
    );
    Ok(())
}

fn kill_source_node_proxy(mesh: &Mesh) -> Result<()> {
    proxy(mesh, "node-1")
}

fn kill_destination_node_proxy(mesh: &Mesh) -> Result<()> {
    proxy(mesh, "node-2")
}

fn kill_agent(mesh: &Mesh) -> Result<()> {
    bystander(mesh, Part::Agent("node-1"))
}

fn kill_discovery(mesh: &Mesh) -> Result<()> {
    bystander(mesh, Part::Discovery)
}

fn kill_ca(mesh: &Mesh) -> Result<()> {
    bystander(mesh, Part::Ca)
}

/// Nobody holds the listeners then: the rules drop what the kernel would refuse,
/// and clients try again. By address: a resolver whose query was dropped asks once
/// more after five seconds, and that may meet a later kill.
fn kill_node_proxy_and_agent(mesh: &Mesh) -> Result<()> {
    let parts = [Part::NodeProxy("node-1"), Part::Agent("node-1")];
    let [far, near] = ["far.shop", "near.shop"].map(|pod| mesh.pod(pod));
    let (far, near) = (far?, near?);
    let far = format!("{}:9000", far.address(false)?);
    let near = format!("[{}]:9000", near.address(true)?);
    let targets = [far.as_str(), near.as_str()];
    let report = under_load(mesh, "node proxy and agent", targets, || {
        kill_all(mesh, &parts)
    })?;
    let most = BROKEN_A_KILL_MAX * kills() as u64;
    ensure!(
        report.broken <= most,
        "{} connections broke: {report:?}",
        report.broken
    );
    Ok(())
}

/// A successor runs beside the old node proxy, which is then told to end: new
/// connections go to the successor, open ones go on in the old one.
fn sigterm_hands_over(mesh: &Mesh) -> Result<()> {
    let old = mesh.process(Part::NodeProxy("node-1"))?;
    let stop = mesh.manifests().work()?.join("stop-watching");
    let stop_file = stop.to_string_lossy().into_owned();
    let mut held = mesh.start_testkit("client.shop", &["watch", "far.shop:80", &stop_file])?;
    let work = mesh.manifests().work()?;
    wait_until("an open connection", LIMIT, || {
        let mut entries = std::fs::read_dir(&work)?;
        Ok(entries.any(|entry| {
            entry.is_ok_and(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with("stop-watching.open")
            })
        }))
    })?;
    let report = under_load(mesh, "hand-over", NAMES, || {
        let successor = successor(mesh, &old)?;
        old.signal(Signal::SIGTERM)?;
        holds_for(
            "the open connection, while the old proxy drains",
            DRAIN,
            || Ok(!held.has_ended()? && old.is_alive()),
        )?;
        talks(mesh, "new connections while the old proxy drains")?;
        std::fs::write(&stop, "")?;
        wait_until("end of the old proxy", LIMIT, || Ok(!old.is_alive()))?;
        mesh.wait_returned(Part::NodeProxy("node-1"), &old)?;
        talks(mesh, "traffic after the hand-over")?;
        // It has connections too, and hands over like any other.
        Process::read(i32::try_from(successor.id())?)
            .context("the successor runs")?
            .signal(Signal::SIGTERM)?;
        successor.wait(LIMIT)?.succeeded().map(drop)
    })?;
    held.wait(LIMIT)?.succeeded()?;
    ensure!(
        report.succeeded == report.attempted,
        "connections failed: {report:?}"
    );
    Ok(())
}

/// Starts another node proxy for the same node, with ports of its own for what
/// is not traffic, and waits until it is ready.
fn successor(mesh: &Mesh, old: &Process) -> Result<Running> {
    let netns = Netns::open_named(&mesh.node_netns("node-1"))?;
    let mut command = Command::new(&old.program);
    command.env_clear().envs(old.variables());
    for (name, address) in [
        ("CULVERT_ADMIN_ADDRESS", "127.0.0.1:25000"),
        ("CULVERT_METRICS_ADDRESS", "127.0.0.1:25020"),
        ("CULVERT_READY_ADDRESS", "127.0.0.1:25021"),
    ] {
        command.env(name, address);
    }
    let running = netns.run(|| command::start(&mut command))??;
    wait_until("readiness of the successor", LIMIT, || {
        let answer = netns.run(|| ask_ready("127.0.0.1:25021"))?;
        Ok(answer.is_ok_and(|answer| {
            answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200")
        }))
    })?;
    Ok(running)
}

fn ask_ready(address: &str) -> Result<String> {
    let mut stream = socket::connect(address, Duration::from_secs(2))?;
    stream.write_all(b"GET /healthz/ready HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
