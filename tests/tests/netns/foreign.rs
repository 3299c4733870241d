//! A directory of ordinary Kubernetes objects that was not written for us: 40
//! pods on 3 nodes, edits while it runs, and an end after everything was killed.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_tests::harness::mesh::{LIMIT, Mesh, MeshOptions, UP_LIMIT, ensure_gone};
use culvert_tests::harness::processes;
use culvert_tests::harness::runner::Test;
use culvert_tests::harness::wait::wait_until;
use culvert_tests::kit::conversation::Greeting;
use culvert_tests::kit::load::LoadReport;
use nix::sys::signal::Signal;

pub(crate) const TESTS: &[Test<Mesh>] = &[
    (
        "every_pod_is_ready_and_enrolled",
        every_pod_is_ready_and_enrolled,
    ),
    (
        "what_cannot_be_used_is_listed",
        what_cannot_be_used_is_listed,
    ),
    ("every_replica_gets_traffic", every_replica_gets_traffic),
    ("stateful_peers_have_names", stateful_peers_have_names),
    ("the_job_has_completed", the_job_has_completed),
    ("an_external_name_leads_on", an_external_name_leads_on),
    (
        "edits_take_effect_and_disturb_nobody",
        edits_take_effect_and_disturb_nobody,
    ),
    ("a_deleted_pod_is_replaced", a_deleted_pod_is_replaced),
    (
        "a_killed_container_is_restarted",
        a_killed_container_is_restarted,
    ),
    (
        "down_after_kill_9_leaves_nothing",
        down_after_kill_9_leaves_nothing,
    ),
];

pub(crate) fn up(enrolled: bool) -> Result<Mesh> {
    let options = MeshOptions {
        enrolled,
        ..MeshOptions::new("foreign", 3)
    };
    Mesh::up_fixture(options, "foreign")
}

fn every_pod_is_ready_and_enrolled(mesh: &Mesh) -> Result<()> {
    for (namespace, prefix, count) in [
        ("front", "web-", 12),
        ("front", "api-", 12),
        ("data", "db-", 3),
        ("data", "worker-", 9),
        ("data", "logs-", 3),
    ] {
        let pods = mesh.wait_pods(namespace, prefix, count)?;
        for pod in pods {
            let object = mesh.object("Pod", &pod.namespace, &pod.name)?;
            let enrolled = &object["metadata"]["annotations"]["culvert.dev/enrolled"];
            ensure!(enrolled == "true", "{} is not enrolled", pod.name);
        }
    }
    let pods = mesh.pods()?;
    let nodes: BTreeSet<&str> = pods.iter().map(|pod| pod.node.as_str()).collect();
    ensure!(
        pods.len() >= 40 && nodes.len() == 3,
        "{} pods on {nodes:?}",
        pods.len()
    );
    let said = mesh.said_at_start()?.text();
    ensure!(
        said.contains("spiffe://cluster.local/ns/front/sa/web"),
        "no identities in {said}"
    );
    Ok(())
}

fn what_cannot_be_used_is_listed(mesh: &Mesh) -> Result<()> {
    let said = mesh.said_at_start()?;
    let all = format!("{}{}", said.text(), said.err);
    for expected in [
        "Teapot",
        "HTTPRoute",
        "zz-broken.yaml:7",
        "replicas",
        "broken",
    ] {
        ensure!(all.contains(expected), "`{expected}` is not in\n{all}");
    }
    Ok(())
}

fn every_replica_gets_traffic(mesh: &Mesh) -> Result<()> {
    let mut seen = BTreeSet::new();
    for _ in 0..200 {
        let greeting: Greeting = mesh.testkit("shell.front", &["talk", "web:80"])?.json()?;
        seen.insert(greeting.server);
        if seen.len() == 12 {
            return Ok(());
        }
    }
    anyhow::bail!("200 connections reached only {seen:?}");
}

fn stateful_peers_have_names(mesh: &Mesh) -> Result<()> {
    for number in 0..3 {
        let target = format!("db-{number}.db.data.svc.cluster.local:5432");
        let greeting: Greeting = mesh.testkit("shell.front", &["talk", &target])?.json()?;
        ensure!(
            greeting.server == format!("db-{number}"),
            "{target}: {greeting:?}"
        );
    }
    let greeting: Greeting = mesh
        .testkit("shell.front", &["talk", "db.data:5432"])?
        .json()?;
    ensure!(greeting.server.starts_with("db-"), "{greeting:?}");
    Ok(())
}

