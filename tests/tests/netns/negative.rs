//! What must not get through does not, nothing dies of it, and each refusal is
//! visible with its reason.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use culvert_identity::Identity;
use culvert_tests::harness::authority;
use culvert_tests::harness::certificates::{Flaw, Signer, identity};
use culvert_tests::harness::mesh::{LIMIT, Mesh, Part};
use culvert_tests::harness::peer::{self, Answer, Attempt};
use culvert_tests::harness::runner::Test;
use culvert_tests::harness::wait::wait_until;
use culvert_tls::IssuedCertificate;

pub(crate) const TESTS: &[Test<Mesh>] = &[
    ("a_good_peer_gets_through", a_good_peer_gets_through),
    ("wrong_trust_domain", wrong_trust_domain),
    ("expired_certificate", expired_certificate),
    ("certificate_not_valid_yet", certificate_not_valid_yet),
    ("unknown_ca", unknown_ca),
    ("certificate_for_servers_only", certificate_for_servers_only),
    ("spoofed_authority", spoofed_authority),
    ("illegal_ports", illegal_ports),
    ("malformed_http2", malformed_http2),
    (
        "plain_bytes_at_the_tunnel_port",
        plain_bytes_at_the_tunnel_port,
    ),
    ("plaintext_to_strict", plaintext_to_strict),
    (
        "certificate_of_another_workload",
        certificate_of_another_workload,
    ),
    ("token_of_another_node", token_of_another_node),
    ("nothing_died", nothing_died),
];

/// Not enrolled, so that nothing is redirected on its way out.
const FROM: &str = "stranger.outside";

struct Target {
    namespace: String,
    tunnel: SocketAddr,
    application: String,
    server: Identity,
}

fn target(mesh: &Mesh) -> Result<Target> {
    let server = mesh.pod("server.shop")?;
    let address = server.address(false)?;
    Ok(Target {
        namespace: mesh.pod_netns(&mesh.pod(FROM)?),
        tunnel: format!("{address}:15008").parse()?,
        application: format!("{address}:9000"),
        server: identity("shop", "server")?,
    })
}

fn attempt(
    mesh: &Mesh,
    certificate: &IssuedCertificate,
    authority: Option<&str>,
) -> Result<Answer> {
    let target = target(mesh)?;
    let authority = authority.unwrap_or(&target.application);
    let attempt = Attempt {
        certificate,
        server: &target.server,
        tunnel: target.tunnel,
        authority,
    };
    peer::attempt(&target.namespace, &attempt)
}

fn a_good_peer_gets_through(mesh: &Mesh) -> Result<()> {
    let certificate =
        Signer::of_mesh(mesh)?.certificate(&identity("shop", "client")?, Flaw::None)?;
    match attempt(mesh, &certificate, None)? {
        Answer::Status(200, bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            ensure!(
                text.starts_with("server server peer ") && text.ends_with("over the hills\n"),
                "{text:?}"
            );
            Ok(())
        }
        other => anyhow::bail!("a good peer was refused: {other:?}"),
    }
}

/// A refusal during the handshake, counted with its reason.
fn refused(mesh: &Mesh, certificate: &IssuedCertificate, reason: &str) -> Result<()> {
    counted(mesh, reason, || {
        let answer = attempt(mesh, certificate, None)?;
        ensure!(matches!(answer, Answer::Closed(_)), "answered {answer:?}");
        Ok(())
    })
}

/// What `body` does is counted at the destination as a failed handshake with
/// this reason.
fn counted(mesh: &Mesh, reason: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let failures = || -> Result<f64> {
        let labels = [("reporter", "destination"), ("reason", reason)];
        let metrics = mesh.metrics("node-proxy/node-2")?;
        Ok(metrics.sum("culvert_handshake_failures_total", &labels))
    };
    let before = failures()?;
    body()?;
    wait_until(
        &format!("a handshake failure counted as {reason}"),
        LIMIT,
        || Ok(failures()? > before),
    )
}

