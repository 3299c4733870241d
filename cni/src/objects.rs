//! Where the agent learns of pods and namespaces: a source of [`Objects`], today a
//! directory of Kubernetes objects; a watch of the API will be another.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use inotify::{Inotify, WatchMask};
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::pods::{Objects, PodFacts, label};

/// A source of objects.
pub trait ObjectSource: Send + 'static {
    /// Waits for the next state of all objects that differs from the last one given.
    ///
    /// # Errors
    /// When the source is of no use any more.
    ///
    /// # Cancel safety
    /// Nothing is lost: the next call gives the newest state.
    fn next(&mut self) -> impl Future<Output = Result<Arc<Objects>, SourceError>> + Send;
}

/// The source failed for good.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No notifications.
    #[error("cannot watch the objects directory")]
    Watch(#[source] io::Error),
}

/// A rescan finds what no notification told of (a directory on another file system,
/// an overrun queue).
const RESCAN: Duration = Duration::from_secs(5);
/// Events in quick succession are one change.
const QUIET: Duration = Duration::from_millis(20);

/// A directory with one JSON file for each object in a directory for each kind.
#[derive(Debug)]
pub struct DirectorySource {
    directory: PathBuf,
    node: String,
    /// DNS queries are redirected on this node at all.
    dns: bool,
    events: inotify::EventStream<[u8; 4096]>,
    watched: BTreeMap<PathBuf, inotify::WatchDescriptor>,
    cache: BTreeMap<PathBuf, Cached>,
    given: Option<Arc<Objects>>,
    next_scan: Instant,
}

#[derive(Debug)]
struct Cached {
    /// Size and time of change: another one means read again.
    stamp: (u64, Option<SystemTime>),
    /// None while it has never been understood.
    object: Option<Arc<Value>>,
}

impl DirectorySource {
    /// Watches a directory, which need not exist yet.
    ///
    /// # Errors
    /// When the kernel gives no notifications.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(directory: &Path, node: &str, dns: bool) -> Result<Self, SourceError> {
        let inotify = Inotify::init().map_err(SourceError::Watch)?;
        let events = inotify
            .into_event_stream([0; 4096])
            .map_err(SourceError::Watch)?;
        Ok(Self {
            directory: directory.to_owned(),
            node: node.to_owned(),
            dns,
            events,
            watched: BTreeMap::new(),
            cache: BTreeMap::new(),
            given: None,
            next_scan: Instant::now(),
        })
    }

    /// Watches what can be watched by now.
    fn watch(&mut self) {
        let mask = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::ONLYDIR;
        let paths = [
            self.directory.clone(),
            self.directory.join("Pod"),
            self.directory.join("Namespace"),
        ];
        for path in paths {
            // Adding one again gives the same descriptor, or a new one where the
            // directory has been made anew.
            match self.events.watches().add(&path, mask) {
                Ok(descriptor) => drop(self.watched.insert(path, descriptor)),
                Err(_) => drop(self.watched.remove(&path)),
            }
        }
    }

    /// None while the directory cannot be read: then nothing is known, which is
    /// not the same as that there is nothing.
    fn scan(&mut self) -> Option<Objects> {
        let mut objects = Objects::default();
        let mut seen = Vec::new();
        for (path, object) in self.read("Pod", &mut seen)? {
            match PodFacts::parse(&object, &self.node) {
                Some((uid, mut facts)) => {
                    facts.rules.dns &= self.dns;
                    objects.pods.insert(uid, facts);
                }
                None => tracing::trace!(path = %path.display(), "no pod of this node"),
            }
        }
        for (_, object) in self.read("Namespace", &mut seen)? {
            if let Some(name) = object.pointer("/metadata/name").and_then(Value::as_str) {
                objects.namespaces.insert(name.to_owned(), label(&object));
            }
        }
        self.cache.retain(|path, _| seen.contains(path));
        Some(objects)
    }

    fn read(&mut self, kind: &str, seen: &mut Vec<PathBuf>) -> Option<Vec<(PathBuf, Arc<Value>)>> {
        let directory = self.directory.join(kind);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // No object of the kind yet, as long as the directory above is there.
                return self.directory.is_dir().then(Vec::new);
            }
            Err(_) => return None,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.ok()?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            seen.push(path.clone());
            if let Some(object) = self.object(&path) {
                found.push((path, object));
            }
        }
        Some(found)
    }

    fn object(&mut self, path: &Path) -> Option<Arc<Value>> {
        let stamp = match fs::metadata(path) {
            Ok(meta) => (meta.len(), meta.modified().ok()),
            // Deleted between the listing and now.
            Err(_) => return None,
        };
        let before = self.cache.get(path);
        if let Some(cached) = before.filter(|cached| cached.stamp == stamp) {
            return cached.object.clone();
        }
        let read = fs::read(path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        let object = match read {
            Ok(value) => Some(Arc::new(value)),
            Err(error) => {
                let error = culvert_runtime::chain(&error);
                tracing::warn!(path = %path.display(), error, "object is not readable");
                // What was known of it stays known.
                before.and_then(|cached| cached.object.clone())
            }
        };
        let cached = Cached {
            stamp,
            object: object.clone(),
        };
        self.cache.insert(path.to_owned(), cached);
        object
    }
}

impl ObjectSource for DirectorySource {
    async fn next(&mut self) -> Result<Arc<Objects>, SourceError> {
        loop {
            tokio::select! {
                () = sleep_until(self.next_scan) => {}
                event = self.events.next() => {
                    event.transpose().map_err(SourceError::Watch)?;
                    let end = Instant::now() + QUIET;
                    while let Ok(Some(event)) = timeout_at(end, self.events.next()).await {
                        event.map_err(SourceError::Watch)?;
                    }
                }
            }
            self.next_scan = Instant::now() + RESCAN;
            self.watch();
            let Some(objects) = self.scan() else {
                tracing::debug!(directory = %self.directory.display(), "objects are not readable");
                continue;
            };
            if self.given.as_deref() != Some(&objects) {
                let objects = Arc::new(objects);
                self.given = Some(Arc::clone(&objects));
                return Ok(objects);
            }
        }
    }
}
