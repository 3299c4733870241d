//! Opens many connections and holds them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::socket;

/// Opens `connections` to a conversation server, waits for each greeting, makes
/// the file `held` and keeps them until `stop` appears.
///
/// # Errors
/// When one cannot be opened.
pub fn run(target: &str, connections: usize, stop: &Path, open: Option<&Path>) -> Result<()> {
    let limit = Duration::from_secs(30);
    let mut held = Vec::with_capacity(connections);
    for number in 0..connections {
        let stream = socket::connect(target, limit)
            .with_context(|| format!("connection {number} of {connections}"))?;
        let mut greeting = String::new();
        BufReader::with_capacity(128, &stream)
            .read_line(&mut greeting)
            .context("greeting")?;
        ensure!(!greeting.is_empty(), "connection {number} was closed");
        held.push(stream);
    }
    if let Some(open) = open {
        std::fs::write(open, "").with_context(|| open.display().to_string())?;
    }
    while !socket::told_to_stop(Some(stop)) {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Keeps one connection in use: sends a line ten times a second until `stop`
/// appears. While it does, the file `STOP.open.PID` exists.
///
/// # Errors
/// As soon as the connection breaks.
pub fn watch(target: &str, stop: &Path) -> Result<()> {
    let mut stream = socket::connect(target, Duration::from_secs(30)).context("connect")?;
    let mut lines = BufReader::new(stream.try_clone().context("clone")?);
    let mut line = String::new();
    lines.read_line(&mut line).context("greeting")?;
    ensure!(!line.is_empty(), "closed before the greeting");
    let mark = PathBuf::from(format!("{}.open.{}", stop.display(), std::process::id()));
    std::fs::write(&mark, "").with_context(|| mark.display().to_string())?;
    let outcome = loop {
        if socket::told_to_stop(Some(stop)) {
            break Ok(());
        }
        line.clear();
        let echoed = stream
            .write_all(b"still here\n")
            .and_then(|()| lines.read_line(&mut line));
        match echoed {
            Ok(11) => thread::sleep(Duration::from_millis(100)),
            Ok(_) => break Err(anyhow::anyhow!("the connection was ended")),
            Err(error) => break Err(error).context("the connection broke"),
        }
    };
    std::fs::remove_file(&mark).with_context(|| mark.display().to_string())?;
    outcome
}