fn the_job_has_completed(mesh: &Mesh) -> Result<()> {
    wait_until("completion of the job", LIMIT, || {
        Ok(mesh.object("Job", "data", "migrate")?["status"]["succeeded"] == 1)
    })
}

fn an_external_name_leads_on(mesh: &Mesh) -> Result<()> {
    let greeting: Greeting = mesh
        .testkit("shell.front", &["talk", "elsewhere.data:80"])?
        .json()?;
    ensure!(greeting.server.starts_with("web/"), "{greeting:?}");
    Ok(())
}

fn edits_take_effect_and_disturb_nobody(mesh: &Mesh) -> Result<()> {
    let stop = mesh.manifests().work()?.join("stop-load");
    let stop_file = stop.to_string_lossy().into_owned();
    let words = [
        "load", "api:80", "--rate", "50", "--server", "api/", "--stop", &stop_file,
    ];
    let load = mesh.start_testkit("shell.front", &words)?;
    mesh.manifests().edit(
        "front.yaml",
        "replicas: 12\n  selector: {matchLabels: {app: web}}",
        "replicas: 4\n  selector: {matchLabels: {app: web}}",
    )?;
    mesh.wait_pods("front", "web-", 4)?;
    mesh.manifests()
        .edit("front.yaml", "replicas: 4\n", "replicas: 7\n")?;
    mesh.wait_pods("front", "web-", 7)?;
    let greeting: Greeting = mesh.testkit("shell.front", &["talk", "web:80"])?.json()?;
    ensure!(greeting.server.starts_with("web/"), "{greeting:?}");
    std::fs::write(&stop, "")?;
    let report: LoadReport = load.wait(LIMIT)?.json()?;
    ensure!(
        report.attempted > 100 && report.succeeded == report.attempted,
        "{report:?}"
    );
    Ok(())
}

fn a_deleted_pod_is_replaced(mesh: &Mesh) -> Result<()> {
    let victim = mesh.ready_pods("front", "web-")?.remove(0);
    mesh.culvert(["delete", "pod", &victim.name, "-n", "front"], LIMIT)?
        .succeeded()?;
    wait_until("another pod", LIMIT, || {
        let pods = mesh.ready_pods("front", "web-")?;
        Ok(pods.len() == 7 && pods.iter().all(|pod| pod.name != victim.name))
    })
}

fn a_killed_container_is_restarted(mesh: &Mesh) -> Result<()> {
    let pods = mesh.ready_pods("data", "db-")?;
    ensure!(pods.len() == 3, "{pods:?}");
    let servers = processes::all()?.into_iter().filter(|process| {
        process
            .arguments
            .ends_with(&["serve".into(), "5432".into(), "db-1".into()])
    });
    for server in servers {
        server.signal(Signal::SIGKILL)?;
    }
    wait_until("the server's return", LIMIT, || {
        let target = "db-1.db.data.svc.cluster.local:5432";
        Ok(mesh
            .testkit("shell.front", &["talk", target, "--limit", "5"])?
            .status
            .success())
    })?;
    let pod = mesh.object("Pod", "data", "db-1")?;
    ensure!(
        pod["status"]["containerStatuses"][0]["restartCount"] == 1,
        "{}",
        pod["status"]
    );
    Ok(())
}

fn down_after_kill_9_leaves_nothing(mesh: &Mesh) -> Result<()> {
    let own = std::process::id();
    let mine = |process: &processes::Process| process.id.unsigned_abs() != own;
    // Programs restart each other: until nothing is left, or the time is over.
    wait_until("death of everything", Duration::from_secs(30), || {
        let all: Vec<_> = processes::that_mention(&mesh.directory())?
            .into_iter()
            .filter(mine)
            .collect();
        for process in &all {
            process.signal(Signal::SIGKILL)?;
        }
        Ok(all.is_empty())
    })?;
    mesh.culvert(["down"], UP_LIMIT)?.succeeded()?;
    ensure_gone(mesh)
}
