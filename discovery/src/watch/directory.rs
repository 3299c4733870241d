//! Directories of YAML and JSON files as a source: the change notices of the
//! kernel say where to look, and a periodic look at everything catches what no
//! notice told. A file that became unreadable keeps its last good content.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    time::Duration,
};

use culvert_kubeyaml::{Limits, is_object_file, list_files};
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::StreamExt;

use super::{Batch, Event, Source, files::Files};

/// A burst of notices is answered once. Short, because a pod that went away
/// costs its clients connections until it is out; long enough that an editor's
/// truncate, write and rename are seen as one change.
const QUIET: Duration = Duration::from_millis(10);
/// The answer to an endless burst is not put off any longer than this.
const QUIET_MAX: Duration = Duration::from_millis(40);
/// A missed notice is a bug of ours or a full kernel queue; both are rare.
const RESCAN: Duration = Duration::from_secs(30);
/// A directory that is not there yet cannot be watched.
const RESCAN_MISSING: Duration = Duration::from_millis(500);
/// Room for the longest name and 100 short notices.
const NOTICE_BYTES: usize = 16 * 1024;

/// Directories as a source.
#[derive(Debug)]
pub struct DirectorySource {
    directories: Vec<PathBuf>,
    limits: Limits,
}

impl DirectorySource {
    /// A source that reads these directories and all below them.
    pub fn new(directories: Vec<PathBuf>) -> Self {
        Self {
            directories,
            limits: Limits::default(),
        }
    }
}

impl Source for DirectorySource {
    async fn run(self, batches: mpsc::Sender<Batch>) {
        let mut state = State::new(&self);
        let mut notices = match Notices::open() {
            Ok(notices) => Some(notices),
            Err(error) => {
                tracing::error!(%error, "no change notices: directories are only looked at from time to time");
                None
            }
        };
        let mut rescan_at = Instant::now() + RESCAN;
        loop {
            let batch = state.look(notices.as_mut());
            if let Some(batch) = batch
                && batches.send(batch).await.is_err()
            {
                return;
            }
            if !state.missing.is_empty() || notices.is_none() {
                rescan_at = rescan_at.min(Instant::now() + RESCAN_MISSING);
            }
            tokio::select! {
                () = batches.closed() => return,
                () = tokio::time::sleep_until(rescan_at) => {
                    rescan_at = Instant::now() + RESCAN;
                    state.everything = true;
                }
                dirty = next_burst(notices.as_mut()) => state.mark(dirty),
            }
        }
    }
}

/// Where to look next.
#[derive(Debug)]
enum Dirty {
    Path(PathBuf),
    Directory(PathBuf),
    Everything,
}

struct State {
    directories: Vec<PathBuf>,
    limits: Limits,
    files: Files,
    faults: Vec<String>,
    missing: Vec<String>,
    everything: bool,
    first: bool,
    dirty_paths: BTreeSet<PathBuf>,
    dirty_directories: BTreeSet<PathBuf>,
}

impl State {
    fn new(source: &DirectorySource) -> Self {
        Self {
            directories: source.directories.clone(),
            limits: source.limits.clone(),
            files: Files::new(source.limits.clone()),
            faults: Vec::new(),
            missing: Vec::new(),
            everything: true,
            first: true,
            dirty_paths: BTreeSet::new(),
            dirty_directories: BTreeSet::new(),
        }
    }

    fn mark(&mut self, dirty: Vec<Dirty>) {
        for dirty in dirty {
            match dirty {
                Dirty::Path(path) => self.dirty_paths.insert(path),
                Dirty::Directory(path) => self.dirty_directories.insert(path),
                Dirty::Everything => std::mem::replace(&mut self.everything, true),
            };
        }
    }

