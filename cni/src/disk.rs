//! The agent's files: records of sandboxes, the list of exempt namespaces, and the
//! status of each pod. Written whole and renamed, so that nobody reads half of one.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::state::{Record, Status};

/// Names of namespaces whose pods start without an agent, one a line.
pub const EXEMPT_FILE: &str = "exempt-namespaces";

const SANDBOXES: &str = "sandboxes";
const ENROLLMENT: &str = "enrollment";

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path}")]
pub struct DiskError {
    verb: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError { verb, path, source }
}

/// The agent's directories.
#[derive(Debug, Clone)]
pub struct Disk {
    sandboxes: PathBuf,
    enrollment: PathBuf,
}

impl Disk {
    /// Makes the directories and writes the list of exempt namespaces.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn open(
        run_dir: &Path,
        status_dir: &Path,
        exempt: &BTreeSet<String>,
    ) -> Result<Self, DiskError> {
        let disk = Self {
            sandboxes: run_dir.join(SANDBOXES),
            enrollment: status_dir.join(ENROLLMENT),
        };
        for (directory, mode) in [(&disk.sandboxes, 0o700), (&disk.enrollment, 0o755)] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(directory)
                .map_err(failed("create", directory))?;
        }
        let mut text: String = exempt.iter().map(|name| format!("{name}\n")).collect();
        text.insert_str(0, "# written by the culvert-cni agent\n");
        write(&run_dir.join(EXEMPT_FILE), text.as_bytes(), 0o644)?;
        Ok(disk)
    }

    /// The records of an earlier agent. A file that cannot be understood is left
    /// where it is and reported.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn records(&self) -> Result<(Vec<Record>, Vec<DiskError>), DiskError> {
        let mut records = Vec::new();
        let mut faults = Vec::new();
        let entries = fs::read_dir(&self.sandboxes).map_err(failed("list", &self.sandboxes))?;
        for entry in entries {
            let path = entry.map_err(failed("list", &self.sandboxes))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let record = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
            match record {
                Ok(record) => records.push(record),
                Err(source) => faults.push(failed("understand", &path)(source)),
            }
        }
        Ok((records, faults))
    }

    /// Writes a record, for the owner's eyes only.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, record: &Record) -> Result<(), DiskError> {
        let path = self.sandbox_file(&record.sandbox.id);
        let bytes = serde_json::to_vec_pretty(record)
            .map_err(|error| failed("encode", &path)(error.into()))?;
        write(&path, &bytes, 0o600)
    }

    /// Removes a record; one that is not there is fine.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget(&self, id: &str) -> Result<(), DiskError> {
        remove(&self.sandbox_file(id))
    }

    /// The plugin lets through only ids that are file names.
    fn sandbox_file(&self, id: &str) -> PathBuf {
        let name: String = id.chars().filter(|c| !matches!(c, '/' | '\0')).collect();
        self.sandboxes.join(format!("{name}.json"))
    }

    /// Tells the world whether a pod is enrolled.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_status(&self, status: &Status) -> Result<(), DiskError> {
        let path = self.status_file(&status.namespace, &status.name);
        let body = json!({
            "uid": &*status.uid,
            "enrolled": status.enrolled,
            "reason": status.reason,
            // The value of the annotation culvert.dev/enrolled; none to remove it.
            "annotation": status.enrolled.then_some("true"),
        });
        write(&path, body.to_string().as_bytes(), 0o644)
    }

    /// There is nothing to tell of this pod any more.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn remove_status(&self, namespace: &str, name: &str) -> Result<(), DiskError> {
        remove(&self.status_file(namespace, name))
    }

    /// Removes statuses of pods that are not among these (namespace and name), left
    /// by an earlier agent.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn retain_statuses(&self, pods: &BTreeSet<(String, String)>) -> Result<(), DiskError> {
        let keep: BTreeSet<PathBuf> = pods
            .iter()
            .map(|(namespace, name)| self.status_file(namespace, name))
            .collect();
        let entries = fs::read_dir(&self.enrollment).map_err(failed("list", &self.enrollment))?;
        for entry in entries {
            let path = entry.map_err(failed("list", &self.enrollment))?.path();
            if !keep.contains(&path) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    fn status_file(&self, namespace: &str, name: &str) -> PathBuf {
        let plain = format!("{namespace}.{name}.json").replace('/', "_");
        self.enrollment.join(plain)
    }
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DiskError> {
    use std::io::Write;
    let draft = path.with_extension("new");
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&draft)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&draft, path));
    written.map_err(failed("write", path))
}

fn remove(path: &Path) -> Result<(), DiskError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}
