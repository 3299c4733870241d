//! The objects directory as a source: level-based, and never forgetting on a doubt.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use culvert_cni::objects::{DirectorySource, ObjectSource};
use culvert_cni::pods::Objects;
use serde_json::json;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

async fn next(source: &mut DirectorySource) -> Arc<Objects> {
    timeout(PATIENCE, source.next())
        .await
        .expect("a change is seen")
        .expect("readable")
}

fn write(directory: &Path, file: &str, text: &str) {
    let path = directory.join(file);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
    let draft = path.with_extension("new");
    std::fs::write(&draft, text).expect("written");
    std::fs::rename(&draft, &path).expect("renamed");
}

fn pod(uid: &str, node: &str, label: Option<&str>) -> String {
    let labels = label.map_or(json!({}), |value| json!({"culvert.dev/mesh": value}));
    json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "shop", "labels": labels},
        "spec": {"nodeName": node},
    })
    .to_string()
}

#[tokio::test]
async fn changes_are_seen_and_a_broken_file_forgets_nobody() {
    let root = tempfile::tempdir().expect("directory");
    let directory = root.path().join("objects");
    let mut source = DirectorySource::open(&directory, "n1", true).expect("watched");
    // Nothing is known while there is no directory.
    let early = timeout(Duration::from_millis(100), source.next()).await;
    assert!(early.is_err(), "{early:?}");

    write(&directory, "Pod/shop.a.json", &pod("a", "n1", None));
    write(&directory, "Pod/shop.b.json", &pod("b", "n2", None));
    let namespace = json!({"metadata": {"name": "shop"}}).to_string();
    write(&directory, "Namespace/_.shop.json", &namespace);
    let mut objects = next(&mut source).await;
    while objects.namespaces.is_empty() || objects.pods.is_empty() {
        objects = next(&mut source).await;
    }
    let uids: Vec<&str> = objects.pods.keys().map(|uid| &**uid).collect();
    assert_eq!(uids, ["a"], "pods of this node only");
    assert_eq!(objects.namespaces["shop"], None);

    write(
        &directory,
        "Pod/shop.a.json",
        &pod("a", "n1", Some("enabled")),
    );
    let objects = next(&mut source).await;
    assert_eq!(objects.pods["a"].label.as_deref(), Some("enabled"));

    write(&directory, "Pod/shop.a.json", "{ half of");
    write(&directory, "Pod/shop.c.json", &pod("c", "n1", None));
    let objects = next(&mut source).await;
    assert_eq!(objects.pods.len(), 2, "what was known stays known");

    std::fs::remove_file(directory.join("Pod/shop.a.json")).expect("removed");
    let objects = next(&mut source).await;
    let uids: Vec<&str> = objects.pods.keys().map(|uid| &**uid).collect();
    assert_eq!(uids, ["c"]);

    // The directory disappears and comes back with the same content: no change.
    std::fs::rename(&directory, root.path().join("elsewhere")).expect("moved");
    let gone = timeout(Duration::from_millis(100), source.next()).await;
    assert!(gone.is_err(), "{gone:?}");
    std::fs::rename(root.path().join("elsewhere"), &directory).expect("moved back");
    write(&directory, "Pod/shop.d.json", &pod("d", "n1", None));
    let objects = next(&mut source).await;
    assert_eq!(objects.pods.len(), 2);
}

#[tokio::test]
async fn dns_can_be_off_for_the_node() {
    let root = tempfile::tempdir().expect("directory");
    write(root.path(), "Pod/shop.a.json", &pod("a", "n1", None));
    let mut source = DirectorySource::open(root.path(), "n1", false).expect("watched");
    assert!(!next(&mut source).await.pods["a"].rules.dns);
}
