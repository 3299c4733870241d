//! `make demo`: brings the bookshop up on two nodes and shows what a mesh does for
//! it. Ends with exit code 0 only if every step held.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_tests::harness::binaries;
use culvert_tests::harness::capture::Capture;
use culvert_tests::harness::command::Said;
use culvert_tests::harness::files::Manifests;
use culvert_tests::harness::mesh::{LIMIT, Mesh, MeshOptions, Part, ensure_gone};
use culvert_tests::harness::wait::{holds_for, wait_until};
use culvert_tests::kit::load::LoadReport;
use tokio::time::Instant;

/// A server on the second node that greets: the load needs to know who answered.
const PING: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: ping, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: ping, namespace: shop, labels: {app: ping}}
spec:
  serviceAccountName: ping
  nodeName: node-2
  containers:
    - {name: main, image: testkit, command: [\"@TESTKIT@\", serve, \"9000\", ping]}
---
apiVersion: v1
kind: Service
metadata: {name: ping, namespace: shop}
spec:
  selector: {app: ping}
  ports: [{name: talk, port: 80, targetPort: 9000}]
---
apiVersion: v1
kind: Pod
metadata: {name: caller, namespace: visitors, labels: {app: caller}}
spec:
  serviceAccountName: reader
  nodeName: node-1
  containers:
    - {name: main, image: shell, command: [sleep, infinity]}
";

fn main() -> ExitCode {
    match demo() {
        Ok(()) => {
            println!("\nEvery step held.");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("\nFAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn step(text: &str) {
    println!("\n=== {text}");
}

fn show(said: &Said) {
    for line in said.text().lines() {
        println!("    {line}");
    }
}

fn demo() -> Result<()> {
    step("culvert up examples/bookshop --nodes 2");
    let manifests = Manifests::copy_of(&binaries::repository().join("examples/bookshop"))?;
    manifests.write("ping.yaml", PING)?;
    let begin = Instant::now();
    let options = MeshOptions::new("demo", 2);
    let mesh = Mesh::up(options, manifests)?;
    show(mesh.said_at_start()?);
    println!("    ready after {:.1} s", begin.elapsed().as_secs_f64());

    traffic(&mesh)?;
    identities(&mesh)?;
    refusal(&mesh)?;
    kill(&mesh)?;
    cost(&mesh)?;

    step("culvert down");
    mesh.down()?;
    ensure_gone(&mesh)?;
    println!("    no process, namespace, link or file is left");
    Ok(())
}

fn traffic(mesh: &Mesh) -> Result<()> {
    step("A reader asks for books; the link between the nodes is watched");
    let capture = Capture::start(&format!("cv-{}-net", mesh.name()), b"a-secret-title")?;
    let curl = [
        "curl",
        "-sS",
        "--fail",
        "--max-time",
        "10",
        "http://books.shop/a-secret-title",
    ];
    let said = mesh.exec("reader.visitors", &curl)?.succeeded()?;
    show(&said);
    for _ in 0..20 {
        mesh.exec("reader.visitors", &curl)?.succeeded()?;
        mesh.testkit("caller.visitors", &["talk", "ping.shop:80"])?
            .succeeded()?;
    }
    let seen = capture.finish()?;
    ensure!(seen.packets > 0, "nothing crossed the link");
    ensure!(
        seen.with_marker == 0,
        "the title was seen in {} packets",
        seen.with_marker
    );
    println!(
        "    41 connections; the title is in none of {} packets on the link",
        seen.packets
    );
    Ok(())
}

fn identities(mesh: &Mesh) -> Result<()> {
    step("Who spoke to whom, as both node proxies count it");
    let labels = [
        (
            "source_principal",
            "spiffe://cluster.local/ns/visitors/sa/reader",
        ),
        (
            "destination_principal",
            "spiffe://cluster.local/ns/shop/sa/ping",
        ),
        ("connection_security_policy", "mutual_tls"),
    ];
    for node in ["node-1", "node-2"] {
        let reporter = if node == "node-1" {
            "source"
        } else {
            "destination"
        };
        wait_until(&format!("counters of {node}"), LIMIT, || {
            let metrics = mesh.metrics(&format!("node-proxy/{node}"))?;
            let all: Vec<_> = labels
                .iter()
                .copied()
                .chain([("reporter", reporter)])
                .collect();
            let opened = metrics.sum("istio_tcp_connections_opened_total", &all);
            if opened < 20.0 {
                return Ok(false);
            }
            println!(
                "    {node} as {reporter}: {opened} connections from {} to {}",
                labels[0].1, labels[1].1
            );
            Ok(true)
        })?;
    }
    show(&mesh.culvert(["certs"], LIMIT)?.succeeded()?);
    Ok(())
}

fn refusal(mesh: &Mesh) -> Result<()> {
    step("A thief asks for books");
    let curl = [
        "curl",
        "-sS",
        "-i",
        "--max-time",
        "10",
        "http://books.shop/",
    ];
    let said = mesh.exec("thief.visitors", &curl)?;
    show(&said);
    ensure!(
        said.text().starts_with("HTTP/1.1 403"),
        "the thief was not refused with a 403"
    );
    step("culvert status says why");
    wait_until("the refusal in culvert status", LIMIT, || {
        let status = mesh.culvert(["status"], LIMIT)?.succeeded()?;
        let told = status
            .text()
            .contains("spiffe://cluster.local/ns/visitors/sa/thief")
            || status.text().contains("ns/visitors/sa/thief");
        if told {
            show(&status);
        }
        Ok(told)
    })
}

fn kill(mesh: &Mesh) -> Result<()> {
    step("200 new connections a second, while the destination's node proxy is killed");
    let stop = mesh.manifests().work()?.join("stop");
    let stop_file = stop.to_string_lossy().into_owned();
    let words = [
        "load",
        "ping.shop:80",
        "--rate",
        "200",
        "--server",
        "ping",
        "--stop",
        &stop_file,
    ];
    let load = mesh.start_testkit("caller.visitors", &words)?;
    let proxy = Part::NodeProxy("node-2");
    let calm = Duration::from_secs(1);
    holds_for("the load before the kill", calm, || Ok(true))?;
    let begin = Instant::now();
    let dead = mesh.kill(proxy)?;
    let back = mesh.wait_returned(proxy, &dead)?;
    let talk = ["talk", "ping.shop:80", "--limit", "20"];
    wait_until("traffic again", LIMIT, || {
        Ok(mesh.testkit("caller.visitors", &talk)?.status.success())
    })?;
    println!(
        "    process {} was killed, {} serves {:.2} s later",
        dead.id,
        back.id,
        begin.elapsed().as_secs_f64()
    );
    holds_for("the successor's life", calm, || Ok(back.is_alive()))?;
    std::fs::write(&stop, "")?;
    let report: LoadReport = load.wait(Duration::from_secs(60))?.json()?;
    println!(
        "    {} new connections: {} refused, {} wrong, {} that were open at the kill broke",
        report.attempted, report.not_connected, report.wrong_server, report.broken
    );
    println!(
        "    half took less than {:.1} ms, the longest waited {:.0} ms",
        report.latencies.p50_ms, report.latencies.max_ms
    );
    ensure!(
        report.not_connected == 0,
        "new connections were refused: {report:?}"
    );
    ensure!(
        report.wrong_server == 0,
        "a wrong server answered: {report:?}"
    );
    ensure!(
        report.broken <= 40,
        "too many connections broke: {report:?}"
    );
    Ok(())
}

fn cost(mesh: &Mesh) -> Result<()> {
    step("What it costs");
    for part in [
        Part::NodeProxy("node-1"),
        Part::NodeProxy("node-2"),
        Part::Discovery,
        Part::Ca,
    ] {
        let process = mesh.process(part)?;
        let (resident, cpu) = (process.resident_mib()?, process.cpu_seconds()?);
        println!("    {part:?}: {resident:.1} MiB resident, {cpu:.2} s of processor time");
    }
    let words = [
        "load",
        "ping.shop:80",
        "--rate",
        "200",
        "--seconds",
        "5",
        "--server",
        "ping",
    ];
    let report: LoadReport = mesh.testkit("caller.visitors", &words)?.json()?;
    ensure!(
        report.succeeded == report.attempted,
        "connections failed: {report:?}"
    );
    println!(
        "    a new connection, a line and its echo across two nodes: p50 {:.2} ms, p99 {:.2} ms",
        report.latencies.p50_ms, report.latencies.p99_ms
    );
    mesh.culvert(["check"], LIMIT)?
        .succeeded()
        .context("culvert check")
        .map(|said| show(&said))
}
