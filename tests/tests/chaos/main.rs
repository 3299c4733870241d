//! Level chaos: parts of the mesh are killed, again and again, while new
//! connections come at a steady rate. New connections wait and succeed, no
//! payload is seen on the wire, and nobody speaks to a wrong server.
//!
//! `--kills N` says how often each part is killed (3 if not given).

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_tests::harness::capture::Capture;
use culvert_tests::harness::mesh::{LIMIT, Mesh, MeshOptions, Part};
use culvert_tests::harness::runner::{Suite, Test};
use culvert_tests::harness::wait::{holds_for, wait_until};
use culvert_tests::kit::load::LoadReport;

const TESTS: &[Test<Mesh>] = &[
    ("kill_source_node_proxy", kill_source_node_proxy),
    ("kill_destination_node_proxy", kill_destination_node_proxy),
    ("kill_agent", kill_agent),
    ("kill_discovery", kill_discovery),
    ("kill_ca", kill_ca),
];

static KILLS: AtomicUsize = AtomicUsize::new(3);

/// Between two kills: a part is back and works within this, or the next kill
/// would test the engine's restart and not the mesh.
const LULL: Duration = Duration::from_secs(2);
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

/// Kills a part under load and gives what the load saw.
fn under_load(mesh: &Mesh, part: Part<'_>) -> Result<LoadReport> {
    let stop = mesh
        .manifests()
        .work()?
        .join(format!("stop-{part:?}").replace(['(', ')', '"'], "-"));
    let stop_file = stop.to_string_lossy().into_owned();
    let capture = Capture::start(&format!("cv-{}-net", mesh.name()), b"over the hills")?;
    let words = [
        "load",
        "far.shop:80",
        "near.shop:80",
        "--rate",
        "200",
        "--server",
        "server-",
        "--stop",
        &stop_file,
    ];
    let load = mesh.start_testkit("client.shop", &words)?;
    for number in 0..kills() {
        let dead = mesh.kill(part)?;
        let back = mesh.wait_returned(part, &dead)?;
        wait_until(
            &format!("traffic after kill {} of {part:?}", number + 1),
            LIMIT,
            || {
                let said =
                    mesh.testkit("client.shop", &["talk", "far.shop:80", "--limit", "20"])?;
                Ok(said.status.success())
            },
        )?;
        holds_for("the part's life", LULL, || Ok(back.is_alive()))?;
    }
    std::fs::write(&stop, "")?;
    let report: LoadReport = load.wait(Duration::from_secs(120))?.json()?;
    let seen = capture.finish()?;
    println!(
        "    {part:?}: {} connections, {} broken, p99 {:.1} ms, longest {:.0} ms",
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

fn proxy(mesh: &Mesh, node: &str) -> Result<()> {
    let report = under_load(mesh, Part::NodeProxy(node))?;
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
    let report = under_load(mesh, part)?;
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
