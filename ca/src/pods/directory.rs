//! Pods and nodes from a directory of objects, as the one-machine engine
//! writes it: `Pod/<namespace>.<name>.json`, `Node/_.<name>.json`.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{LookUp, Node, Placement, Pod, PodsByNode, PodsError};

/// A Pod has some kilobytes; the API server refuses more than 1.5 MiB.
const OBJECT_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Reads a directory of objects, again whenever somebody needs to know; only
/// files that changed are parsed.
#[derive(Debug)]
pub struct DirectoryPods {
    directory: PathBuf,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    pods: Files<Pod>,
    nodes: Files<Node>,
    scanned: Option<(Instant, Arc<Placement>)>,
}

type Files<T> = HashMap<PathBuf, (Stamp, Option<T>)>;

/// Tells one version of a file from the next.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl DirectoryPods {
    /// Names the directory; it is read with the first look-up.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            seen: Arc::default(),
        }
    }

    async fn look_up(&self, age_max: Duration) -> Result<Arc<Placement>, PodsError> {
        // Everybody who waits here shares the scan of the one in front.
        let mut seen = Arc::clone(&self.seen).lock_owned().await;
        if let Some((at, placement)) = &seen.scanned
            && at.elapsed() <= age_max
        {
            return Ok(Arc::clone(placement));
        }
        let directory = self.directory.clone();
        let scan = tokio::task::spawn_blocking(move || {
            // Before the scan: what is written meanwhile is news for the next.
            let at = Instant::now();
            let placement = seen.scan(&directory)?;
            seen.scanned = Some((at, Arc::clone(&placement)));
            Ok(placement)
        });
        scan.await.map_err(|_| PodsError::Interrupted)?
    }
}

impl PodsByNode for DirectoryPods {
    fn placement(&self, age_max: Duration) -> LookUp<'_> {
        Box::pin(self.look_up(age_max))
    }
}

impl Seen {
    fn scan(&mut self, directory: &Path) -> Result<Arc<Placement>, PodsError> {
        // A missing root is a fault of configuration, a missing kind is not.
        fs::metadata(directory).map_err(|source| PodsError::Read {
            path: directory.to_owned(),
            source,
        })?;
        let pods_changed = refresh(&mut self.pods, &directory.join("Pod"), Pod::parse)?;
        let nodes_changed = refresh(&mut self.nodes, &directory.join("Node"), Node::parse)?;
        if let Some((_, placement)) = &self.scanned
            && !pods_changed
            && !nodes_changed
        {
            return Ok(Arc::clone(placement));
        }
        let pods = self.pods.values().filter_map(|(_, pod)| pod.clone());
        let nodes = self.nodes.values().filter_map(|(_, node)| node.clone());
        Ok(Arc::new(Placement::new(pods, nodes)))
    }
}

/// Brings `files` up to date; says whether anything changed. A file that cannot
/// be read or parsed counts as absent: no certificate follows from it.
fn refresh<T>(
    files: &mut Files<T>,
    directory: &Path,
    parse: impl Fn(&[u8]) -> Result<Option<T>, serde_json::Error>,
) -> Result<bool, PodsError> {
    let stamps = list(directory).map_err(|source| PodsError::Read {
        path: directory.to_owned(),
        source,
    })?;
    let before = files.len();
    files.retain(|path, _| stamps.contains_key(path));
    let mut changed = files.len() != before;
    for (path, stamp) in stamps {
        if files.get(&path).is_some_and(|(known, _)| *known == stamp) {
            continue;
        }
        changed = true;
        let object = match read(&path, &stamp, &parse) {
            Ok(object) => object,
            Err(error) => {
                tracing::warn!(
                    path = %path.display(),
                    error = &error as &dyn std::error::Error,
                    "object is ignored"
                );
                None
            }
        };
        files.insert(path, (stamp, object));
    }
    Ok(changed)
}

fn list(directory: &Path) -> io::Result<HashMap<PathBuf, Stamp>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
        Err(error) => return Err(error),
    };
    let mut stamps = HashMap::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        // Removed since it was listed: as if it had never been there.
        if let Ok(metadata) = fs::metadata(&path) {
            let stamp = Stamp {
                modified: metadata.modified().ok(),
                length: metadata.len(),
                inode: metadata.ino(),
            };
            stamps.insert(path, stamp);
        }
    }
    Ok(stamps)
}

fn read<T>(
    path: &Path,
    stamp: &Stamp,
    parse: impl Fn(&[u8]) -> Result<Option<T>, serde_json::Error>,
) -> io::Result<Option<T>> {
    if stamp.length > OBJECT_BYTES_MAX {
        return Err(io::Error::other("longer than any object"));
    }
    Ok(parse(&fs::read(path)?)?)
}