fn wrong_trust_domain(mesh: &Mesh) -> Result<()> {
    let other = Identity::new(&"elsewhere.example".parse()?, "shop", "client")?;
    let certificate = Signer::of_mesh(mesh)?.certificate(&other, Flaw::None)?;
    refused(mesh, &certificate, "wrong_trust_domain")
}

fn expired_certificate(mesh: &Mesh) -> Result<()> {
    let certificate =
        Signer::of_mesh(mesh)?.certificate(&identity("shop", "client")?, Flaw::Expired)?;
    refused(mesh, &certificate, "expired_certificate")
}

fn certificate_not_valid_yet(mesh: &Mesh) -> Result<()> {
    let certificate =
        Signer::of_mesh(mesh)?.certificate(&identity("shop", "client")?, Flaw::NotYetValid)?;
    refused(mesh, &certificate, "certificate_not_yet_valid")
}

fn unknown_ca(mesh: &Mesh) -> Result<()> {
    let signer = Signer::stranger(mesh, "cluster.local")?;
    refused(
        mesh,
        &signer.certificate(&identity("shop", "client")?, Flaw::None)?,
        "unknown_ca",
    )
}

fn certificate_for_servers_only(mesh: &Mesh) -> Result<()> {
    let certificate =
        Signer::of_mesh(mesh)?.certificate(&identity("shop", "client")?, Flaw::ServerOnly)?;
    refused(mesh, &certificate, "wrong_certificate_usage")
}

fn spoofed_authority(mesh: &Mesh) -> Result<()> {
    let certificate =
        Signer::of_mesh(mesh)?.certificate(&identity("shop", "client")?, Flaw::None)?;
    let near = format!("{}:9000", mesh.pod("near.shop")?.address(false)?);
    let outside = format!("{}:9000", mesh.pod("listener.outside")?.address(false)?);
    for authority in [
        near.as_str(),
        outside.as_str(),
        "127.0.0.1:9000",
        "[::1]:9000",
    ] {
        let answer = attempt(mesh, &certificate, Some(authority))?;
        ensure!(
            answer == Answer::Status(400, Vec::new()),
            "{authority}: {answer:?}"
        );
    }
    let service = mesh.object("Service", "shop", "near")?;
    let vip = format!(
        "{}:80",
        service["spec"]["clusterIP"].as_str().context("clusterIP")?
    );
    let answer = attempt(mesh, &certificate, Some(&vip))?;
    ensure!(
        !answer.got_through(),
        "a service's address at a pod: {answer:?}"
    );
    Ok(())
}

fn illegal_ports(mesh: &Mesh) -> Result<()> {
    let certificate =
        Signer::of_mesh(mesh)?.certificate(&identity("shop", "client")?, Flaw::None)?;
    let address = mesh.pod("server.shop")?.address(false)?.to_owned();
    for port in ["15001", "15006", "15008"] {
        let answer = attempt(mesh, &certificate, Some(&format!("{address}:{port}")))?;
        ensure!(
            answer == Answer::Status(503, Vec::new()),
            "{port}: {answer:?}"
        );
    }
    let answer = attempt(mesh, &certificate, Some(&address))?;
    ensure!(
        !answer.got_through(),
        "an authority without a port: {answer:?}"
    );
    Ok(())
}