    /// Reads what is dirty; a batch if anything is different afterwards.
    fn look(&mut self, mut notices: Option<&mut Notices>) -> Option<Batch> {
        let mut events = Vec::new();
        if std::mem::take(&mut self.everything) {
            self.missing.clear();
            for directory in self.directories.clone() {
                self.scan(&directory, notices.as_deref_mut(), &mut events);
                if let Err(error) = std::fs::read_dir(&directory) {
                    let path = directory.display();
                    self.missing
                        .push(format!("{path}: cannot be read: {error}"));
                }
            }
        }
        for directory in std::mem::take(&mut self.dirty_directories) {
            self.scan(&directory, notices.as_deref_mut(), &mut events);
        }
        for path in std::mem::take(&mut self.dirty_paths) {
            self.files.refresh(&path, &mut events);
        }
        let mut faults = self.files.faults();
        faults.extend(self.missing.iter().cloned());
        let synced = self.missing.is_empty();
        let changed = !events.is_empty() || faults != self.faults || self.first;
        self.first &= !synced;
        self.faults.clone_from(&faults);
        changed.then_some(Batch {
            events,
            faults,
            synced,
        })
    }

    /// Looks at a directory, everything below it, and what used to be there.
    fn scan(&mut self, directory: &Path, notices: Option<&mut Notices>, events: &mut Vec<Event>) {
        // Watch first: what changes between listing and reading is noticed.
        if let Some(notices) = notices {
            notices.watch_below(directory, &self.limits, 0);
        }
        let (found, _) = list_files(directory, &self.limits);
        let mut paths: BTreeSet<_> = self.files.below(directory).into_iter().collect();
        paths.extend(found);
        for path in paths {
            self.files.refresh(&path, events);
        }
    }
}

/// The kernel's change notices.
struct Notices {
    stream: inotify::EventStream<Vec<u8>>,
    watches: Watches,
    directories: HashMap<WatchDescriptor, PathBuf>,
}

impl Notices {
    fn open() -> std::io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        Ok(Self {
            stream: inotify.into_event_stream(vec![0; NOTICE_BYTES])?,
            watches,
            directories: HashMap::new(),
        })
    }

    fn watch_below(&mut self, directory: &Path, limits: &Limits, depth: usize) {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ATTRIB
            | WatchMask::ONLYDIR;
        match self.watches.add(directory, mask) {
            Ok(descriptor) => {
                self.directories.insert(descriptor, directory.to_path_buf());
            }
            Err(error) => {
                tracing::debug!(path = %directory.display(), %error, "directory is not watched");
                return;
            }
        }
        let Ok(entries) = std::fs::read_dir(directory) else {
            return;
        };
        for entry in entries.flatten() {
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            let path = entry.path();
            if !hidden && depth < limits.depth_max && path.is_dir() {
                self.watch_below(&path, limits, depth + 1);
            }
        }
    }

    fn dirty(&mut self, event: &inotify::EventOwned) -> Dirty {
        let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return Dirty::Everything;
        }
        let Some(directory) = self.directories.get(&event.wd).cloned() else {
            return Dirty::Everything;
        };
        if event.mask.intersects(gone) {
            self.directories.remove(&event.wd);
            return Dirty::Directory(directory);
        }
        let Some(name) = &event.name else {
            return Dirty::Directory(directory);
        };
        let path = directory.join(name);
        let hidden = name.to_string_lossy().starts_with('.');
        if event.mask.contains(EventMask::ISDIR) && !hidden {
            Dirty::Directory(path)
        } else if is_object_file(&path) && !hidden {
            Dirty::Path(path)
        } else if hidden {
            // Mounted ConfigMaps change by moving a hidden link.
            Dirty::Directory(directory)
        } else {
            Dirty::Path(path)
        }
    }
}

/// Waits for a notice, then until it is quiet.
///
/// # Cancel safety
/// Notices that were taken are lost when it is dropped after the first one:
/// whoever drops it looks at everything next.
async fn next_burst(notices: Option<&mut Notices>) -> Vec<Dirty> {
    let Some(notices) = notices else {
        return std::future::pending().await;
    };
    let mut dirty = Vec::new();
    let mut deadline = None;
    loop {
        let quiet = async {
            match deadline {
                Some(deadline) => {
                    let quiet = (Instant::now() + QUIET).min(deadline);
                    tokio::time::sleep_until(quiet).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            notice = notices.stream.next() => match notice {
                Some(Ok(event)) => dirty.push(notices.dirty(&event)),
                Some(Err(_)) | None => dirty.push(Dirty::Everything),
            },
            () = quiet => return dirty,
        }
        let end = *deadline.get_or_insert_with(|| Instant::now() + QUIET_MAX);
        if Instant::now() >= end {
            return dirty;
        }
    }
}

#[cfg(test)]
mod tests;
