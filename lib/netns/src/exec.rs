//! Becoming another program inside a namespace, with its own files over some of
//! the machine's (resolv.conf, hosts) and its own host name.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::sethostname;

use crate::limits::{LimitError, raise_open_files};
use crate::namespace::{Netns, NetnsError};

/// A file that is to be seen in place of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBind {
    /// The file with the content.
    pub source: PathBuf,
    /// The path that shows it, which must exist (a symbolic link is followed).
    pub target: PathBuf,
}

/// What to run, and as what.
#[derive(Debug, Clone)]
pub struct ExecPlan {
    /// The network to live in.
    pub netns: Netns,
    /// Files to lay over the machine's, for this program alone.
    pub binds: Vec<FileBind>,
    /// Its host name; none keeps the machine's.
    pub hostname: Option<String>,
    /// The program, looked up in the PATH of `environment`.
    pub program: OsString,
    /// Its arguments, without the program's name.
    pub arguments: Vec<OsString>,
    /// Its whole environment: nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// Its working directory; none keeps the present one.
    pub directory: Option<PathBuf>,
}

/// Why the program does not run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The namespace.
    #[error("cannot run {program:?}")]
    Netns {
        /// The program.
        program: OsString,
        /// The cause.
        #[source]
        source: NetnsError,
    },
    /// The limit of open files.
    #[error("cannot run {program:?}")]
    Limit {
        /// The program.
        program: OsString,
        /// The cause.
        #[source]
        source: LimitError,
    },
    /// A mount or host name.
    #[error("cannot {step}")]
    Prepare {
        /// What was tried.
        step: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The program itself.
    #[error("cannot execute {program:?}")]
    Exec {
        /// The program.
        program: OsString,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Replaces the calling program. Returns only on failure, and the calling thread is
/// in the new namespaces then: the process should end.
///
/// # Errors
/// When a namespace cannot be entered or made, a file is missing, or the program
/// cannot be executed.
pub fn exec(plan: &ExecPlan) -> Result<Infallible, ExecError> {
    let program = || plan.program.clone();
    raise_open_files().map_err(|source| ExecError::Limit {
        program: program(),
        source,
    })?;
    plan.netns.enter().map_err(|source| ExecError::Netns {
        program: program(),
        source,
    })?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
        .map_err(|errno| prepare("make a mount and a host name namespace", errno))?;
    // Nothing mounted here may reach the machine.
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(|errno| prepare("make the mounts private", errno))?;
    for bind in &plan.binds {
        lay_over(&bind.source, &bind.target)?;
    }
    if let Some(name) = &plan.hostname {
        sethostname(name).map_err(|errno| prepare(format!("set the host name {name}"), errno))?;
    }
    let mut command = Command::new(&plan.program);
    command
        .args(&plan.arguments)
        .env_clear()
        .envs(plan.environment.iter().cloned());
    if let Some(directory) = &plan.directory {
        command.current_dir(directory);
    }
    Err(ExecError::Exec {
        program: program(),
        source: command.exec(),
    })
}

fn lay_over(source: &Path, target: &Path) -> Result<(), ExecError> {
    let step = || format!("show {} at {}", source.display(), target.display());
    mount(
        Some(source),
        target,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(|errno| prepare(step(), errno))
}

fn prepare(step: impl Into<String>, errno: nix::Error) -> ExecError {
    ExecError::Prepare {
        step: step.into(),
        source: errno.into(),
    }
}
