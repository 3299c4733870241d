//! The state of the one-machine cluster: all objects, in memory and mirrored to the
//! `objects/` directory that discovery, CA, CNI agents and DNS read.
//!
//! [`World`] is a value; controllers read a snapshot of it and answer with
//! [`Action`]s. [`Store`] holds the newest world, applies actions and wakes whoever
//! waits for the next revision.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::object::{Key, Object, is_terminating, name, set, set_default, timestamp};

/// Every object, by key.
#[derive(Debug, Clone, Default)]
pub(crate) struct World {
    objects: BTreeMap<Key, Object>,
    revision: u64,
}

/// A change that a controller asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Create the object, or replace it whole. Identity (uid, creation time) of an
    /// object that exists stays.
    Put(Value),
    /// Replace the status only.
    Status(Key, Value),
    /// Ask for deletion: a pod gets a deletion timestamp and leaves when its
    /// containers have ended, anything else leaves at once.
    Delete(Key),
}

impl World {
    /// One object.
    pub(crate) fn object(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key)
    }

    /// All objects of a kind, by namespace and name.
    pub(crate) fn of_kind<'a>(&'a self, kind: &str) -> impl Iterator<Item = &'a Object> + use<'a> {
        let from = Key::new(kind, "", "");
        let kind = kind.to_owned();
        self.objects
            .range(from..)
            .take_while(move |(key, _)| key.kind == kind)
            .map(|(_, object)| object)
    }

    /// All objects of a kind in one namespace.
    pub(crate) fn in_namespace<'a>(
        &'a self,
        kind: &str,
        namespace: &str,
    ) -> impl Iterator<Item = &'a Object> + use<'a> {
        let from = Key::new(kind, namespace, "");
        let (kind, namespace) = (kind.to_owned(), namespace.to_owned());
        self.objects
            .range(from..)
            .take_while(move |(key, _)| key.kind == kind && key.namespace == namespace)
            .map(|(_, object)| object)
    }

    /// Every object.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Object)> {
        self.objects.iter()
    }

    /// Number of the last change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Applies one action; answers with the key when something changed.
    pub(crate) fn apply(&mut self, action: Action, now: SystemTime) -> Option<Key> {
        match action {
            Action::Put(value) => self.put(value, now),
            Action::Status(key, status) => self.modify(&key, |object| {
                set(object, &["status"], status);
            }),
            Action::Delete(key) if key.kind == "Pod" => self.mark_deleted(&key, now),
            Action::Delete(key) => self.remove(&key).then_some(key),
        }
    }

    /// Removes an object at once.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        let removed = self.objects.remove(key).is_some();
        if removed {
            self.revision += 1;
        }
        removed
    }

    /// Changes an object in place; a change that changes nothing is none.
    pub(crate) fn modify(&mut self, key: &Key, change: impl FnOnce(&mut Value)) -> Option<Key> {
        let before = self.objects.get(key)?;
        let mut after = Value::clone(before);
        change(&mut after);
        if after == **before {
            return None;
        }
        if after.get("spec") != before.get("spec") {
            let generation = super::object::number(before, "/metadata/generation").unwrap_or(1);
            set(
                &mut after,
                &["metadata", "generation"],
                json!(generation + 1),
            );
        }
        self.revision += 1;
        set(
            &mut after,
            &["metadata", "resourceVersion"],
            json!(self.revision.to_string()),
        );
        self.objects.insert(key.clone(), Arc::new(after));
        Some(key.clone())
    }

    fn put(&mut self, mut value: Value, now: SystemTime) -> Option<Key> {
        let key = Key::of(&value);
        if let Some(before) = self.objects.get(&key) {
            for field in ["uid", "creationTimestamp", "generation", "resourceVersion"] {
                if let Some(kept) = before.pointer(&format!("/metadata/{field}")) {
                    set(&mut value, &["metadata", field], kept.clone());
                }
            }
            return self.modify(&key, |object| *object = value);
        }
        self.revision += 1;
        set_default(&mut value, &["metadata", "uid"], json!(new_uid()));
        set_default(
            &mut value,
            &["metadata", "creationTimestamp"],
            json!(timestamp(now)),
        );
        set_default(&mut value, &["metadata", "generation"], json!(1));
        set(
            &mut value,
            &["metadata", "resourceVersion"],
            json!(self.revision.to_string()),
        );
        self.objects.insert(key.clone(), Arc::new(value));
        Some(key)
    }

    fn mark_deleted(&mut self, key: &Key, now: SystemTime) -> Option<Key> {
        if is_terminating(self.objects.get(key)?) {
            return None;
        }
        self.modify(key, |pod| {
            let grace =
                super::object::number(pod, "/spec/terminationGracePeriodSeconds").unwrap_or(30);
            set_default(
                pod,
                &["metadata", "deletionGracePeriodSeconds"],
                json!(grace),
            );
            set(
                pod,
                &["metadata", "deletionTimestamp"],
                json!(timestamp(now)),
            );
        })
    }
}

/// A random unique id in the usual form (version 4).
pub(crate) fn new_uid() -> String {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// A mirror file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}")]
pub(crate) struct MirrorError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The newest world and its mirror on disk. Cheap to share.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Held for the time of one change and its file writes only, never across an
    /// await; the files are on a memory file system.
    world: Mutex<Arc<World>>,
    directory: PathBuf,
    revisions: watch::Sender<u64>,
}

