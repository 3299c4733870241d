use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn pod(name: &str, node: &str, account: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}")},
        "spec": {"nodeName": node, "serviceAccountName": account, "containers": []},
        "status": {"phase": "Running", "podIP": "10.244.1.2"}
    })
}

fn write(directory: &Path, kind: &str, file: &str, object: &str) {
    let directory = directory.join(kind);
    fs::create_dir_all(&directory).unwrap();
    let aside = directory.join("aside");
    fs::write(&aside, object).unwrap();
    fs::rename(&aside, directory.join(file)).unwrap();
}

fn write_pod(directory: &Path, object: &Value) {
    let name = object["metadata"]["name"].as_str().unwrap();
    write(
        directory,
        "Pod",
        &format!("shop.{name}.json"),
        &object.to_string(),
    );
}

#[test]
fn only_scheduled_pods_that_have_not_ended_count() {
    let parse = |object: &Value| Pod::parse(object.to_string().as_bytes()).unwrap();
    assert!(parse(&pod("web", "node-1", "web")).is_some());
    for phase in ["Succeeded", "Failed"] {
        let mut ended = pod("web", "node-1", "web");
        ended["status"]["phase"] = json!(phase);
        assert_eq!(parse(&ended), None);
    }
    let mut pending = pod("web", "node-1", "web");
    pending["status"] = json!({"phase": "Pending"});
    assert!(parse(&pending).is_some());
    pending["spec"]["nodeName"] = json!("");
    assert_eq!(parse(&pending), None);
    pending["spec"].as_object_mut().unwrap().remove("nodeName");
    assert_eq!(parse(&pending), None);
    let mut plain = pod("web", "node-1", "web");
    plain["spec"]
        .as_object_mut()
        .unwrap()
        .remove("serviceAccountName");
    plain["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("namespace");
    let parsed = parse(&plain).unwrap();
    assert_eq!(
        (parsed.namespace.as_str(), parsed.service_account.as_str()),
        ("default", "default")
    );
    assert!(Pod::parse(b"[]").is_err());
}

#[tokio::test]
async fn the_directory_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let pods = DirectoryPods::new(directory.path());
    let runs = async |node: &str, account: &str| {
        let placement = pods.placement(Duration::ZERO).await.unwrap();
        placement.runs(node, "shop", account)
    };
    assert!(!runs("node-1", "web").await);
    write_pod(directory.path(), &pod("web", "node-1", "web"));
    let node = json!({"metadata": {"name": "node-1", "uid": "n1"}}).to_string();
    write(directory.path(), "Node", "_.node-1.json", &node);
    assert!(runs("node-1", "web").await);
    assert!(!runs("node-2", "web").await);
    assert!(!runs("node-1", "api").await);
    let placement = pods.placement(Duration::ZERO).await.unwrap();
    assert_eq!(placement.node_uid("node-1"), Some("n1"));
    assert_eq!(placement.pod("shop", "web").unwrap().uid, "uid-web");
    // Moved, by a rewrite of the same length.
    write_pod(directory.path(), &pod("web", "node-2", "web"));
    assert!(!runs("node-1", "web").await && runs("node-2", "web").await);
    fs::remove_file(directory.path().join("Pod/shop.web.json")).unwrap();
    assert!(!runs("node-2", "web").await);
}

#[tokio::test]
async fn one_broken_object_hides_no_other() {
    let directory = tempfile::tempdir().unwrap();
    write(
        directory.path(),
        "Pod",
        "shop.broken.json",
        "{\"metadata\":",
    );
    write(directory.path(), "Pod", "README.md", "not an object");
    write_pod(directory.path(), &pod("web", "node-1", "web"));
    let pods = DirectoryPods::new(directory.path());
    let placement = pods.placement(Duration::ZERO).await.unwrap();
    assert!(placement.runs("node-1", "shop", "web"));
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_an_error() {
    let pods = DirectoryPods::new("/nowhere/objects");
    let refused = pods.placement(Duration::ZERO).await;
    assert!(matches!(refused, Err(PodsError::Read { .. })));
}

#[tokio::test]
async fn a_look_that_is_young_enough_is_shared() {
    let directory = tempfile::tempdir().unwrap();
    let pods = DirectoryPods::new(directory.path());
    let first = pods.placement(Duration::ZERO).await.unwrap();
    write_pod(directory.path(), &pod("web", "node-1", "web"));
    let hour = Duration::from_secs(3600);
    let shared = pods.placement(hour).await.unwrap();
    assert!(Arc::ptr_eq(&first, &shared));
    let fresh = pods.placement(Duration::ZERO).await.unwrap();
    assert!(fresh.runs("node-1", "shop", "web"));
    // Nothing changed: the same index again.
    let same = pods.placement(Duration::ZERO).await.unwrap();
    assert!(Arc::ptr_eq(&fresh, &same));
}
