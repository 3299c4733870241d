//! The directory of the user's objects: read, checked, brought into the world, and
//! watched for edits.
//!
//! An object whose file cannot be read any more stays as it was: a slip of the
//! editor must not stop a service. An object that is gone from a good file goes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_kubeyaml::{Kind, Limits, Loaded};
use futures_util::StreamExt;
use inotify::{Inotify, WatchMask};
use serde_json::Value;
use tokio::sync::watch;

use super::defaults::admit;
use super::kubelet::images::{self, Images};
use super::object::{Key, is_terminating};
use super::settings::Settings;
use super::world::{Action, Store};

/// The directory is looked at this often even when the kernel reports nothing.
const POLL: Duration = Duration::from_secs(1);
/// An edit counts as finished when nothing has changed for this long.
const QUIET: Duration = Duration::from_millis(100);

/// What a person should know about the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Findings {
    /// What could not be used, with file, line, object and field.
    pub errors: Vec<String>,
    /// What was used, but may be meant otherwise.
    pub warnings: Vec<String>,
    /// Objects that are shown, but that the engine does nothing about.
    pub kept: Vec<String>,
    /// Objects of kinds that the engine does not know.
    pub unknown: Vec<String>,
    /// How many objects are good.
    pub objects: usize,
}

/// A directory as it was read.
#[derive(Debug)]
pub(crate) struct Reading {
    objects: BTreeMap<Key, (Value, PathBuf)>,
    broken_files: BTreeSet<PathBuf>,
    /// What images run, if `images.yaml` can be read.
    pub images: Option<Images>,
    /// What to tell.
    pub findings: Findings,
}

/// Reads a directory.
pub(crate) fn read(settings: &Settings) -> Reading {
    let limits = Limits {
        ignored_names: vec![images::FILE.to_owned()],
        ..Limits::default()
    };
    let loaded = culvert_kubeyaml::load_dir_within(&settings.directory, &limits);
    let mut findings = findings(&loaded);
    let images = match Images::read(&settings.directory, &settings.images) {
        Ok(images) => Some(images),
        Err(error) => {
            findings.errors.push(error.to_string());
            None
        }
    };
    let broken = loaded
        .errors()
        .map(|fault| fault.location.file.to_path_buf())
        .collect();
    let objects = loaded.objects.iter().map(|object| {
        let value = object.to_json();
        (Key::of(&value), (value, object.source.file.to_path_buf()))
    });
    Reading {
        objects: objects.collect(),
        broken_files: broken,
        images,
        findings,
    }
}

fn findings(loaded: &Loaded) -> Findings {
    Findings {
        errors: loaded.errors().map(ToString::to_string).collect(),
        warnings: loaded.warnings().map(ToString::to_string).collect(),
        kept: loaded
            .objects
            .iter()
            .filter(|object| object.kind() == Kind::CronJob)
            .map(|object| format!("{}: {}", object.source, object.reference()))
            .collect(),
        unknown: loaded
            .unknown
            .iter()
            .map(|one| format!("{}: {}", one.source, one.object))
            .collect(),
        objects: loaded.objects.len(),
    }
}

/// Brings readings into the world.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// What was brought in, as it stood in the files.
    applied: BTreeMap<Key, (Value, PathBuf)>,
}

impl Source {
    /// Applies what changed since the last reading. Answers with whether something
    /// has to wait: a pod of another specification cannot come before the old one
    /// has gone.
    pub(crate) fn apply(&mut self, store: &Store, reading: &Reading) -> bool {
        let world = store.snapshot();
        let mut actions = Vec::new();
        let mut waiting = false;
        for (key, (value, file)) in &reading.objects {
            if is_reserved(key)
                || self
                    .applied
                    .get(key)
                    .is_some_and(|(applied, _)| applied == value)
            {
                continue;
            }
            let before = world.object(key);
            let blocked = match (key.kind.as_str(), before, self.applied.get(key)) {
                ("Pod", Some(pod), _) if is_terminating(pod) => true,
                ("Pod", Some(_), Some((old, _))) if old.get("spec") != value.get("spec") => {
                    actions.push(Action::Delete(key.clone()));
                    true
                }
                _ => false,
            };
            if blocked {
                waiting = true;
                continue;
            }
            let mut admitted = value.clone();
            if key.kind == "Node" {
                admitted = merge_node(before.map(|node| &**node), value);
            } else {
                admit(&mut admitted, before.map(|object| &**object));
                keep_pod_state(&mut admitted, before.map(|object| &**object));
            }
            actions.push(Action::Put(admitted));
            self.applied
                .insert(key.clone(), (value.clone(), file.clone()));
        }
        let gone: Vec<Key> = self
            .applied
            .iter()
            .filter(|(key, (_, file))| {
                !reading.objects.contains_key(key) && !reading.broken_files.contains(file)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.applied.remove(&key);
            if key.kind != "Node" {
                actions.push(Action::Delete(key));
            }
        }
        store.apply(actions);
        waiting
    }
}

/// A pod's labels and annotations may change while it runs; its place, its status
/// and what the mesh wrote on it stay.
fn keep_pod_state(object: &mut Value, before: Option<&Value>) {
    let Some(before) = before.filter(|before| before["kind"] == "Pod") else {
        return;
    };
    if let Some(node) = before.pointer("/spec/nodeName") {
        super::object::set_default(object, &["spec", "nodeName"], node.clone());
    }
    let annotations = before
        .pointer("/metadata/annotations")
        .and_then(Value::as_object);
    let of_mesh = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.as_str() == super::enrollment::ENROLLED);
    for (key, value) in of_mesh {
        super::object::set_default(object, &["metadata", "annotations", key], value.clone());
    }
}

