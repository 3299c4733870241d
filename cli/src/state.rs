//! Where a mesh on this machine keeps its state, and process ids that can be
//! trusted after a crash.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Default place of all meshes' state: a memory file system, so that a reboot,
/// which ends every process, ends the state too.
pub const STATE_ROOT: &str = "/run/culvert";

/// The state directory of one mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    root: PathBuf,
    mesh: String,
}

/// A mesh's name cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("--mesh {0}: expected 1 to 12 lower-case letters and digits, a letter first")]
pub struct MeshNameError(String);

/// Longest name of a mesh: it becomes part of an interface's name.
const MESH_NAME_MAX: usize = 12;

impl StateDir {
    /// The directory of a mesh below a root.
    ///
    /// # Errors
    /// When the name cannot be part of the names of namespaces and links.
    pub fn new(root: &Path, mesh: &str) -> Result<Self, MeshNameError> {
        let plain = mesh
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let starts = mesh.starts_with(|first: char| first.is_ascii_lowercase());
        if !plain || !starts || mesh.len() > MESH_NAME_MAX {
            return Err(MeshNameError(mesh.to_owned()));
        }
        Ok(Self {
            root: root.join(mesh),
            mesh: mesh.to_owned(),
        })
    }

    /// The directory of a mesh by its path.
    ///
    /// # Errors
    /// When its last part is no name of a mesh.
    pub fn at(path: &Path) -> Result<Self, MeshNameError> {
        let mesh = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        Self::new(path.parent().unwrap_or(path), &mesh.unwrap_or_default())
    }

    /// Name of the mesh.
    #[must_use]
    pub fn mesh(&self) -> &str {
        &self.mesh
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A file or directory by its name.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Objects as the engine sees them.
    #[must_use]
    pub fn objects(&self) -> PathBuf {
        self.path("objects")
    }

    /// Status that discovery writes.
    #[must_use]
    pub fn status(&self) -> PathBuf {
        self.path("status")
    }

    /// Socket of the engine's API.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("engine.sock")
    }

    /// The engine's process id.
    #[must_use]
    pub fn pid_file(&self) -> PathBuf {
        self.path("engine.pid")
    }

    /// Settings of this run.
    #[must_use]
    pub fn settings(&self) -> PathBuf {
        self.path("settings.json")
    }

    /// Log of a program of the mesh.
    #[must_use]
    pub fn log(&self, program: &str) -> PathBuf {
        self.root.join("logs").join(format!("{program}.log"))
    }

    /// A node's run directory.
    #[must_use]
    pub fn node(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(node)
    }

    /// A pod's directory.
    #[must_use]
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// List of files and directories made outside the state directory.
    #[must_use]
    pub fn created_paths(&self) -> PathBuf {
        self.path(CREATED_PATHS)
    }

    /// What the other meshes of this machine list as made by them: they may
    /// have it in use.
    #[must_use]
    pub fn created_by_others(&self) -> BTreeSet<PathBuf> {
        let meshes = self.root.parent().and_then(|all| fs::read_dir(all).ok());
        let others = meshes
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|root| *root != self.root);
        others
            .filter_map(|root| fs::read_to_string(root.join(CREATED_PATHS)).ok())
            .flat_map(|list| list.lines().map(PathBuf::from).collect::<Vec<_>>())
            .collect()
    }
}

/// Name of the list of [`StateDir::created_paths`].
const CREATED_PATHS: &str = "created-paths";

/// A process, told from a later one with the same number by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId {
    /// The number.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl ProcessId {
    /// The calling process.
    #[must_use]
    pub fn current() -> Option<Self> {
        let pid = i32::try_from(std::process::id()).ok()?;
        Some(Self {
            pid,
            started: start_time(pid)?,
        })
    }

    /// Reads a pid file. A file that is not there, or cannot be understood, names
    /// no process.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let mut words = text.split_whitespace().map(str::parse::<u64>);
        let (pid, started) = (words.next()?.ok()?, words.next()?.ok()?);
        Some(Self {
            pid: i32::try_from(pid).ok()?,
            started,
        })
    }

    /// Writes a pid file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(self, path: &Path) -> io::Result<()> {
        crate::engine::world::write_whole(
            path,
            format!("{} {}\n", self.pid, self.started).as_bytes(),
        )
    }

    /// Whether the process still is there.
    #[must_use]
    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.started)
    }
}

/// Start time of a process; a zombie counts as gone.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces: fields count from the last one.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mesh_names() {
        let check = |name: &str, good: bool| {
            assert_eq!(
                StateDir::new(Path::new("/run/x"), name).is_ok(),
                good,
                "{name:?}"
            );
        };
        check("default", true);
        check("t1", true);
        check("", false);
        check("1t", false);
        check("a-b", false);
        check("A", false);
        check("abcdefghijklm", false);
        check("../x", false);
    }

    #[test]
    fn a_process_is_known_again() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("pid");
        let own = ProcessId::current().expect("own process");
        own.write(&path).expect("written");
        assert_eq!(ProcessId::read(&path), Some(own));
        assert!(own.is_alive());
        let other = ProcessId {
            started: own.started + 1,
            ..own
        };
        assert!(!other.is_alive(), "same number, another start");
    }
}
