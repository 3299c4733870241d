//! What each file holds, and what follows for each object. No IO besides
//! reading the file that it is told to read.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use culvert_kubeyaml::{Limits, Loaded, Object, load_file_within};

use super::{Event, ObjectKey};

/// Tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Good(Arc<Object>),
    /// Unreadable now; the last form that could be read.
    Broken(Option<Arc<Object>>, String),
}

#[derive(Debug, Default)]
struct File {
    stamp: Option<Stamp>,
    entries: BTreeMap<ObjectKey, Entry>,
    faults: Vec<String>,
}

/// The files of a source.
#[derive(Debug, Default)]
pub(super) struct Files {
    limits: Limits,
    files: BTreeMap<PathBuf, File>,
    /// Which files hold an object; the first by path counts.
    holders: HashMap<ObjectKey, BTreeMap<PathBuf, Entry>>,
}

impl Files {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Paths that are known at or below `directory`.
    pub(super) fn below(&self, directory: &Path) -> Vec<PathBuf> {
        let known = self.files.range(directory.to_path_buf()..);
        known
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(directory))
            .cloned()
            .collect()
    }

    /// Looks at a file again. Reads it only if it seems to have changed.
    pub(super) fn refresh(&mut self, path: &Path, events: &mut Vec<Event>) {
        let metadata = std::fs::metadata(path).ok().filter(Metadata::is_file);
        let Some(metadata) = metadata else {
            return self.replace(path, None, events);
        };
        let stamp = Stamp::of(&metadata);
        if self.files.get(path).is_some_and(|f| f.stamp == Some(stamp)) {
            return;
        }
        let loaded = load_file_within(path, &self.limits);
        let before = self.files.get(path).map(|file| &file.entries);
        let mut file = read(&loaded, before, metadata.len() == 0);
        file.stamp = Some(stamp);
        self.replace(path, Some(file), events);
    }

    fn replace(&mut self, path: &Path, file: Option<File>, events: &mut Vec<Event>) {
        let old = self.files.remove(path).unwrap_or_default();
        let mut keys: HashSet<&ObjectKey> = old.entries.keys().collect();
        keys.extend(file.iter().flat_map(|file| file.entries.keys()));
        for key in keys {
            let holders = self.holders.entry(key.clone()).or_default();
            let before = holders.first_key_value().map(|(_, entry)| entry.clone());
            match file.as_ref().and_then(|file| file.entries.get(key)) {
                Some(entry) => holders.insert(path.to_path_buf(), entry.clone()),
                None => holders.remove(path),
            };
            let after = holders.first_key_value().map(|(_, entry)| entry.clone());
            if holders.is_empty() {
                self.holders.remove(key);
            }
            if before != after {
                events.extend(changes(key, before, after));
            }
        }
        if let Some(file) = file {
            self.files.insert(path.to_path_buf(), file);
        }
    }

    /// Everything that is wrong now.
    pub(super) fn faults(&self) -> Vec<String> {
        let own = self
            .files
            .values()
            .flat_map(|file| file.faults.iter().cloned());
        let twice = self.holders.iter().filter(|(_, holders)| holders.len() > 1);
        let twice = twice.map(|(key, holders)| {
            let paths: Vec<_> = holders.keys().map(|p| p.display().to_string()).collect();
            format!(
                "{key} is in several files, the first counts: {}",
                paths.join(", ")
            )
        });
        let mut faults: Vec<_> = own.chain(twice).collect();
        faults.sort_unstable();
        faults
    }
}

fn changes(key: &ObjectKey, before: Option<Entry>, after: Option<Entry>) -> Vec<Event> {
    let known = match before {
        Some(Entry::Good(object) | Entry::Broken(Some(object), _)) => Some(object),
        _ => None,
    };
    match after {
        None => vec![Event::Delete(key.clone())],
        Some(Entry::Good(object)) => vec![Event::Upsert(object)],
        Some(Entry::Broken(last, message)) => {
            let broken = Event::Broken {
                key: key.clone(),
                message,
            };
            // Another file's last good form may come to count.
            let restored = last.filter(|last| known.as_ref() != Some(last));
            restored
                .map(Event::Upsert)
                .into_iter()
                .chain([broken])
                .collect()
        }
    }
}

/// What a file holds now. Objects that were in it and cannot be found any more
/// stay as they were as long as part of the file cannot be read, since they
/// may be in that part.
fn read(loaded: &Loaded, before: Option<&BTreeMap<ObjectKey, Entry>>, empty: bool) -> File {
    let last = |key: &ObjectKey| match before?.get(key)? {
        Entry::Good(object) => Some(object.clone()),
        Entry::Broken(last, _) => last.clone(),
    };
    let mut file = File::default();
    for object in &loaded.objects {
        // An unchanged object keeps its address, so that comparing is cheap.
        let key = ObjectKey::of(object);
        let object = last(&key)
            .filter(|last| last.body == object.body)
            .unwrap_or_else(|| Arc::new(object.clone()));
        file.entries.insert(key, Entry::Good(object));
    }
    let mut unnamed = None;
    for fault in loaded.errors() {
        file.faults.push(fault.to_string());
        let Some(key) = fault.object.as_ref().and_then(ObjectKey::of_reference) else {
            unnamed.get_or_insert_with(|| fault.to_string());
            continue;
        };
        file.entries
            .entry(key.clone())
            .or_insert_with(|| Entry::Broken(last(&key), fault.to_string()));
    }
    if empty && before.is_some_and(|before| !before.is_empty()) {
        let message = "file is empty; delete it to remove its objects".to_owned();
        file.faults.push(message.clone());
        unnamed = Some(message);
    }
    if let (Some(message), Some(before)) = (unnamed, before) {
        for key in before.keys() {
            file.entries
                .entry(key.clone())
                .or_insert_with(|| Entry::Broken(last(key), message.clone()));
        }
    }
    file
}

#[cfg(test)]
mod tests;
