//! The zone from the engine's objects directory, kept up to date.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use inotify::{Inotify, WatchMask};
use serde_json::Value;
use tokio::sync::watch;

use super::zone::Zone;

/// Kinds that make up the zone.
const KINDS: [&str; 2] = ["Service", "EndpointSlice"];
/// The directory is read this often even when the kernel reports nothing.
const POLL: Duration = Duration::from_secs(1);
/// Changes come in bursts; one reading serves the burst.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// The zone as the objects stand now.
pub(super) fn zone(objects: &Path) -> Zone {
    let [services, slices] = KINDS.map(|kind| read(&objects.join(kind)));
    Zone::new(&services, &slices)
}

/// All objects of a kind. A file that is being replaced is skipped: it will be
/// there at the next reading.
fn read(directory: &Path) -> Vec<Value> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let is_object = |path: &PathBuf| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        name.ends_with(".json") && !name.starts_with('.')
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(is_object)
        .filter_map(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok())
        .collect()
}

/// Follows the directory for good.
pub(super) async fn follow(objects: PathBuf, current: watch::Sender<Zone>) {
    let mut events = None;
    loop {
        if events.is_none() {
            events = open(&objects);
        }
        let event = async {
            match &mut events {
                Some(stream) => drop(stream.next().await),
                None => std::future::pending().await,
            }
        };
        if tokio::time::timeout(POLL, event).await.is_ok() {
            tokio::time::sleep(DEBOUNCE).await;
        }
        let now = zone(&objects);
        current.send_if_modified(|held| {
            let changed = *held != now;
            *held = now;
            changed
        });
    }
}

fn open(objects: &Path) -> Option<inotify::EventStream<[u8; 4096]>> {
    let inotify = Inotify::init().ok()?;
    for kind in KINDS {
        let mask = WatchMask::MOVED_TO | WatchMask::DELETE | WatchMask::CLOSE_WRITE;
        inotify.watches().add(objects.join(kind), mask).ok()?;
    }
    inotify.into_event_stream([0; 4096]).ok()
}
