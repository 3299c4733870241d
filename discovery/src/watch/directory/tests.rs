use std::fs;

use super::*;

/// Runs a source on `directory` beside `body`, which gets its batches.
async fn with_source<F: Future<Output = ()>>(
    directory: PathBuf,
    body: impl FnOnce(mpsc::Receiver<Batch>) -> F,
) {
    let (sender, receiver) = mpsc::channel(1);
    let source = DirectorySource::new(vec![directory]);
    tokio::select! {
        () = source.run(sender) => panic!("source ended"),
        () = body(receiver) => {}
    }
}

async fn next(batches: &mut mpsc::Receiver<Batch>) -> Batch {
    let deadline = Duration::from_secs(10);
    let batch = tokio::time::timeout(deadline, batches.recv()).await;
    batch.expect("a batch in time").expect("a running source")
}

/// The names of the events up to and with `last`.
async fn until(batches: &mut mpsc::Receiver<Batch>, last: &str) {
    loop {
        let batch = next(batches).await;
        let name = |event: &Event| match event {
            Event::Upsert(object) => format!("upsert {}", object.name()),
            Event::Broken { key, .. } => format!("broken {}", key.name),
            Event::Delete(key) => format!("delete {}", key.name),
        };
        if batch.events.iter().any(|event| name(event) == last) {
            return;
        }
    }
}

fn namespace(name: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
}

#[tokio::test]
async fn edits_in_new_directories_and_renames_are_seen() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_path_buf();
    with_source(root.clone(), |mut batches| async move {
        let first = next(&mut batches).await;
        assert!(first.synced && first.events.is_empty());
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/one.yaml"), namespace("one")).unwrap();
        until(&mut batches, "upsert one").await;
        fs::write(root.join("a/.two.tmp"), namespace("two")).unwrap();
        fs::rename(root.join("a/.two.tmp"), root.join("a/two.yaml")).unwrap();
        until(&mut batches, "upsert two").await;
        fs::write(root.join("a/two.yaml"), "kind: [").unwrap();
        until(&mut batches, "broken two").await;
        fs::remove_file(root.join("a/b/one.yaml")).unwrap();
        until(&mut batches, "delete one").await;
        fs::rename(root.join("a"), root.join(".hidden")).unwrap();
        until(&mut batches, "delete two").await;
    })
    .await;
}

#[tokio::test]
async fn a_missing_directory_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("later");
    with_source(root.clone(), |mut batches| async move {
        let first = next(&mut batches).await;
        assert!(!first.synced);
        assert!(first.faults[0].contains("later: cannot be read"));
        fs::create_dir(&root).unwrap();
        fs::write(root.join("a.yaml"), namespace("a")).unwrap();
        loop {
            let batch = next(&mut batches).await;
            if batch.synced && !batch.events.is_empty() {
                break;
            }
        }
    })
    .await;
}
