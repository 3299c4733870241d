use std::{sync::Arc, time::Duration};

use culvert_runtime::Metrics;

use super::*;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600 + seconds)
}

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        kind: Kind::NetworkPolicy,
        namespace: "shop".into(),
        name: Arc::from(name),
    }
}

fn status(holds: bool, message: &str) -> ObjectStatus {
    ObjectStatus {
        generation: Some(3),
        shape: StatusShape::Plain(vec![Condition {
            kind: "Accepted",
            holds,
            reason: "Why",
            message: message.to_owned(),
        }]),
    }
}

fn writer(directory: &Path) -> StatusWriter {
    StatusWriter::new(
        directory.to_path_buf(),
        DiscoveryMetrics::new(&Metrics::new()),
    )
}

fn condition(directory: &Path) -> Value {
    let file = directory.join("NetworkPolicy/shop.a.json");
    let value: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    value["status"]["conditions"][0].clone()
}

#[test]
fn times_change_only_when_the_status_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let write = |writer: &mut StatusWriter, status: ObjectStatus, now| {
        writer.write(&BTreeMap::from([(key("a"), status)]), at(now));
    };
    let mut first = writer(path);
    write(&mut first, status(true, "x"), 0);
    assert_eq!(
        condition(path),
        json!({"type": "Accepted", "status": "True", "observedGeneration": 3,
            "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Why", "message": "x"})
    );
    write(&mut first, status(true, "y"), 10);
    assert_eq!(condition(path)["message"], "y");
    assert_eq!(
        condition(path)["lastTransitionTime"],
        "2026-01-01T00:00:00Z"
    );
    write(&mut first, status(false, "y"), 20);
    assert_eq!(
        condition(path)["lastTransitionTime"],
        "2026-01-01T00:00:20Z"
    );
    // Another process takes over.
    let inode = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path.join("NetworkPolicy/shop.a.json"))
            .unwrap()
            .ino()
    };
    let before = inode(path);
    write(&mut writer(path), status(false, "y"), 30);
    assert_eq!(
        condition(path)["lastTransitionTime"],
        "2026-01-01T00:00:20Z"
    );
    assert_eq!(inode(path), before, "not written again");
}

#[test]
fn files_go_with_their_objects() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let both = BTreeMap::from([(key("a"), status(true, "")), (key("b"), status(true, ""))]);
    let only = BTreeMap::from([(key("a"), status(true, ""))]);
    let names = || {
        let entries = fs::read_dir(path.join("NetworkPolicy")).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    };
    let mut first = writer(path);
    first.write(&both, at(0));
    assert_eq!(names(), ["shop.a.json", "shop.b.json"]);
    first.write(&only, at(0));
    assert_eq!(names(), ["shop.a.json"]);
    first.write(&both, at(0));
    fs::write(path.join("NetworkPolicy/mine.json"), "{}").unwrap();
    writer(path).write(&only, at(0));
    assert_eq!(names(), ["mine.json", "shop.a.json"], "only what we wrote");
}

#[test]
fn what_cannot_be_written_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("NetworkPolicy"), "in the way").unwrap();
    let only = BTreeMap::from([(key("a"), status(true, "x"))]);
    let mut writer = writer(path);
    writer.write(&only, at(0));
    fs::remove_file(path.join("NetworkPolicy")).unwrap();
    writer.write(&only, at(0));
    assert_eq!(condition(path)["message"], "x");
}