/// A Node in the directory gives labels and annotations to the engine's own.
fn merge_node(before: Option<&Value>, given: &Value) -> Value {
    let Some(before) = before else {
        return given.clone();
    };
    let mut node = before.clone();
    for part in ["labels", "annotations"] {
        let all = given
            .pointer(&format!("/metadata/{part}"))
            .and_then(Value::as_object);
        for (key, value) in all.into_iter().flatten() {
            super::object::set(&mut node, &["metadata", part, key], value.clone());
        }
    }
    node
}

/// Objects of the engine itself.
fn is_reserved(key: &Key) -> bool {
    matches!(
        (key.kind.as_str(), key.namespace.as_str(), key.name.as_str()),
        ("Service", "kube-system", "kube-dns") | ("ConfigMap", "kube-system", "culvert-cluster")
    ) || matches!(key.kind.as_str(), "Lease")
}

/// Follows the directory for good.
pub(crate) async fn follow(
    settings: Settings,
    mut source: Source,
    store: Store,
    images: watch::Sender<Images>,
    findings: watch::Sender<Findings>,
) {
    let mut seen = signature(&settings.directory);
    let mut waiting = false;
    let mut watcher = Watcher::new(&settings.directory);
    loop {
        watcher.changed().await;
        let now = signature(&settings.directory);
        if now == seen && !waiting {
            continue;
        }
        seen = settled(&settings.directory, now).await;
        if !settings.directory.is_dir() {
            // Moved or unmounted: not what a person means by removing every object.
            let gone = format!("{}: the directory is gone", settings.directory.display());
            tracing::warn!("{gone}; all objects stay as they were");
            findings.send_modify(|held| held.errors = vec![gone]);
            continue;
        }
        watcher = Watcher::new(&settings.directory);
        let reading = read(&settings);
        if let Some(new) = &reading.images {
            images.send_if_modified(|held| {
                let changed = held != new;
                held.clone_from(new);
                changed
            });
        }
        for error in &reading.findings.errors {
            tracing::warn!(error, "object left as it was");
        }
        waiting = source.apply(&store, &reading);
        findings.send_replace(reading.findings);
    }
}

/// Files below a directory with what tells that they changed.
type Signature = BTreeMap<PathBuf, (u64, Option<std::time::SystemTime>)>;

fn signature(directory: &Path) -> Signature {
    let (files, _) = culvert_kubeyaml::list_files(directory, &Limits::default());
    files
        .into_iter()
        .filter_map(|file| {
            let meta = std::fs::metadata(&file).ok()?;
            Some((file, (meta.len(), meta.modified().ok())))
        })
        .collect()
}

/// Waits until an editor has finished writing.
async fn settled(directory: &Path, mut seen: Signature) -> Signature {
    // A file that is written to without end must not keep everything else waiting.
    for _ in 0..20 {
        tokio::time::sleep(QUIET).await;
        let now = signature(directory);
        if now == seen {
            break;
        }
        seen = now;
    }
    seen
}

/// Reports changes of a directory tree; without inotify only the clock does.
#[derive(Debug)]
struct Watcher {
    events: Option<inotify::EventStream<[u8; 4096]>>,
}

impl Watcher {
    fn new(directory: &Path) -> Self {
        let open = || -> std::io::Result<_> {
            let inotify = Inotify::init()?;
            let mask = WatchMask::CLOSE_WRITE
                | WatchMask::CREATE
                | WatchMask::DELETE
                | WatchMask::MOVE
                | WatchMask::MODIFY;
            inotify.watches().add(directory, mask)?;
            for entry in directories(directory, 16) {
                inotify.watches().add(entry, mask)?;
            }
            inotify.into_event_stream([0; 4096])
        };
        Self {
            events: open().ok(),
        }
    }

    /// Waits for an event or the next look.
    async fn changed(&mut self) {
        let event = async {
            match &mut self.events {
                Some(events) => drop(events.next().await),
                None => std::future::pending().await,
            }
        };
        let _ = tokio::time::timeout(POLL, event).await;
    }
}