impl Store {
    /// An empty store that mirrors to a directory.
    pub(crate) fn new(directory: PathBuf) -> Self {
        let inner = Inner {
            world: Mutex::new(Arc::new(World::default())),
            directory,
            revisions: watch::Sender::new(0),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The world as it is now.
    pub(crate) fn snapshot(&self) -> Arc<World> {
        Arc::clone(
            &self
                .inner
                .world
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// One object as it is now.
    pub(crate) fn object(&self, key: &Key) -> Option<Object> {
        self.snapshot().object(key).cloned()
    }

    /// Changes of the revision: level-triggered, the newest counts.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.inner.revisions.subscribe()
    }

    /// Applies actions in order, mirrors what changed, and wakes the watchers.
    pub(crate) fn apply(&self, actions: impl IntoIterator<Item = Action>) {
        let now = SystemTime::now();
        self.change(|world| {
            actions
                .into_iter()
                .filter_map(|action| world.apply(action, now))
                .collect()
        });
    }

    /// Changes one object in place. Nothing happens when it is gone.
    pub(crate) fn modify(&self, key: &Key, change: impl FnOnce(&mut Value)) {
        self.change(|world| world.modify(key, change).into_iter().collect());
    }

    /// Removes an object at once.
    pub(crate) fn remove(&self, key: &Key) {
        self.change(|world| {
            if world.remove(key) {
                vec![key.clone()]
            } else {
                Vec::new()
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut World) -> Vec<Key>) {
        let mut guard = self
            .inner
            .world
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let changed = change(Arc::make_mut(&mut guard));
        for key in &changed {
            let object = guard.object(key).map(|object| &**object);
            if let Err(error) = mirror(&self.inner.directory, key, object) {
                tracing::error!(error = %culvert_runtime::chain(&error), object = %key, "mirror");
            }
        }
        if !changed.is_empty() {
            self.inner.revisions.send_replace(guard.revision());
        }
    }
}

/// Writes an object's file, or removes it.
fn mirror(directory: &Path, key: &Key, object: Option<&Value>) -> Result<(), MirrorError> {
    let path = directory.join(key.file());
    let failed = |source| MirrorError {
        path: path.clone(),
        source,
    };
    match object {
        Some(object) => write_whole(
            &path,
            &serde_json::to_vec_pretty(object).unwrap_or_default(),
        )
        .map_err(failed),
        None => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        },
    }
}

/// Writes a file so that a reader sees the old content or the new one, never a
/// part. The temporary name starts with a dot: readers skip those.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let (Some(directory), Some(file)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not the path of a file",
        ));
    };
    fs::create_dir_all(directory)?;
    let temporary = directory.join(format!(".{}.tmp", file.to_string_lossy()));
    fs::write(&temporary, content)?;
    fs::rename(&temporary, path)
}

/// Short description for logs.
pub(crate) fn describe(action: &Action) -> String {
    match action {
        Action::Put(value) => format!("put {} {}", Key::of(value).kind, name(value)),
        Action::Status(key, _) => format!("status {key}"),
        Action::Delete(key) => format!("delete {key}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, image: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "a"},
               "spec": {"containers": [{"image": image}]}})
    }

    #[test]
    fn a_replaced_object_keeps_its_identity() {
        let mut world = World::default();
        let now = SystemTime::UNIX_EPOCH;
        let key = world
            .apply(Action::Put(pod("x", "one")), now)
            .expect("created");
        let first = world.object(&key).expect("there").clone();
        assert_eq!(
            world.apply(Action::Put(pod("x", "one")), now),
            None,
            "nothing changed"
        );
        world
            .apply(Action::Put(pod("x", "two")), now)
            .expect("changed");
        let second = world.object(&key).expect("there");
        assert_eq!(first["metadata"]["uid"], second["metadata"]["uid"]);
        assert_eq!(second["metadata"]["generation"], json!(2));
        assert_ne!(
            first["metadata"]["resourceVersion"],
            second["metadata"]["resourceVersion"]
        );
    }

    #[test]
    fn a_deleted_pod_stays_until_it_is_removed() {
        let mut world = World::default();
        let key = world
            .apply(Action::Put(pod("x", "one")), SystemTime::UNIX_EPOCH)
            .expect("new");
        world
            .apply(Action::Delete(key.clone()), SystemTime::UNIX_EPOCH)
            .expect("marked");
        assert!(is_terminating(world.object(&key).expect("still there")));
        assert_eq!(
            world.apply(Action::Delete(key.clone()), SystemTime::UNIX_EPOCH),
            None
        );
        assert!(world.remove(&key));
        assert!(world.object(&key).is_none());
    }

    #[test]
    fn kinds_and_namespaces_do_not_mix() {
        let mut world = World::default();
        for (kind, namespace, name) in [
            ("Pod", "a", "x"),
            ("Pod", "b", "x"),
            ("PodX", "a", "x"),
            ("Node", "", "n"),
        ] {
            let value = json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}});
            world.apply(Action::Put(value), SystemTime::UNIX_EPOCH);
        }
        assert_eq!(world.of_kind("Pod").count(), 2);
        assert_eq!(world.in_namespace("Pod", "b").count(), 1);
        assert_eq!(world.of_kind("Service").count(), 0);
    }

    #[test]
    fn the_mirror_follows() {
        let directory = tempfile::tempdir().expect("directory");
        let store = Store::new(directory.path().to_owned());
        store.apply([Action::Put(pod("x", "one"))]);
        let path = directory.path().join("Pod/a.x.json");
        let read: Value = serde_json::from_slice(&fs::read(&path).expect("file")).expect("json");
        assert_eq!(read["metadata"]["name"], json!("x"));
        store.remove(&Key::new("Pod", "a", "x"));
        assert!(!path.exists());
    }
}