fn malformed_http2(mesh: &Mesh) -> Result<()> {
    let certificate =
        Signer::of_mesh(mesh)?.certificate(&identity("shop", "client")?, Flaw::None)?;
    let target = target(mesh)?;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    // A frame longer than was ever agreed, HEADERS on stream 0, random bytes.
    let too_long = [preface, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let stream_0 = [
        preface,
        &[0, 0, 0, 4, 0, 0, 0, 0, 0],
        &[0, 0, 1, 1, 4, 0, 0, 0, 0, 0x82],
    ]
    .concat();
    let noise: Vec<u8> = (0..4096_u32)
        .map(|at| u8::try_from(at * 7919 % 251).unwrap_or(0))
        .collect();
    for bytes in [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        too_long,
        stream_0,
        noise,
    ] {
        let attempt = Attempt {
            certificate: &certificate,
            server: &target.server,
            tunnel: target.tunnel,
            authority: &target.application,
        };
        peer::send_garbage(&target.namespace, &attempt, &bytes)?;
    }
    Ok(())
}

fn plain_bytes_at_the_tunnel_port(mesh: &Mesh) -> Result<()> {
    let url = format!("http://{}/", target(mesh)?.tunnel);
    counted(mesh, "not_tls", || {
        let said = mesh
            .exec(FROM, &["curl", "-sS", "--max-time", "10", &url])?
            .failed()?;
        ensure!(said.out.is_empty(), "answered in plain text: {said}");
        Ok(())
    })
}

const STRICT: &str = "
apiVersion: policy.culvert.dev/v1alpha1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec:
  mtls: {mode: STRICT}
";

fn plaintext_to_strict(mesh: &Mesh) -> Result<()> {
    mesh.manifests().write("strict.yaml", STRICT)?;
    wait_until("refusal of plaintext", LIMIT, || {
        Ok(!mesh
            .testkit(FROM, &["talk", "server.shop:80", "--limit", "5"])?
            .status
            .success())
    })?;
    // HTTP gets an answer that says why; a tunnel still works.
    let said = mesh.exec(
        FROM,
        &[
            "curl",
            "-sS",
            "-i",
            "--max-time",
            "10",
            "http://server.shop/",
        ],
    )?;
    ensure!(
        said.text().contains("403"),
        "HTTP in plain text was not told: {said}"
    );
    mesh.testkit("client.shop", &["talk", "server.shop:80"])?
        .succeeded()?;
    mesh.manifests().remove("strict.yaml")?;
    wait_until("plaintext again", LIMIT, || {
        Ok(mesh
            .testkit(FROM, &["talk", "server.shop:80", "--limit", "5"])?
            .status
            .success())
    })
}

/// The client believes that it speaks to `server`; somebody else with a good
/// certificate of the mesh listens on that address.
fn certificate_of_another_workload(mesh: &Mesh) -> Result<()> {
    let certificate =
        Signer::of_mesh(mesh)?.certificate(&identity("shop", "client")?, Flaw::None)?;
    let target = target(mesh)?;
    let wrong = identity("shop", "other")?;
    let attempt = Attempt {
        certificate: &certificate,
        server: &wrong,
        tunnel: target.tunnel,
        authority: &target.application,
    };
    let answer = peer::attempt(&target.namespace, &attempt)?;
    ensure!(matches!(answer, Answer::Closed(_)), "answered {answer:?}");
    Ok(())
}

/// The node proxy of one node asks the CA, with its own good token, for an
/// identity that runs on the other node only.
fn token_of_another_node(mesh: &Mesh) -> Result<()> {
    let here = authority::ask_with_token_of(mesh, "node-1", &identity("shop", "client")?)?;
    here.context("the CA refuses an identity of the caller's own node")?;
    let elsewhere = authority::ask_with_token_of(mesh, "node-1", &identity("shop", "server")?)?;
    ensure!(
        elsewhere.is_err(),
        "the CA signed an identity of another node"
    );
    let nonsense = authority::ask(mesh, "node-1", "a.b.c", &identity("shop", "client")?)?;
    ensure!(nonsense.is_err(), "the CA signed for a token that is none");
    wait_until("the refusal in the CA's log and metrics", LIMIT, || {
        Ok(mesh.log("ca").contains("ns/shop/sa/server")
            && mesh.metrics("ca")?.text().contains("refus"))
    })
}

fn nothing_died(mesh: &Mesh) -> Result<()> {
    for part in [
        Part::NodeProxy("node-1"),
        Part::NodeProxy("node-2"),
        Part::Ca,
        Part::Discovery,
    ] {
        let process = mesh.process(part)?;
        ensure!(process.is_alive(), "{part:?} has ended");
    }
    for node in ["node-proxy/node-1", "node-proxy/node-2"] {
        let panics = mesh
            .metrics(node)?
            .sum("culvert_connection_panics_total", &[]);
        ensure!(panics.abs() < 0.5, "{node}: {panics} connections panicked");
    }
    mesh.testkit("client.shop", &["talk", "server.shop:80"])?
        .succeeded()
        .map(drop)
}
