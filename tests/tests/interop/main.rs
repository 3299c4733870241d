//! Level interop: Envoy at the other end of the tunnel, in both directions, with
//! certificates of our CA.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use culvert_tests::harness::capture::Capture;
use culvert_tests::harness::certificates::{Signer, identity};
use culvert_tests::harness::command::Running;
use culvert_tests::harness::envoy::{self, ClientEnd};
use culvert_tests::harness::mesh::{LIMIT, Mesh, MeshOptions, Pod};
use culvert_tests::harness::runner::{Suite, Test};
use culvert_tests::harness::wait::wait_until;
use culvert_tests::kit::conversation::Greeting;

const TESTS: &[Test<Mesh>] = &[
    (
        "envoy_as_client_of_the_node_proxy",
        envoy_as_client_of_the_node_proxy,
    ),
    (
        "envoy_as_client_is_refused_without_an_identity",
        envoy_as_client_is_refused,
    ),
    (
        "envoy_as_server_behind_the_node_proxy",
        envoy_as_server_behind_the_node_proxy,
    ),
];

fn main() -> ExitCode {
    let mut suite = match Suite::start("interop") {
        Ok(suite) => suite,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    suite.group("envoy", up, TESTS);
    suite.finish()
}

fn up() -> Result<Mesh> {
    let options = MeshOptions::new("interop", 2).with("accessLog=json");
    Mesh::up_fixture(options, "interop")
}

fn envoy_client(mesh: &Mesh, signer: &Signer, port: u16, name: &str) -> Result<Running> {
    let address = mesh.pod("server.shop")?.address(false)?.to_owned();
    let files = signer.pem_files(&identity("outside", "envoy")?, &mesh.manifests().work()?)?;
    let authority = format!("{address}:9000");
    let server = identity("shop", "server")?;
    let end = ClientEnd {
        listen: port,
        tunnel: &address,
        authority: &authority,
        server: server.uri(),
    };
    let namespace = mesh.pod_netns(&mesh.pod("stranger.outside")?);
    envoy::start(
        &namespace,
        &envoy::client(&[end], &files),
        &mesh.manifests().work()?,
        name,
    )
}

fn envoy_as_client_of_the_node_proxy(mesh: &Mesh) -> Result<()> {
    let _envoy = envoy_client(mesh, &Signer::of_mesh(mesh)?, 18001, "client")?;
    wait_until("an answer through Envoy", LIMIT, || {
        let said = mesh.testkit(
            "stranger.outside",
            &["talk", "127.0.0.1:18001", "--limit", "5"],
        )?;
        let greeting: Greeting = said.json()?;
        ensure!(greeting.server == "server", "{greeting:?}");
        Ok(true)
    })?;
    wait_until("Envoy's identity in the metrics", LIMIT, || {
        let labels = [(
            "source_principal",
            "spiffe://cluster.local/ns/outside/sa/envoy",
        )];
        let metrics = mesh.metrics("node-proxy/node-2")?;
        let opened: String = metrics
            .text()
            .lines()
            .filter(|line| line.contains("_opened_total"))
            .collect();
        ensure!(
            metrics.sum("istio_tcp_connections_opened_total", &labels) > 0.0,
            "{opened}"
        );
        Ok(true)
    })
}

fn envoy_as_client_is_refused(mesh: &Mesh) -> Result<()> {
    let stranger = Signer::stranger(mesh, "cluster.local")?;
    let _envoy = envoy_client(mesh, &stranger, 18002, "stranger")?;
    wait_until("the refusal in log or metrics", LIMIT, || {
        let said = mesh.testkit(
            "stranger.outside",
            &["talk", "127.0.0.1:18002", "--limit", "5"],
        )?;
        ensure!(!said.status.success(), "an unknown CA got through");
        let metrics = mesh.metrics("node-proxy/node-2")?;
        Ok(metrics.text().contains("unknown_ca") || mesh.log("node-2").contains("unknown_ca"))
    })
}

/// Says in the pod's object that it takes tunnels, as the agent of a proxy of
/// another kind would. The engine writes an object only when it changes.
fn takes_tunnels(mesh: &Mesh, pod: &Pod) -> Result<()> {
    let mut object = mesh.object("Pod", &pod.namespace, &pod.name)?;
    object["metadata"]["annotations"]["culvert.dev/enrolled"] = serde_json::json!("true");
    let directory = mesh.directory().join("objects/Pod");
    let unfinished = directory.join(".envoy.new");
    std::fs::write(&unfinished, object.to_string())?;
    std::fs::rename(
        unfinished,
        directory.join(format!("{}.{}.json", pod.namespace, pod.name)),
    )?;
    Ok(())
}

/// The pod is not enrolled, but its object says that it takes tunnels itself: our
/// node proxy opens one to it.
fn envoy_as_server_behind_the_node_proxy(mesh: &Mesh) -> Result<()> {
    let files =
        Signer::of_mesh(mesh)?.pem_files(&identity("shop", "envoy")?, &mesh.manifests().work()?)?;
    let pod = mesh.pod("envoy.shop")?;
    takes_tunnels(mesh, &pod)?;
    let configuration = envoy::server(&[9000], &files);
    let work = mesh.manifests().work()?;
    let _envoy = envoy::start(&mesh.pod_netns(&pod), &configuration, &work, "server")?;
    let target = format!("{}:9000", pod.address(false)?);
    let talk = || -> Result<Greeting> {
        mesh.testkit("client.shop", &["talk", &target, "--limit", "5"])?
            .json()
    };
    wait_until("an answer of the application behind Envoy", LIMIT, || {
        let greeting = talk()?;
        ensure!(greeting.server == "behind-envoy", "{greeting:?}");
        // Before discovery has told, the way is plain and the client seen.
        ensure!(
            greeting.peer == "127.0.0.1",
            "not through Envoy: {greeting:?}"
        );
        Ok(true)
    })?;
    let capture = Capture::start(&format!("cv-{}-net", mesh.name()), b"over the hills")?;
    for _ in 0..20 {
        talk()?;
    }
    let seen = capture.finish()?;
    ensure!(seen.packets > 0 && seen.with_marker == 0, "{seen:?}");
    Ok(())
}
