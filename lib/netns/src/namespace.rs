//! A network namespace as a descriptor: opening, creating, naming, entering.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::{ioctl, sockopt};

/// Where named namespaces are mounted, as `ip netns` does.
const NAMED_DIR: &str = "/run/netns";
/// The namespace of the calling thread, not of the process's first one.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace, kept alive by its descriptor. Clones share it.
#[derive(Debug, Clone)]
pub struct Netns {
    fd: Arc<OwnedFd>,
    inode: u64,
    device: u64,
}

/// Why a namespace could not be opened, made, entered or removed.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The path or descriptor could not be opened or examined.
    #[error("cannot open the network namespace {name}")]
    Open {
        /// Path, or what the descriptor is.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is open, but something else.
    #[error("{name} is not a network namespace")]
    NotNetwork {
        /// Path, or what the descriptor is.
        name: String,
    },
    /// Entering failed (usually for want of CAP_SYS_ADMIN).
    #[error("cannot enter the network namespace (run as root or with CAP_SYS_ADMIN)")]
    Enter(#[source] io::Error),
    /// A new namespace was refused (usually for want of CAP_SYS_ADMIN).
    #[error("cannot make a network namespace (run as root or with CAP_SYS_ADMIN)")]
    Create(#[source] io::Error),
    /// The name is not one path element.
    #[error("{0:?} is no name for a network namespace")]
    BadName(String),
    /// The name cannot be put into the file system, or taken out of it.
    #[error("cannot {verb} {path}")]
    Name {
        /// What was tried.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start a thread for the network namespace")]
    Thread(#[source] io::Error),
}

/// A thread that was to work in a namespace gave no result.
#[derive(Debug, thiserror::Error)]
pub enum NetnsThreadError {
    /// It did not get into the namespace.
    #[error("the thread did not enter the network namespace")]
    Enter(#[source] NetnsError),
    /// The closure panicked.
    #[error("the thread in the network namespace panicked: {0}")]
    Panicked(String),
}

impl Netns {
    /// Opens the namespace at a path (`/proc/<pid>/ns/net`, `/run/netns/<name>`).
    ///
    /// # Errors
    /// When the path cannot be opened, or is not a network namespace.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, NetnsError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| NetnsError::Open {
            name: name.clone(),
            source,
        })?;
        Self::checked(file.into(), name)
    }

    /// Opens a namespace that [`create_named`] or `ip netns add` made.
    ///
    /// # Errors
    /// As [`Netns::open`].
    pub fn open_named(name: &str) -> Result<Self, NetnsError> {
        Self::open(named_path(name)?)
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open(OWN)
    }

    /// Takes over a descriptor that another process sent.
    ///
    /// # Errors
    /// When it is not a network namespace; the descriptor is closed then.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, NetnsError> {
        Self::checked(fd, "the received descriptor".to_owned())
    }

    /// A new namespace with no name: it lives as long as its descriptors, its
    /// sockets and the threads inside. The loopback interface is down.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub fn create() -> Result<Self, NetnsError> {
        on_fresh_thread("netns-create", || {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| NetnsError::Create(errno.into()))?;
            Self::current()
        })?
    }

    fn checked(fd: OwnedFd, name: String) -> Result<Self, NetnsError> {
        if !ioctl::is_network_namespace(fd.as_fd()) {
            return Err(NetnsError::NotNetwork { name });
        }
        let file = File::from(fd);
        let meta = file
            .metadata()
            .map_err(|source| NetnsError::Open { name, source })?;
        Ok(Self {
            fd: Arc::new(file.into()),
            inode: meta.ino(),
            device: meta.dev(),
        })
    }

    /// The number that tells this namespace from every other live one.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether a socket is of this namespace. Needs a thread for a moment.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the descriptor is not a socket.
    pub fn owns(&self, socket: &(impl AsFd + Sync)) -> Result<bool, NetnsError> {
        let failed = |source| NetnsError::Open {
            name: "a socket".to_owned(),
            source,
        };
        self.run(|| {
            let own = UdpSocket::bind(("0.0.0.0", 0)).map_err(failed)?;
            let own = sockopt::netns_cookie(own.as_fd()).map_err(failed)?;
            Ok(own == sockopt::netns_cookie(socket.as_fd()).map_err(failed)?)
        })?
    }

    /// Runs a closure inside the namespace on a thread of its own and waits for
    /// it. The calling thread blocks, so the closure must be short.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    ///
    /// # Panics
    /// When the closure does: its panic goes on in the caller.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        on_fresh_thread("netns-run", || {
            self.enter()?;
            Ok(inside())
        })?
    }

    /// Starts a thread that lives inside the namespace. Nothing supervises it: the
    /// caller keeps the handle.
    ///
    /// # Errors
    /// When the thread cannot be started; failure to enter comes out of the handle.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        inside: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, NetnsError>>, NetnsError> {
        let netns = self.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                netns.enter()?;
                Ok(inside())
            })
            .map_err(NetnsError::Thread)
    }

    /// Runs a closure inside the namespace on the calling thread, which returns to
    /// `home` afterwards, also after a panic. For opening one socket without the
    /// price of a thread: the closure must not block and must not await.
    ///
    /// # Errors
    /// When the namespace cannot be entered; the thread is where it was then.
    ///
    /// # Panics
    /// When the closure does. The process aborts when the thread cannot return
    /// home: going on in another pod's namespace would mix up identities.
    pub fn run_here<T>(&self, home: &Self, inside: impl FnOnce() -> T) -> Result<T, NetnsError> {
        if self == home {
            return Ok(inside());
        }
        self.enter()?;
        let _back = Return { home };
        Ok(inside())
    }

    /// Moves the calling thread into the namespace for good.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub fn enter(&self) -> Result<(), NetnsError> {
        setns(self.fd.as_fd(), CloneFlags::CLONE_NEWNET)
            .map_err(|errno| NetnsError::Enter(errno.into()))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PartialEq for Netns {
    fn eq(&self, other: &Self) -> bool {
        self.inode == other.inode && self.device == other.device
    }
}

