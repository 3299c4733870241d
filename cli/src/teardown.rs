//! Takes everything of a mesh off the machine. Asks the kernel what is there, not
//! the engine, so that it works after a crash of everything; running it again finds
//! nothing to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use culvert_netns::{Netns, NetnsError, delete_named, list_named};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::engine::network::addresses::Names;
use crate::engine::network::egress;
use crate::engine::network::links::LinkError;
use crate::processes::{self, Namespace};
use crate::state::{ProcessId, StateDir};

/// Time for killed processes to be gone: the kernel frees their memory first.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// Time for programs that have nothing to finish.
const PROMPT: Duration = Duration::from_millis(500);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// What was there, or still is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Processes.
    pub processes: Vec<String>,
    /// Network namespaces.
    pub namespaces: Vec<String>,
    /// Links, tables and settings of the machine's own network.
    pub network: Vec<String>,
    /// Files and directories.
    pub files: Vec<String>,
}

impl Found {
    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Something could not be taken away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TeardownError {
    /// Namespaces.
    #[error("cannot look at the network namespaces")]
    Netns(#[from] NetnsError),
    /// The machine's network.
    #[error("cannot clean the machine's network")]
    Network(#[from] LinkError),
    /// Files.
    #[error("cannot remove {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Processes.
    #[error("these processes do not end: {0}")]
    Alive(String),
    /// Something is left.
    #[error("still there after all: {0:?}")]
    Left(Found),
}

/// The network namespaces of a mesh that have a name, with their inodes.
fn namespaces(names: &Names) -> Result<BTreeMap<String, Option<u64>>, NetnsError> {
    let ours = list_named()?
        .into_iter()
        .filter(|name| name.starts_with(names.prefix()));
    // A name without a namespace behind it is a plain left-over file.
    Ok(ours
        .map(|name| {
            (
                name.clone(),
                Netns::open_named(&name).ok().map(|netns| netns.inode()),
            )
        })
        .collect())
}

/// Processes of the mesh: in its namespaces, or of our programs with its directory.
fn living(state: &StateDir, inodes: &BTreeSet<u64>) -> BTreeSet<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut all: BTreeSet<i32> = processes::inside(Namespace::Network, inodes)
        .into_iter()
        .collect();
    all.extend(processes::naming(state.root()));
    all.extend(
        ProcessId::read(&state.pid_file())
            .filter(|engine| engine.is_alive())
            .map(|one| one.pid),
    );
    all.remove(&own);
    all
}

/// Takes everything away; answers with what was there.
pub(crate) async fn teardown(state: &StateDir, grace: Duration) -> Result<Found, TeardownError> {
    let names = Names::new(state.mesh());
    let mut found = Found::default();
    // The engine first, or it would start again what ends.
    if let Some(engine) = ProcessId::read(&state.pid_file()).filter(|engine| engine.is_alive()) {
        found.processes.push(processes::describe(engine.pid));
        processes::signal(engine.pid, Signal::SIGTERM);
        wait_until(Duration::from_secs(2), || !engine.is_alive()).await;
        processes::signal(engine.pid, Signal::SIGKILL);
        wait_until(KILL_DEADLINE, || !engine.is_alive()).await;
    }
    let spaces = namespaces(&names)?;
    let inodes: BTreeSet<u64> = spaces.values().filter_map(|inode| *inode).collect();
    end_processes(state, &inodes, grace, &mut found).await?;
    for name in spaces.keys() {
        delete_named(name)?;
        found.namespaces.push(name.clone());
    }
    let changed = fs::read(state.path("egress.json")).ok();
    let changed = changed
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    found.network = egress::close(state.mesh(), &changed)?;
    remove_files(state, &mut found)?;
    let left = leftovers(state)?;
    if left.is_empty() {
        Ok(found)
    } else {
        Err(TeardownError::Left(left))
    }
}

async fn end_processes(
    state: &StateDir,
    inodes: &BTreeSet<u64>,
    grace: Duration,
    found: &mut Found,
) -> Result<(), TeardownError> {
    let first = living(state, inodes);
    found
        .processes
        .extend(first.iter().map(|pid| processes::describe(*pid)));
    for pid in &first {
        processes::signal(*pid, Signal::SIGTERM);
    }
    let prompt = wait_until(PROMPT.min(grace), || living(state, inodes).is_empty());
    if !prompt.await {
        // A second one tells our own programs not to drain any longer.
        for pid in processes::naming(state.root()) {
            processes::signal(pid, Signal::SIGTERM);
        }
        wait_until(grace, || living(state, inodes).is_empty()).await;
    }
    // A process may start another while it is looked for: look until there is none.
    let gone = wait_until(KILL_DEADLINE, || {
        let left = living(state, inodes);
        for pid in &left {
            processes::signal(*pid, Signal::SIGKILL);
        }
        left.is_empty()
    });
    if gone.await {
        return Ok(());
    }
    let left: Vec<_> = living(state, inodes)
        .into_iter()
        .map(processes::describe)
        .collect();
    Err(TeardownError::Alive(left.join(", ")))
}

async fn wait_until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn remove_files(state: &StateDir, found: &mut Found) -> Result<(), TeardownError> {
    // Mount points that were made for volumes, deepest first. What is in use by
    // others is not empty and stays, and so does what another mesh needs too:
    // removing a mount point would unmount it in that mesh's pods.
    let others = state.created_by_others();
    let made = fs::read_to_string(state.created_paths()).unwrap_or_default();
    let mut made: Vec<_> = made.lines().map(PathBuf::from).collect();
    made.retain(|path| !others.contains(path));
    made.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for path in made {
        let empty_file =
            fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == 0);
        let removed = if empty_file {
            fs::remove_file(&path)
        } else {
            fs::remove_dir(&path)
        };
        if removed.is_ok() {
            found.files.push(path.display().to_string());
        }
    }
    let failed = |path: &std::path::Path| {
        let path = path.to_owned();
        move |source| TeardownError::File { path, source }
    };
    if state.root().exists() {
        fs::remove_dir_all(state.root()).map_err(failed(state.root()))?;
        found.files.push(state.root().display().to_string());
    }
    if let Some(parent) = state.root().parent() {
        // Other meshes may still be in it.
        let _ = fs::remove_dir(parent);
    }
    Ok(())
}

/// What of the mesh is on the machine.
pub(crate) fn leftovers(state: &StateDir) -> Result<Found, TeardownError> {
    let spaces = namespaces(&Names::new(state.mesh()))?;
    let inodes = spaces.values().filter_map(|inode| *inode).collect();
    let files = if state.root().exists() {
        vec![state.root().display().to_string()]
    } else {
        Vec::new()
    };
    Ok(Found {
        processes: living(state, &inodes)
            .into_iter()
            .map(processes::describe)
            .collect(),
        namespaces: spaces.into_keys().collect(),
        network: Vec::new(),
        files,
    })
}
