//! `down` leaves nothing, also after everything was killed.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{Cluster, wait_for};

const PODS: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: shop}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        # It does not end by itself, and has children of its own.
        - {name: c, image: any, command: [sh, -c, "trap '' TERM; sleep 1000 & sleep 1000; wait"]}
"#;

/// Everything of a mesh that the machine shows.
fn remains(mesh: &str) -> Vec<String> {
    let names = culvert_netns::list_named().expect("names");
    let mut all: Vec<_> = names
        .into_iter()
        .filter(|name| name.starts_with(&format!("cv-{mesh}-")))
        .collect();
    all.extend(processes(mesh).into_iter().map(|pid| pid.to_string()));
    let state = Path::new("/run/culvert").join(mesh);
    if state.exists() {
        all.push(state.display().to_string());
    }
    let links = std::fs::read_dir("/sys/class/net")
        .expect("links")
        .flatten();
    let links = links.map(|link| link.file_name().to_string_lossy().into_owned());
    all.extend(links.filter(|link| *link == format!("cv-{mesh}")));
    all
}

/// Processes in the namespaces of a mesh, or that name its state directory.
fn processes(mesh: &str) -> Vec<i32> {
    let prefix = format!("cv-{mesh}-");
    let names = culvert_netns::list_named()
        .expect("names")
        .into_iter()
        .filter(|name| name.starts_with(&prefix));
    let inodes: Vec<u64> = names
        .filter_map(|name| culvert_netns::Netns::open_named(&name).ok())
        .map(|netns| netns.inode())
        .collect();
    let state = format!("/run/culvert/{mesh}");
    let belongs = |pid: i32| {
        let link = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        let inside = inodes
            .iter()
            .any(|inode| link.to_string_lossy() == format!("net:[{inode}]"));
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        inside
            || String::from_utf8_lossy(&words)
                .split('\0')
                .any(|word| word == state)
    };
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| belongs(*pid))
        .collect()
}

#[test]
fn down_leaves_nothing_and_can_be_repeated() {
    let cluster = Cluster::up("tdown", "2", &[("pods.yaml", PODS)]);
    assert!(
        remains(cluster.mesh()).len() > 6,
        "{:?}",
        remains(cluster.mesh())
    );
    let said = cluster.succeeds(&["down"]);
    assert!(said.contains("nothing is left"), "{said}");
    assert_eq!(remains(cluster.mesh()), Vec::<String>::new());
    assert!(
        cluster
            .succeeds(&["down"])
            .contains("nothing of mesh tdown")
    );
}

#[test]
fn down_after_kill_9_of_everything_leaves_nothing() {
    let cluster = Cluster::up("tkill", "2", &[("pods.yaml", PODS)]);
    wait_for("death of everything", || {
        let all = processes(cluster.mesh());
        for pid in &all {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        all.is_empty()
    });
    assert!(
        !remains(cluster.mesh()).is_empty(),
        "namespaces outlive their processes"
    );
    let check = cluster.run(&["check"]);
    assert!(!check.status.success(), "check sees the crash");
    assert!(
        String::from_utf8_lossy(&check.stdout).contains("the engine has crashed"),
        "{check:?}"
    );
    cluster.succeeds(&["down"]);
    assert_eq!(remains(cluster.mesh()), Vec::<String>::new());
}

#[test]
fn up_after_a_crash_takes_the_rest_away_first() {
    let cluster = Cluster::up("tagain", "1", &[("pods.yaml", PODS)]);
    let engine = std::fs::read_to_string(cluster.state().join("engine.pid")).expect("pid file");
    let engine = engine
        .split_whitespace()
        .next()
        .expect("pid")
        .parse()
        .expect("number");
    kill(Pid::from_raw(engine), Signal::SIGKILL).expect("killed");
    wait_for("the engine's end", || {
        !cluster.run(&["status"]).status.success()
    });
    cluster.succeeds(&["up", &cluster.path(), "--no-mesh", "--nodes", "2"]);
    assert_eq!(cluster.objects("nodes").len(), 2);
    assert_eq!(cluster.objects("pods").len(), 2);
}

#[test]
fn the_way_out_goes_with_the_mesh() {
    let cluster = Cluster::new("tout", &[("pods.yaml", PODS)]);
    let forwarding = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").expect("setting");
    let before = forwarding();
    cluster.succeeds(&["up", &cluster.path(), "--no-mesh", "--egress"]);
    assert_eq!(forwarding().trim(), "1");
    assert!(
        remains("tout").contains(&"cv-tout".to_owned()),
        "{:?}",
        remains("tout")
    );
    // A server on the machine itself stands for the world outside.
    let server = std::net::TcpListener::bind("0.0.0.0:0").expect("listener");
    let port = server.local_addr().expect("address").port();
    let pod = cluster.objects("pods").remove(0)["metadata"]["name"]
        .as_str()
        .expect("name")
        .to_owned();
    let connect = format!("exec 3<>/dev/tcp/100.126.255.253/{port}");
    cluster.exec(&format!("{pod}.shop"), &["bash", "-c", &connect]);
    cluster.succeeds(&["down"]);
    assert_eq!(forwarding(), before);
    assert_eq!(remains("tout"), Vec::<String>::new());
    let tables = Command::new(env!("CARGO_BIN_EXE_culvert"))
        .args(["--mesh", "tout", "down"])
        .output();
    let said = String::from_utf8_lossy(&tables.expect("down").stdout).into_owned();
    assert!(
        said.contains("nothing of mesh tout"),
        "no table is left: {said}"
    );
}