impl Eq for Netns {}

/// Brings the thread home when the closure is over.
struct Return<'a> {
    home: &'a Netns,
}

impl Drop for Return<'_> {
    fn drop(&mut self) {
        if self.home.enter().is_err() {
            std::process::abort();
        }
    }
}

/// Runs on a thread that ends afterwards, so that nobody inherits its namespace.
fn on_fresh_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    std::thread::scope(|scope| {
        let handle = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)
            .map_err(NetnsError::Thread)?;
        match handle.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The file of a named namespace.
///
/// # Errors
/// When the name is not one plain path element.
pub fn named_path(name: &str) -> Result<PathBuf, NetnsError> {
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if plain {
        Ok(Path::new(NAMED_DIR).join(name))
    } else {
        Err(NetnsError::BadName(name.to_owned()))
    }
}

/// Makes a namespace with a name under /run/netns, as `ip netns add` does: it
/// lives until [`delete_named`]. Its loopback interface is down.
///
/// # Errors
/// When the name is taken, or without CAP_SYS_ADMIN.
pub fn create_named(name: &str) -> Result<Netns, NetnsError> {
    let path = named_path(name)?;
    prepare_named_dir()?;
    let failed = |verb| {
        let path = path.clone();
        move |source| NetnsError::Name { verb, path, source }
    };
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&path)
        .map_err(failed("create"))?;
    let made = on_fresh_thread("netns-create", || {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| NetnsError::Create(errno.into()))?;
        mount(
            Some(OWN),
            &path,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .map_err(|errno| failed("mount a network namespace on")(errno.into()))?;
        Netns::current()
    })
    .flatten();
    if made.is_err() {
        // Best effort: the error that matters is already in hand.
        let _ = umount2(&path, MntFlags::MNT_DETACH);
        let _ = fs::remove_file(&path);
    }
    made
}

/// Takes the name away. The namespace itself goes with its last user. A name that
/// is not there is fine, and so is a left-over plain file.
///
/// # Errors
/// When the file system refuses.
pub fn delete_named(name: &str) -> Result<(), NetnsError> {
    let path = named_path(name)?;
    // More than one mount can lie on it when two programs raced.
    while umount2(&path, MntFlags::MNT_DETACH).is_ok() {}
    match fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(NetnsError::Name {
            verb: "remove",
            path,
            source,
        }),
    }
}

/// The names under /run/netns, sorted.
///
/// # Errors
/// When the directory is there but cannot be read.
pub fn list_named() -> Result<Vec<String>, NetnsError> {
    let failed = |source| NetnsError::Name {
        verb: "list",
        path: NAMED_DIR.into(),
        source,
    };
    let entries = match fs::read_dir(NAMED_DIR) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The directory must be a shared mount of its own, or a name removed here would
/// live on in mount namespaces made meanwhile.
fn prepare_named_dir() -> Result<(), NetnsError> {
    let failed = |verb| {
        move |source| NetnsError::Name {
            verb,
            path: NAMED_DIR.into(),
            source,
        }
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(NAMED_DIR)
        .map_err(failed("create"))?;
    let share = || {
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(None::<&str>, NAMED_DIR, None::<&str>, flags, None::<&str>)
    };
    if share().is_ok() {
        return Ok(());
    }
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(NAMED_DIR), NAMED_DIR, None::<&str>, bind, None::<&str>)
        .map_err(|errno| failed("mount")(errno.into()))?;
    share().map_err(|errno| failed("share")(errno.into()))
}
