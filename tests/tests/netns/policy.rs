//! Policy on running traffic: a change closes exactly what it now denies, and a
//! denial says who, whom and why.

use std::path::Path;

use anyhow::{Result, ensure};
use culvert_tests::harness::command::Running;
use culvert_tests::harness::mesh::{LIMIT, Mesh};
use culvert_tests::harness::runner::Test;
use culvert_tests::harness::wait::{holds_for, wait_until};

pub(crate) const TESTS: &[Test<Mesh>] = &[
    (
        "a_change_closes_exactly_the_denied_connections",
        a_change_closes_exactly_the_denied,
    ),
    (
        "a_denial_names_policy_and_identities",
        a_denial_names_policy_and_identities,
    ),
    ("http_is_told_why", http_is_told_why),
    (
        "dry_run_denies_nothing_and_says_so",
        dry_run_denies_nothing_and_says_so,
    ),
    (
        "network_policy_is_enforced_inside_tunnels",
        network_policy_is_enforced_inside_tunnels,
    ),
    (
        "network_policy_egress_is_enforced",
        network_policy_egress_is_enforced,
    ),
    (
        "an_unusable_policy_says_so_in_its_status",
        an_unusable_policy_says_so_in_its_status,
    ),
];

fn deny(name: &str, account: &str) -> String {
    format!(
        "apiVersion: policy.culvert.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: server}}}}
  action: DENY
  rules:
    - from: [{{source: {{principals: [\"cluster.local/ns/shop/sa/{account}\"]}}}}]
      to: [{{operation: {{ports: [\"9000\"]}}}}]
"
    )
}

/// A connection that stays open until its file appears or it is cut.
fn hold(mesh: &Mesh, pod: &str, target: &str, stop: &Path) -> Result<Running> {
    mesh.start_testkit(pod, &["watch", target, &stop.to_string_lossy()])
}

fn can_talk(mesh: &Mesh, pod: &str, target: &str) -> Result<bool> {
    Ok(mesh
        .testkit(pod, &["talk", target, "--limit", "5"])?
        .status
        .success())
}

fn a_change_closes_exactly_the_denied(mesh: &Mesh) -> Result<()> {
    let stop = mesh.manifests().work()?.join("stop-watching");
    let mut denied = hold(mesh, "client.shop", "server.shop:80", &stop)?;
    let mut same_client_other_port = hold(mesh, "client.shop", "server.shop:81", &stop)?;
    let mut other_client = hold(mesh, "other.shop", "server.shop:80", &stop)?;
    let mut same_node = hold(mesh, "client.shop", "near.shop:80", &stop)?;
    wait_until("four connections", LIMIT, || {
        Ok(std::fs::read_dir(mesh.manifests().work()?)?
            .filter(|entry| {
                entry.as_ref().is_ok_and(|entry| {
                    entry
                        .file_name()
                        .to_string_lossy()
                        .starts_with("stop-watching.open")
                })
            })
            .count()
            == 4)
    })?;
    mesh.manifests()
        .write("deny-client.yaml", &deny("deny-client", "client"))?;
    wait_until("end of the denied connection", LIMIT, || denied.has_ended())?;
    holds_for(
        "the other connections",
        std::time::Duration::from_secs(3),
        || {
            Ok(!same_client_other_port.has_ended()?
                && !other_client.has_ended()?
                && !same_node.has_ended()?)
        },
    )?;
    ensure!(
        !can_talk(mesh, "client.shop", "server.shop:80")?,
        "a new connection got through"
    );
    ensure!(
        can_talk(mesh, "other.shop", "server.shop:80")?,
        "the other client is denied too"
    );
    std::fs::write(&stop, "")?;
    for held in [same_client_other_port, other_client, same_node] {
        held.wait(LIMIT)?.succeeded()?;
    }
    mesh.manifests().remove("deny-client.yaml")?;
    wait_until("the client again", LIMIT, || {
        can_talk(mesh, "client.shop", "server.shop:80")
    })
}

fn with_policy(mesh: &Mesh, text: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    mesh.manifests().write("policy.yaml", text)?;
    let outcome = body();
    mesh.manifests().remove("policy.yaml")?;
    wait_until("traffic without the policy", LIMIT, || {
        can_talk(mesh, "client.shop", "server.shop:80")
    })?;
    outcome
}

fn a_denial_names_policy_and_identities(mesh: &Mesh) -> Result<()> {
    with_policy(mesh, &deny("no-client", "client"), || {
        wait_until("denial", LIMIT, || {
            Ok(!can_talk(mesh, "client.shop", "server.shop:80")?)
        })?;
        wait_until("the denial in the access log", LIMIT, || {
            let log = mesh.log("node-2");
            let told = |line: &str| {
                line.contains("shop/no-client")
                    && line.contains("ns/shop/sa/client")
                    && line.contains("ns/shop/sa/server")
            };
            Ok(log.lines().any(told))
        })?;
        wait_until("the denial in the metrics", LIMIT, || {
            let metrics = mesh.metrics("node-proxy/node-2")?;
            let labels = [("response_flags", "DENY"), ("reporter", "destination")];
            Ok(metrics.sum("istio_tcp_connections_failed_total", &labels) > 0.0)
        })?;
        wait_until("the denial in culvert status", LIMIT, || {
            Ok(mesh
                .culvert(["status", "-o", "json"], LIMIT)?
                .succeeded()?
                .text()
                .contains("no-client"))
        })
    })
}

fn http_is_told_why(mesh: &Mesh) -> Result<()> {
    with_policy(mesh, &deny("no-client", "client"), || {
        wait_until("denial", LIMIT, || {
            Ok(!can_talk(mesh, "client.shop", "server.shop:80")?)
        })?;
        let said = mesh.exec(
            "client.shop",
            &[
                "curl",
                "-sS",
                "-i",
                "--max-time",
                "10",
                "http://server.shop/",
            ],
        )?;
        let text = said.succeeded()?.text();
        ensure!(text.starts_with("HTTP/1.1 403"), "{text}");
        ensure!(
            !text.contains("no-client"),
            "the policy's name left the destination: {text}"
        );
        Ok(())
    })
}

fn dry_run_denies_nothing_and_says_so(mesh: &Mesh) -> Result<()> {
    let text =
        deny("dry", "client").replace("  action: DENY\n", "  action: DENY\n  dryRun: true\n");
    with_policy(mesh, &text, || {
        wait_until("the dry run in the log", LIMIT, || {
            ensure!(
                can_talk(mesh, "client.shop", "server.shop:80")?,
                "a dry run denied"
            );
            Ok(mesh.log("node-2").contains("shop/dry"))
        })
    })
}

fn network_policy_is_enforced_inside_tunnels(mesh: &Mesh) -> Result<()> {
    let text = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-other, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
    - from: [{podSelector: {matchLabels: {app: other}}}]
      ports: [{port: 9000}]
";
    with_policy(mesh, text, || {
        wait_until("denial", LIMIT, || {
            Ok(!can_talk(mesh, "client.shop", "server.shop:80")?)
        })?;
        ensure!(
            can_talk(mesh, "other.shop", "server.shop:80")?,
            "the admitted peer is denied"
        );
        ensure!(
            !can_talk(mesh, "other.shop", "server.shop:81")?,
            "another port is admitted"
        );
        Ok(())
    })
}

fn network_policy_egress_is_enforced(mesh: &Mesh) -> Result<()> {
    let text = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client-out, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
    - to: [{podSelector: {matchLabels: {app: near}}}]
    - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
";
    with_policy(mesh, text, || {
        wait_until("denial", LIMIT, || {
            Ok(!can_talk(mesh, "client.shop", "server.shop:80")?)
        })?;
        ensure!(
            can_talk(mesh, "client.shop", "near.shop:80")?,
            "the admitted peer (same node) is denied"
        );
        ensure!(
            can_talk(mesh, "other.shop", "server.shop:80")?,
            "another pod's egress is denied"
        );
        Ok(())
    })
}

fn an_unusable_policy_says_so_in_its_status(mesh: &Mesh) -> Result<()> {
    let text = "apiVersion: policy.culvert.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: needs-waypoint, namespace: shop}
spec:
  targetRefs: [{group: \"\", kind: Service, name: server}]
  action: ALLOW
  rules:
    - to: [{operation: {methods: [GET]}}]
";
    mesh.manifests().write("policy.yaml", text)?;
    let outcome = wait_until("RequiresWaypoint in the status", LIMIT, || {
        let said = mesh.culvert(
            [
                "get",
                "AuthorizationPolicy/needs-waypoint.shop",
                "-o",
                "yaml",
            ],
            LIMIT,
        )?;
        Ok(said.text().contains("RequiresWaypoint"))
    });
    mesh.manifests().remove("policy.yaml")?;
    outcome
}
