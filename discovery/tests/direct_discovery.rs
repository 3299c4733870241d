//! The whole program in one process: a directory in, a real client over TLS out.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "direct_discovery/harness.rs"]
mod harness;

use std::time::Duration;

use culvert_model::{Health, ServiceName};
use harness::{Mesh, namespace_policy, pod, service};

fn web() -> ServiceName {
    ServiceName::new("shop", "web.shop.svc.cluster.local")
}

#[tokio::test]
async fn edits_reach_the_node_proxies_that_they_concern() {
    let mesh = Mesh::start().await;
    mesh.write("pods/web", &pod("web", "n1", "10.0.0.1"));
    mesh.write(
        "pods/client",
        &pod("client", "n2", "10.0.0.2").replace("namespace: shop", "namespace: else"),
    );
    mesh.write("services", &service("web"));
    mesh.write("policy", &namespace_policy("shop", "deny", "x"));
    let mut one = mesh.client("n1");
    let mut two = mesh.client("n2");
    one.wait_for("web is there", |s| s.endpoints(&web()).len() == 1)
        .await;
    one.wait_for("policy is there", |s| s.policies().count() == 1)
        .await;
    two.wait_for("web is there", |s| s.endpoints(&web()).len() == 1)
        .await;
    assert_eq!(two.snapshot().policies().count(), 0, "none of its business");

    mesh.write("pods/web2", &pod("web2", "n2", "10.0.0.3"));
    one.wait_for("a second endpoint", |s| s.endpoints(&web()).len() == 2)
        .await;
    two.wait_for("policy of the new pod", |s| s.policies().count() == 1)
        .await;
    mesh.write(
        "pods/web",
        &pod("web", "n1", "10.0.0.1").replace("status: 'True'", "status: 'False'"),
    );
    let unready = |s: &culvert_model::Snapshot| {
        let ip = "10.0.0.1".parse().unwrap();
        s.workload_at(ip)
            .is_some_and(|workload| workload.health == Health::Unhealthy)
    };
    one.wait_for("web is not ready", unready).await;
    mesh.remove("pods/web2");
    one.wait_for("one endpoint", |s| s.endpoints(&web()).len() == 1)
        .await;
    two.wait_for("no policy", |s| s.policies().count() == 0)
        .await;
    mesh.stop().await;
}

#[tokio::test]
async fn a_broken_object_keeps_its_last_good_form_and_says_so() {
    let mesh = Mesh::start().await;
    mesh.write("pods/web", &pod("web", "n1", "10.0.0.1"));
    mesh.write("policy", &namespace_policy("shop", "deny", "x"));
    let mut one = mesh.client("n1");
    one.wait_for("policy is there", |s| s.policies().count() == 1)
        .await;
    mesh.wait_for_status(
        "AuthorizationPolicy/shop.deny.json",
        "\"reason\": \"Enforced\"",
    )
    .await;
    // The first cannot even be typed, the second not be meant.
    for (broken, field) in [
        (
            namespace_policy("shop", "deny", "x").replace("namespaces:", "namespace:"),
            "did you mean namespaces?",
        ),
        (
            namespace_policy("shop", "deny", "x").replace("namespaces: [x]", "ipBlocks: [x]"),
            "ipBlocks[0]",
        ),
    ] {
        mesh.write("policy", &broken);
        mesh.wait_for_status("AuthorizationPolicy/shop.deny.json", field)
            .await;
        mesh.write(
            "services",
            &service(if field.starts_with("ip") {
                "second"
            } else {
                "first"
            }),
        );
        let count = usize::from(field.starts_with("ip"));
        one.wait_for("the rest goes on", |s| {
            s.services()
                .any(|service| *service.short_name == *["first", "second"][count])
        })
        .await;
        assert_eq!(one.snapshot().policies().count(), 1, "{field}");
    }
    mesh.remove("policy");
    one.wait_for("policy is gone", |s| s.policies().count() == 0)
        .await;
    mesh.wait_for_no_status("AuthorizationPolicy/shop.deny.json")
        .await;
    mesh.stop().await;
}

#[tokio::test]
async fn strangers_get_nothing() {
    let mesh = Mesh::start().await;
    mesh.write("pods/web", &pod("web", "n1", "10.0.0.1"));
    mesh.client("n1")
        .wait_for("web is there", |s| s.workloads().count() == 1)
        .await;
    for (what, token) in [
        ("no token", None),
        (
            "another audience",
            Some(mesh.token("culvert-node-proxy", Some("n1"), "culvert-ca")),
        ),
        (
            "another account",
            Some(mesh.token("default", Some("n1"), "culvert-discovery")),
        ),
        (
            "another node",
            Some(mesh.token("culvert-node-proxy", Some("n2"), "culvert-discovery")),
        ),
        (
            "no node",
            Some(mesh.token("culvert-node-proxy", None, "culvert-discovery")),
        ),
        ("garbage", Some("x.y.z".to_owned())),
    ] {
        let status = mesh.call("n1", token).await;
        let refused = [tonic::Code::Unauthenticated, tonic::Code::PermissionDenied];
        assert!(refused.contains(&status.code()), "{what}: {status:?}");
    }
    mesh.stop().await;
}

#[tokio::test]
async fn a_node_whose_lease_ends_loses_its_endpoints() {
    let mesh = Mesh::start().await;
    mesh.write("pods/web", &pod("web", "n1", "10.0.0.1"));
    mesh.write_lease("n1", Duration::from_secs(2));
    let mut two = mesh.client("n2");
    let health =
        |s: &culvert_model::Snapshot| s.workload_at("10.0.0.1".parse().unwrap()).map(|w| w.health);
    two.wait_for("healthy", |s| health(s) == Some(Health::Healthy))
        .await;
    two.wait_for("unhealthy", |s| health(s) == Some(Health::Unhealthy))
        .await;
    mesh.write_lease("n1", Duration::from_secs(60));
    two.wait_for("healthy again", |s| health(s) == Some(Health::Healthy))
        .await;
    mesh.stop().await;
}
