//! The processes of a mesh, found in /proc: tests kill them as an operator's
//! accident would, without asking the engine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One process.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its id.
    pub id: i32,
    /// Its program's path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    environment: Vec<String>,
}

impl Process {
    /// Reads one process; `None` when it has ended.
    #[must_use]
    pub fn read(id: i32) -> Option<Self> {
        let base = PathBuf::from(format!("/proc/{id}"));
        let program = fs::read_link(base.join("exe")).ok()?;
        let words = |name: &str| {
            let bytes = fs::read(base.join(name)).unwrap_or_default();
            let words = bytes
                .split(|byte| *byte == 0)
                .filter(|word| !word.is_empty());
            words
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect::<Vec<_>>()
        };
        Some(Self {
            id,
            program,
            arguments: words("cmdline"),
            environment: words("environ"),
        })
    }

    /// The value of one of its variables.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<String> {
        let find = |word: &String| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        self.environment.iter().find_map(find)
    }

    /// All of its variables.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment
            .iter()
            .filter_map(|word| word.split_once('='))
    }

    /// Sends a signal; a process that has ended is no error.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match kill(Pid::from_raw(self.id), signal) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("signal {}", self.id)),
        }
    }

    /// Whether it still runs (a zombie does not).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// User and system time used so far, in seconds.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id)).context("it has ended")?;
        let (_, rest) = stat.rsplit_once(") ").context("stat")?;
        let ticks: Vec<f64> = rest
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|word| word.parse().ok())
            .collect();
        // USER_HZ is 100 on every architecture that we build for.
        Ok(ticks.iter().sum::<f64>() / 100.0)
    }

    /// Resident memory in MiB.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident_mib(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).context("ended")?;
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .context("VmRSS")?;
        let kib: f64 = line.split_whitespace().nth(1).context("VmRSS")?.parse()?;
        Ok(kib / 1024.0)
    }
}

/// All processes of the machine.
///
/// # Errors
/// When /proc cannot be read.
pub fn all() -> Result<Vec<Process>> {
    let entries = fs::read_dir("/proc").context("/proc")?;
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(ids.filter_map(Process::read).collect())
}

/// The processes that have `directory` in an argument or variable.
///
/// # Errors
/// When /proc cannot be read.
pub fn that_mention(directory: &Path) -> Result<Vec<Process>> {
    let needle = format!("{}/", directory.display());
    let mentions = |process: &Process| {
        process
            .arguments
            .iter()
            .chain(&process.environment)
            .any(|word| word.contains(&needle) || word.ends_with(needle.trim_end_matches('/')))
    };
    Ok(all()?.into_iter().filter(mentions).collect())
}