fn directories(root: &Path, depth: usize) -> Vec<PathBuf> {
    if depth == 0 {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir(root) else {
        return Vec::new();
    };
    let below = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir());
    below
        .flat_map(|path| std::iter::once(path.clone()).chain(directories(&path, depth - 1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Bench {
        directory: tempfile::TempDir,
        store: Store,
        source: Source,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("directory");
            std::fs::create_dir(directory.path().join("in")).expect("directory");
            let store = Store::new(directory.path().join("objects"));
            Self {
                directory,
                store,
                source: Source::default(),
            }
        }

        fn write(&self, file: &str, content: &str) {
            std::fs::write(self.directory.path().join("in").join(file), content).expect("written");
        }

        fn read(&mut self) -> Findings {
            let settings = Settings {
                directory: self.directory.path().join("in"),
                nodes: 1,
                mesh_enabled: false,
                egress: false,
                bin_dir: PathBuf::new(),
                search_path: String::new(),
                images: BTreeMap::new(),
                values: BTreeMap::new(),
            };
            let reading = read(&settings);
            self.source.apply(&self.store, &reading);
            reading.findings
        }

        fn object(&self, kind: &str, name: &str) -> Option<super::super::object::Object> {
            self.store.object(&Key::new(kind, "shop", name))
        }
    }

    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                           spec: {selector: {app: web}, ports: [{port: 80}]}\n";

    fn pod(image: &str, label: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop, labels: {{a: {label}}}}}\n\
             spec: {{containers: [{{name: c, image: {image}, command: [x]}}]}}\n"
        )
    }

    #[test]
    fn a_broken_object_does_not_keep_the_others_away() {
        let mut bench = Bench::new();
        bench.write("a.yaml", &format!("{SERVICE}---\napiVersion: v1\nkind: Service\nmetadata: {{name: bad, namespace: shop}}\nspec: {{ports: [{{port: nope}}]}}\n"));
        let findings = bench.read();
        assert!(bench.object("Service", "web").is_some());
        assert!(bench.object("Service", "bad").is_none());
        assert_eq!(findings.errors.len(), 1);
        assert!(
            findings.errors[0].contains("a.yaml:") && findings.errors[0].contains("port"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_file_that_breaks_keeps_its_objects_and_a_removed_one_takes_them() {
        let mut bench = Bench::new();
        bench.write("a.yaml", SERVICE);
        bench.read();
        bench.write("a.yaml", "apiVersion: v1\nkind: [broken");
        assert_eq!(bench.read().errors.len(), 1);
        assert!(bench.object("Service", "web").is_some());
        bench.write("a.yaml", "");
        bench.read();
        assert!(bench.object("Service", "web").is_none());
    }

    #[test]
    fn a_scaled_object_stays_scaled_until_it_is_edited() {
        let mut bench = Bench::new();
        let text = |replicas: u32, label: &str| {
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: shop, labels: {{v: {label}}}}}\n\
                     spec: {{replicas: {replicas}, selector: {{matchLabels: {{a: b}}}}, template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: c, image: i}}]}}}}}}\n"
            )
        };
        bench.write("a.yaml", &text(2, "one"));
        bench.read();
        let key = Key::new("Deployment", "shop", "web");
        bench.store.modify(&key, |object| {
            super::super::object::set(object, &["spec", "replicas"], json!(5))
        });
        bench.read();
        assert_eq!(
            bench.object("Deployment", "web").expect("there")["spec"]["replicas"],
            json!(5)
        );
        bench.write("a.yaml", &text(3, "two"));
        bench.read();
        assert_eq!(
            bench.object("Deployment", "web").expect("there")["spec"]["replicas"],
            json!(3)
        );
    }

    #[test]
    fn a_pod_keeps_running_when_only_its_labels_change() {
        let mut bench = Bench::new();
        bench.write("a.yaml", &pod("one", "x"));
        bench.read();
        let uid = bench.object("Pod", "web").expect("there")["metadata"]["uid"].clone();
        bench.write("a.yaml", &pod("one", "y"));
        bench.read();
        let now = bench.object("Pod", "web").expect("there");
        assert_eq!(
            (&now["metadata"]["uid"], &now["metadata"]["labels"]["a"]),
            (&uid, &json!("y"))
        );
        bench.write("a.yaml", &pod("two", "y"));
        bench.read();
        assert!(is_terminating(
            &bench.object("Pod", "web").expect("still leaving")
        ));
        bench.store.remove(&Key::new("Pod", "shop", "web"));
        bench.read();
        let now = bench.object("Pod", "web").expect("made anew");
        assert_eq!(now["spec"]["containers"][0]["image"], json!("two"));
    }
}
