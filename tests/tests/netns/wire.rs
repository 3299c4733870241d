//! What crosses the link between the nodes, and who the ends are.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_tests::harness::binaries;
use culvert_tests::harness::capture::{Capture, Seen};
use culvert_tests::harness::mesh::{LIMIT, Mesh};
use culvert_tests::harness::runner::Test;
use culvert_tests::harness::wait::wait_until;
use culvert_tests::kit::conversation::Greeting;
use culvert_tests::rules::undocumented_metrics;

pub(crate) const TESTS: &[Test<Mesh>] = &[
    (
        "no_plaintext_between_enrolled_pods",
        no_plaintext_between_enrolled_pods,
    ),
    (
        "plaintext_is_seen_with_the_mesh_off",
        plaintext_is_seen_with_the_mesh_off,
    ),
    (
        "the_application_sees_the_client",
        the_application_sees_the_client,
    ),
    ("both_directions_half_close", both_directions_half_close),
    (
        "two_pods_on_one_node_join_inside_the_proxy",
        two_pods_on_one_node_join_inside_the_proxy,
    ),
    (
        "traffic_is_counted_with_both_identities",
        traffic_is_counted_with_both_identities,
    ),
    (
        "out_of_the_mesh_passes_through",
        out_of_the_mesh_passes_through,
    ),
    (
        "a_pod_is_enrolled_live_and_back",
        a_pod_is_enrolled_live_and_back,
    ),
    (
        "status_config_and_certs_answer",
        status_config_and_certs_answer,
    ),
    (
        "the_access_log_tells_both_ends",
        the_access_log_tells_both_ends,
    ),
    ("every_metric_is_documented", every_metric_is_documented),
];

/// The line that `testkit talk` sends to and fro.
const PAYLOAD: &[u8] = b"over the hills";

fn talk(mesh: &Mesh, pod: &str, target: &str) -> Result<Greeting> {
    mesh.testkit(pod, &["talk", target])?.json()
}

/// Talks while the wire of the client's node is watched.
fn watched(mesh: &Mesh, from: &str, to: &str) -> Result<Seen> {
    let capture = Capture::start(&mesh.node_netns("node-1"), PAYLOAD)?;
    // The bridge's namespace is the link itself: what it forwards, both nodes see.
    let bridge = Capture::start(&format!("cv-{}-net", mesh.name()), PAYLOAD)?;
    talk(mesh, from, to)?;
    let node = capture.finish()?;
    let link = bridge.finish()?;
    ensure!(link.packets > 0, "no packet crossed the link at all");
    Ok(Seen {
        packets: node.packets + link.packets,
        bytes: node.bytes + link.bytes,
        with_marker: node.with_marker + link.with_marker,
    })
}

fn no_plaintext_between_enrolled_pods(mesh: &Mesh) -> Result<()> {
    for target in [
        "server.shop.svc.cluster.local:80".to_owned(),
        pod_target(mesh, false)?,
    ] {
        let seen = watched(mesh, "client.shop", &target)?;
        ensure!(
            seen.with_marker == 0,
            "the payload was seen on the wire: {seen:?} ({target})"
        );
    }
    Ok(())
}

fn pod_target(mesh: &Mesh, version_6: bool) -> Result<String> {
    let server = mesh.pod("server.shop")?;
    let address = server.address(version_6)?;
    Ok(if version_6 {
        format!("[{address}]:9000")
    } else {
        format!("{address}:9000")
    })
}

fn plaintext_is_seen_with_the_mesh_off(mesh: &Mesh) -> Result<()> {
    let seen = watched(
        mesh,
        "stranger.outside",
        "listener.outside.svc.cluster.local:80",
    )?;
    ensure!(
        seen.with_marker > 0,
        "the capture finds nothing at all: {seen:?}"
    );
    Ok(())
}

fn the_application_sees_the_client(mesh: &Mesh) -> Result<()> {
    let client = mesh.pod("client.shop")?;
    for version_6 in [false, true] {
        let greeting = talk(mesh, "client.shop", &pod_target(mesh, version_6)?)?;
        ensure!(greeting.server == "server", "{greeting:?}");
        ensure!(
            greeting.peer == client.address(version_6)?,
            "{greeting:?}, client {client:?}"
        );
    }
    let greeting = talk(mesh, "client.shop", "near.shop:80")?;
    ensure!(
        client.addresses.contains(&greeting.peer),
        "same node: {greeting:?}"
    );
    Ok(())
}

fn both_directions_half_close(mesh: &Mesh) -> Result<()> {
    let server = mesh.pod("server.shop")?;
    let address = server.address(false)?;
    mesh.testkit("client.shop", &["half-close", address, "9100", "300000"])?
        .succeeded()?;
    Ok(())
}

fn two_pods_on_one_node_join_inside_the_proxy(mesh: &Mesh) -> Result<()> {
    let labels = [
        ("reporter", "source"),
        ("connection_security_policy", "local"),
    ];
    let name = "istio_tcp_connections_opened_total";
    let before = mesh.metrics("node-proxy/node-1")?.sum(name, &labels);
    talk(mesh, "client.shop", "near.shop:80")?;
    wait_until("a local connection in the metrics", LIMIT, || {
        Ok(mesh.metrics("node-proxy/node-1")?.sum(name, &labels) > before)
    })
}

