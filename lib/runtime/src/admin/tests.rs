use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::{ConditionHandle, Tasks};

struct Running {
    addresses: BoundAddresses,
    condition: ConditionHandle,
    drain: Drain,
    tasks: Tasks,
}

async fn start() -> Running {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let config = AdminConfig {
        admin_address: any,
        metrics_address: any,
        ready_address: any,
    };
    let listeners = AdminListeners::bind(&config).await.expect("free ports");
    let addresses = listeners.addresses();
    let readiness = Readiness::new();
    let condition = readiness.condition("snapshot");
    let log = LogHandle::detached("info");
    let drain = Drain::new(Duration::from_secs(60));
    let dump = axum::routing::get(|| std::future::ready("dump"));
    let admin = Admin {
        metrics: Metrics::for_process("test", "0.0.0", &log),
        readiness,
        log,
        drain: drain.clone(),
        config: json!({"CULVERT_LOG": "info"}),
        extra: Router::new().route("/config_dump", dump),
    };
    let mut tasks = Tasks::new();
    tasks.critical("admin", listeners.serve(admin));
    Running {
        addresses,
        condition,
        drain,
        tasks,
    }
}

async fn ask(address: SocketAddr, method: &str, target: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    let request = format!("{method} {target} HTTP/1.0\r\nhost: test\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("request sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answer read");
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .expect("a status");
    let body = text
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned())
        .unwrap_or_default();
    (status, body)
}

#[tokio::test]
async fn readiness_names_what_is_missing() {
    let running = start().await;
    let ready = running.addresses.ready;
    let (status, body) = ask(ready, "GET", "/healthz/ready").await;
    assert_eq!((status, body.as_str()), (503, "snapshot: starting\n"));
    running.condition.set_ready();
    assert_eq!(
        ask(ready, "GET", "/healthz/ready").await,
        (200, "ready\n".to_owned())
    );
    let (status, body) = ask(running.addresses.admin, "POST", "/quitquitquit").await;
    assert_eq!((status, body.as_str()), (200, "draining\n"));
    let (status, body) = ask(ready, "GET", "/healthz/ready").await;
    assert_eq!(
        (status, body.as_str()),
        (503, "drain: the process is ending\n")
    );
    running.drain.stop("test");
    running
        .tasks
        .wait(&running.drain)
        .await
        .expect("a clean end");
}

#[tokio::test]
async fn metrics_are_on_both_paths_and_nothing_else_is_on_that_port() {
    let running = start().await;
    for path in ["/metrics", "/stats/prometheus"] {
        let (status, body) = ask(running.addresses.metrics, "GET", path).await;
        assert_eq!(status, 200);
        assert!(
            body.contains("culvert_build_info") && body.ends_with("# EOF\n"),
            "{body}"
        );
    }
    for path in ["/config", "/quitquitquit", "/logging"] {
        assert_eq!(
            ask(running.addresses.metrics, "POST", path).await.0,
            404,
            "{path}"
        );
        assert_eq!(
            ask(running.addresses.ready, "POST", path).await.0,
            404,
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_level_changes_while_it_runs() {
    let running = start().await;
    let admin = running.addresses.admin;
    assert_eq!(
        ask(admin, "GET", "/logging").await,
        (200, "info\n".to_owned())
    );
    let (_, level) = ask(admin, "POST", "/logging?level=warn,culvert_xds=debug").await;
    assert_eq!(level, "warn,culvert_xds=debug\n");
    let (status, fault) = ask(admin, "POST", "/logging?level=chatty=x=y").await;
    assert_eq!(status, 400);
    assert!(fault.contains("chatty"), "{fault}");
    assert_eq!(ask(admin, "POST", "/logging?volume=11").await.0, 400);
    assert_eq!(
        ask(admin, "POST", "/logging?reset").await,
        (200, "info\n".to_owned())
    );
}

#[tokio::test]
async fn config_extra_routes_and_memory_are_on_admin() {
    let running = start().await;
    let admin = running.addresses.admin;
    assert_eq!(
        ask(admin, "GET", "/config_dump").await,
        (200, "dump".to_owned())
    );
    assert_eq!(
        ask(admin, "GET", "/config").await.1,
        r#"{"CULVERT_LOG":"info"}"#
    );
    let (status, heap) = ask(admin, "GET", "/debug/pprof/heap").await;
    assert_eq!(status, 200);
    let heap: serde_json::Value = serde_json::from_str(&heap).expect("JSON");
    assert!(
        heap["residentBytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 1 << 20),
        "{heap}"
    );
}

#[tokio::test]
async fn a_profile_is_taken_one_at_a_time() {
    let running = start().await;
    let admin = running.addresses.admin;
    assert_eq!(
        ask(admin, "GET", "/debug/pprof/profile?seconds=0").await.0,
        400
    );
    let first = ask(admin, "GET", "/debug/pprof/profile?seconds=1");
    let second = ask(admin, "GET", "/debug/pprof/profile?seconds=1&format=folded");
    let (first, second) = tokio::join!(first, second);
    let mut statuses = [first.0, second.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
}
