//! IPv4-only, IPv6-only and dual-stack pods, and pods whose kernel has IPv6 off.

use anyhow::{Context, Result, ensure};
use culvert_tests::harness::mesh::{LIMIT, Mesh, MeshOptions, Pod};
use culvert_tests::harness::runner::Test;
use culvert_tests::harness::wait::wait_until;
use culvert_tests::kit::conversation::Greeting;

pub(crate) const TESTS: &[Test<Mesh>] = &[
    (
        "pods_have_the_families_they_ask_for",
        pods_have_the_families_they_ask_for,
    ),
    (
        "every_shared_family_carries_traffic",
        every_shared_family_carries_traffic,
    ),
    ("services_answer_by_name", services_answer_by_name),
    (
        "a_pod_with_ipv6_off_is_enrolled",
        a_pod_with_ipv6_off_is_enrolled,
    ),
    ("all_of_it_was_tunnelled", all_of_it_was_tunnelled),
];

const KINDS: [&str; 4] = ["four", "six", "dual", "off"];

pub(crate) fn up(enrolled: bool) -> Result<Mesh> {
    let options = MeshOptions {
        enrolled,
        ..MeshOptions::new("families", 2)
    };
    Mesh::up_fixture(options, "families")
}

fn has(pod: &Pod, version_6: bool) -> bool {
    pod.addresses
        .iter()
        .any(|address| address.contains(':') == version_6)
}

fn pods_have_the_families_they_ask_for(mesh: &Mesh) -> Result<()> {
    for (kind, four, six) in [
        ("four", true, false),
        ("six", false, true),
        ("dual", true, true),
        ("off", true, false),
    ] {
        let pod = mesh.pod(&format!("server-{kind}.shop"))?;
        ensure!(
            (has(&pod, false), has(&pod, true)) == (four, six),
            "{pod:?}"
        );
    }
    Ok(())
}

fn every_shared_family_carries_traffic(mesh: &Mesh) -> Result<()> {
    for (from, to) in KINDS
        .iter()
        .flat_map(|from| KINDS.iter().map(move |to| (from, to)))
    {
        let client = mesh.pod(&format!("client-{from}.shop"))?;
        let server = mesh.pod(&format!("server-{to}.shop"))?;
        for version_6 in [false, true] {
            if !(has(&client, version_6) && has(&server, version_6)) {
                continue;
            }
            let address = server.address(version_6)?;
            let target = if version_6 {
                format!("[{address}]:9000")
            } else {
                format!("{address}:9000")
            };
            let greeting: Greeting = mesh
                .testkit(&format!("client-{from}.shop"), &["talk", &target])?
                .json()?;
            ensure!(greeting.server == format!("server-{to}"), "{greeting:?}");
            ensure!(
                greeting.peer == client.address(version_6)?,
                "{from} to {to}: {greeting:?}"
            );
        }
    }
    Ok(())
}

fn services_answer_by_name(mesh: &Mesh) -> Result<()> {
    let pairs = [
        ("four", "four"),
        ("four", "dual"),
        ("six", "six"),
        ("six", "dual"),
        ("dual", "four"),
        ("dual", "six"),
        ("dual", "dual"),
        ("off", "off"),
    ];
    for (from, to) in pairs {
        let target = format!("server-{to}.shop:80");
        let greeting: Greeting = mesh
            .testkit(&format!("client-{from}.shop"), &["talk", &target])?
            .json()
            .with_context(|| format!("{from} to {to}"))?;
        ensure!(greeting.server == format!("server-{to}"), "{greeting:?}");
    }
    Ok(())
}

fn a_pod_with_ipv6_off_is_enrolled(mesh: &Mesh) -> Result<()> {
    wait_until("the enrolled annotation", LIMIT, || {
        let pod = mesh.object("Pod", "shop", "client-off")?;
        Ok(pod["metadata"]["annotations"]["culvert.dev/enrolled"] == "true")
    })
}

fn all_of_it_was_tunnelled(mesh: &Mesh) -> Result<()> {
    let metrics = mesh.metrics("node-proxy/node-2")?;
    let name = "istio_tcp_connections_opened_total";
    let plain = metrics.sum(
        name,
        &[
            ("reporter", "destination"),
            ("connection_security_policy", "unknown"),
        ],
    );
    ensure!(plain.abs() < 0.5, "{plain} connections came in plain text");
    ensure!(
        metrics.sum(name, &[("connection_security_policy", "mutual_tls")]) > 0.0,
        "no tunnelled connection"
    );
    Ok(())
}