fn traffic_is_counted_with_both_identities(mesh: &Mesh) -> Result<()> {
    talk(mesh, "client.shop", "server.shop:80")?;
    let labels = [
        (
            "source_principal",
            "spiffe://cluster.local/ns/shop/sa/client",
        ),
        (
            "destination_principal",
            "spiffe://cluster.local/ns/shop/sa/server",
        ),
        ("connection_security_policy", "mutual_tls"),
        ("destination_service", "server.shop.svc.cluster.local"),
    ];
    for (reporter, node) in [
        ("source", "node-proxy/node-1"),
        ("destination", "node-proxy/node-2"),
    ] {
        let labels: Vec<_> = labels
            .iter()
            .copied()
            .chain([("reporter", reporter)])
            .collect();
        wait_until(&format!("counters of the {reporter}"), LIMIT, || {
            let metrics = mesh.metrics(node)?;
            let sum = |name: &str| metrics.sum(name, &labels);
            Ok(sum("istio_tcp_connections_opened_total") > 0.0
                && sum("istio_tcp_connections_closed_total") > 0.0
                && sum("istio_tcp_received_bytes_total") >= 15.0
                && sum("istio_tcp_sent_bytes_total") >= 15.0)
        })?;
    }
    Ok(())
}

fn out_of_the_mesh_passes_through(mesh: &Mesh) -> Result<()> {
    let greeting = talk(mesh, "client.shop", "listener.outside:80")?;
    ensure!(greeting.server == "listener", "{greeting:?}");
    let greeting = talk(mesh, "stranger.outside", "server.shop:80")?;
    ensure!(
        greeting.server == "server",
        "permissive plaintext: {greeting:?}"
    );
    Ok(())
}

fn a_pod_is_enrolled_live_and_back(mesh: &Mesh) -> Result<()> {
    let seen = |what: &str, expected: bool| {
        wait_until(what, LIMIT, || {
            let target = "listener.outside.svc.cluster.local:80";
            Ok((watched(mesh, "stranger.outside", target)?.with_marker > 0) == expected)
        })
    };
    mesh.manifests().edit(
        "pair.yaml",
        "kind: Namespace\nmetadata:\n  name: outside\n",
        "kind: Namespace\nmetadata:\n  name: outside\n  labels: {culvert.dev/mesh: enabled}\n",
    )?;
    seen("tunnels after the namespace was labelled", false)?;
    mesh.manifests()
        .edit("pair.yaml", "  labels: {culvert.dev/mesh: enabled}\n", "")?;
    seen("plaintext after the label was taken away", true)
}

fn status_config_and_certs_answer(mesh: &Mesh) -> Result<()> {
    let status: serde_json::Value = mesh.culvert(["status", "-o", "json"], LIMIT)?.json()?;
    ensure!(status.is_object(), "status is no object: {status}");
    let config: serde_json::Value = mesh
        .culvert(["config", "node-proxy/node-1", "-o", "json"], LIMIT)?
        .json()?;
    let text = config.to_string();
    for expected in [
        "\"workloads\"",
        "\"services\"",
        "spiffe://cluster.local/ns/shop/sa/client",
    ] {
        ensure!(text.contains(expected), "{expected} is not in the dump");
    }
    ensure!(
        !text.contains("PRIVATE KEY"),
        "a private key is in the dump"
    );
    let certs = mesh.culvert(["certs"], LIMIT)?.succeeded()?.text();
    ensure!(
        certs.contains("spiffe://cluster.local/ns/shop/sa/server"),
        "{certs}"
    );
    let check = mesh
        .culvert(["check"], Duration::from_secs(60))?
        .succeeded()?
        .text();
    ensure!(!check.is_empty(), "culvert check says nothing");
    Ok(())
}

fn every_metric_is_documented(mesh: &Mesh) -> Result<()> {
    let document = std::fs::read_to_string(binaries::repository().join("docs/metrics.md"))?;
    for target in [
        "node-proxy/node-1",
        "node-proxy/node-2",
        "cni/node-1",
        "discovery",
        "ca",
    ] {
        let metrics = mesh.metrics(target)?;
        let missing = undocumented_metrics(metrics.text(), &document);
        ensure!(
            missing.is_empty(),
            "{target}: not in docs/metrics.md: {missing:?}"
        );
    }
    Ok(())
}

fn the_access_log_tells_both_ends(mesh: &Mesh) -> Result<()> {
    talk(mesh, "client.shop", "server.shop:80")?;
    for (node, direction) in [("node-1", "outbound"), ("node-2", "inbound")] {
        let parts = [
            direction,
            "connection complete",
            "spiffe://cluster.local/ns/shop/sa/client",
            "spiffe://cluster.local/ns/shop/sa/server",
            "\"bytes_sent\"",
            "\"bytes_recv\"",
            "\"duration\"",
        ];
        wait_until(
            &format!("the connection in the access log of {node}"),
            LIMIT,
            || {
                let log = mesh.log(node);
                Ok(log
                    .lines()
                    .any(|line| parts.iter().all(|part| line.contains(part))))
            },
        )?;
    }
    Ok(())
}
