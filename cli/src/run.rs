//! `culvert run SPEC`: becomes another program inside a network namespace. The
//! engine starts every container and every program of the mesh this way, and
//! `culvert exec` enters a pod with it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use culvert_netns::{ExecPlan, FileBind, Netns};
use serde::{Deserialize, Serialize};

/// What to become. Written by the engine, read by `culvert run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunSpec {
    /// Path of the network namespace.
    pub netns: PathBuf,
    /// Files and directories over the machine's; none at all keeps the machine's
    /// mounts and host name.
    pub files: Option<OwnFiles>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The whole environment.
    pub environment: Vec<(String, String)>,
    /// Working directory.
    pub directory: Option<PathBuf>,
    /// Whom to run as.
    pub user: Option<User>,
}

/// A view of the file system of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnFiles {
    /// Pairs of what is shown and where.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Host name.
    pub hostname: String,
}

/// A user, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl RunSpec {
    /// Reads a specification.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let bytes =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&bytes)
            .with_context(|| format!("cannot understand {}", path.display()))
    }

    /// Becomes the program. Returns only on failure.
    pub(crate) fn become_it(&self) -> Result<Infallible> {
        // A session of its own: the engine signals the whole of it. Failure means
        // that this process leads a group already, which does as well.
        let _ = nix::unistd::setsid();
        self.become_in_session()
    }

    /// Becomes the program in the caller's session, for a person at a terminal.
    pub(crate) fn become_in_session(&self) -> Result<Infallible> {
        let netns = Netns::open(&self.netns)?;
        let Some((program, arguments)) = self.command.split_first() else {
            bail!("no command");
        };
        let (program, arguments) = match self.user {
            None => (
                OsString::from(program),
                arguments.iter().map(OsString::from).collect(),
            ),
            Some(user) => as_user(user, &self.command)?,
        };
        let environment: Vec<(OsString, OsString)> = self
            .environment
            .iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        let Some(files) = &self.files else {
            netns.enter()?;
            let mut command = Command::new(&program);
            command.args(arguments).env_clear().envs(environment);
            if let Some(directory) = &self.directory {
                command.current_dir(directory);
            }
            return Err(command.exec())
                .with_context(|| format!("cannot execute {}", program.display()));
        };
        let bind = |(source, target): &(PathBuf, PathBuf)| FileBind {
            source: source.clone(),
            target: target.clone(),
        };
        let plan = ExecPlan {
            netns,
            binds: files.binds.iter().map(bind).collect(),
            hostname: Some(files.hostname.clone()),
            program,
            arguments,
            environment,
            directory: self.directory.clone(),
        };
        Ok(culvert_netns::exec(&plan)?)
    }
}

/// This program once more, to change the user when all mounts are made.
fn as_user(user: User, command: &[String]) -> Result<(OsString, Vec<OsString>)> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut arguments: Vec<OsString> = vec!["run-as".into()];
    arguments.push(format!("{}:{}", user.uid, user.gid).into());
    arguments.push("--".into());
    arguments.extend(command.iter().map(OsString::from));
    Ok((own.into(), arguments))
}

/// `culvert run-as UID:GID -- COMMAND`: gives up root and becomes the command.
pub(crate) fn run_as(user: &str, command: &[String]) -> Result<Infallible> {
    let (uid, gid) = user.split_once(':').context("expected UID:GID")?;
    let (uid, gid) = (uid.parse().context("user")?, gid.parse().context("group")?);
    let group = nix::unistd::Gid::from_raw(gid);
    nix::unistd::setgroups(&[group]).context("cannot set the groups")?;
    nix::unistd::setgid(group).context("cannot set the group")?;
    nix::unistd::setuid(nix::unistd::Uid::from_raw(uid)).context("cannot set the user")?;
    let (program, arguments) = command.split_first().context("no command")?;
    Err(Command::new(program).args(arguments).exec())
        .with_context(|| format!("cannot execute {program}"))
}
