//! Commands with a deadline, whose failure shows everything they said.

use std::ffi::OsStr;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::time::Instant;

/// What a command that ended has said.
#[derive(Debug, Clone)]
pub struct Said {
    /// The command, for messages.
    pub line: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: String,
}

impl Said {
    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Itself, if the command succeeded.
    ///
    /// # Errors
    /// With all that it said, if not.
    pub fn succeeded(self) -> Result<Self> {
        ensure!(self.status.success(), "{self}");
        Ok(self)
    }

    /// Itself, if the command failed.
    ///
    /// # Errors
    /// With all that it said, if not.
    pub fn failed(self) -> Result<Self> {
        ensure!(!self.status.success(), "should have failed: {self}");
        Ok(self)
    }

    /// Standard output as JSON.
    ///
    /// # Errors
    /// When it failed or is no JSON.
    pub fn json<T: serde::de::DeserializeOwned>(self) -> Result<T> {
        let said = self.succeeded()?;
        serde_json::from_slice(&said.out).with_context(|| said.to_string())
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.text();
        let tail = |text: &str| {
            text.chars()
                .rev()
                .take(4000)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<String>()
        };
        write!(
            f,
            "`{}` ended with {}\n{}{}",
            self.line,
            self.status,
            tail(&text),
            tail(&self.err)
        )
    }
}

/// A command that runs in the background and is killed when dropped.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
}

/// Starts a command with its output collected.
///
/// # Errors
/// When it cannot be started.
pub fn start(command: &mut Command) -> Result<Running> {
    let line = describe(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start `{line}`"))?;
    let out = child.stdout.take().map(collect);
    let err = child.stderr.take().map(collect);
    Ok(Running {
        line,
        child,
        out,
        err,
    })
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started or does not end in time; a failing command is not
/// an error here, see [`Said::succeeded`].
pub fn run(command: &mut Command, limit: Duration) -> Result<Said> {
    start(command)?.wait(limit)
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pipe that breaks ends the output.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

impl Running {
    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("state of a child")?.is_some())
    }

    /// Waits for its end; kills it when time is over.
    ///
    /// # Errors
    /// When time is over.
    pub fn wait(mut self, limit: Duration) -> Result<Said> {
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(2);
        loop {
            if let Some(status) = self.child.try_wait().context("state of a child")? {
                return Ok(self.said(status));
            }
            if Instant::now() >= deadline {
                let _ = self.child.kill();
                let status = self.child.wait().context("end of a killed child")?;
                bail!("not within {limit:?}: {}", self.said(status));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    fn said(&mut self, status: ExitStatus) -> Said {
        let text = |pipe: &mut Option<JoinHandle<Vec<u8>>>| {
            pipe.take()
                .and_then(|reader| reader.join().ok())
                .unwrap_or_default()
        };
        let out = text(&mut self.out);
        let err = String::from_utf8_lossy(&text(&mut self.err)).into_owned();
        Said {
            line: self.line.clone(),
            status,
            out,
            err,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An ended child gives an error, which says nothing new.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
