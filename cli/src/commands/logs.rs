//! `culvert logs`: output of containers, and of the mesh's programs.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::names;
use crate::args::Logs;
use crate::client::Client;
use crate::engine::kubelet::logs::rotated;
use crate::engine::object::uid;
use crate::output::print;
use crate::state::StateDir;

/// How often a followed log is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command.
pub(crate) async fn run(args: &Logs, state: &StateDir) -> Result<ExitCode> {
    let file = match program_log(state, &args.pod) {
        Some(file) => file,
        None => container_log(args, state).await?,
    };
    if !file.exists() {
        if args.previous {
            bail!("there was no run before the present one");
        }
        if !args.follow {
            bail!("no output yet");
        }
    }
    let mut place = show(&file, args.tail)?;
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        tokio::time::sleep(LOOK).await;
        // The log goes with its pod.
        if file.parent().is_none_or(|directory| !directory.exists()) {
            return Ok(ExitCode::SUCCESS);
        }
        place = show_more(&file, place)?;
    }
}

/// Log of a program of the mesh: `engine`, `dns`, `ca`, `node-proxy/node-1`, ...
fn program_log(state: &StateDir, typed: &str) -> Option<PathBuf> {
    let (program, node) = typed
        .split_once('/')
        .map_or((typed, None), |(one, node)| (one, Some(node)));
    let known = ["engine", "dns", "ca", "discovery", "cni", "node-proxy"];
    let program = program.strip_prefix("culvert-").unwrap_or(program);
    if !known.contains(&program) || (node.is_some() != matches!(program, "cni" | "node-proxy")) {
        return None;
    }
    let name = match (program, node) {
        ("engine", _) => "engine".to_owned(),
        (program, None) => format!("culvert-{program}"),
        (program, Some(node)) => format!("culvert-{program}.{node}"),
    };
    Some(state.log(&name))
}

async fn container_log(args: &Logs, state: &StateDir) -> Result<PathBuf> {
    let client = Client::new(state);
    let pod = names::pod(&client, &args.pod, args.namespace.as_deref()).await?;
    let container = names::container(&pod, args.container.as_deref())?;
    let end = if args.previous { "previous.log" } else { "log" };
    Ok(state
        .pod(uid(&pod))
        .join("logs")
        .join(format!("{container}.{end}")))
}

/// Where reading stopped: file and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    inode: u64,
    offset: u64,
}

fn show(file: &Path, tail: Option<usize>) -> Result<Place> {
    let older = rotated(file);
    let parts: Vec<_> = [older.as_path(), file]
        .into_iter()
        .filter(|path| path.exists())
        .collect();
    let mut place = Place::default();
    let mut last: VecDeque<Vec<u8>> = VecDeque::new();
    for part in parts {
        let mut reader =
            BufReader::new(File::open(part).with_context(|| part.display().to_string())?);
        let mut line = Vec::new();
        let mut offset = 0;
        while reader.read_until(b'\n', &mut line)? > 0 {
            offset += line.len() as u64;
            match tail {
                None => print(String::from_utf8_lossy(&line)),
                Some(limit) => {
                    last.push_back(std::mem::take(&mut line));
                    if last.len() > limit {
                        last.pop_front();
                    }
                }
            }
            line.clear();
        }
        place = Place {
            inode: reader.get_ref().metadata()?.ino(),
            offset,
        };
    }
    for line in last {
        print(String::from_utf8_lossy(&line));
    }
    Ok(place)
}

fn show_more(file: &Path, place: Place) -> Result<Place> {
    let Ok(mut open) = File::open(file) else {
        return Ok(place);
    };
    let inode = open.metadata()?.ino();
    let mut offset = place.offset;
    if inode != place.inode {
        // Started anew: the rest of the old part first.
        if let Ok(mut old) = File::open(rotated(file))
            && old.metadata()?.ino() == place.inode
        {
            copy_from(&mut old, offset)?;
        }
        offset = 0;
    }
    offset += copy_from(&mut open, offset)?;
    Ok(Place { inode, offset })
}

fn copy_from(file: &mut File, offset: u64) -> Result<u64> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    print(String::from_utf8_lossy(&bytes));
    Ok(bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_from_pods() {
        let state = StateDir::new(Path::new("/run/culvert"), "t").expect("state");
        let check = |typed: &str, expect: Option<&str>| {
            let found = program_log(&state, typed);
            let name = found
                .as_deref()
                .and_then(Path::file_name)
                .map(|name| name.to_string_lossy().into_owned());
            assert_eq!(name.as_deref(), expect, "{typed}");
        };
        check("node-proxy/node-1", Some("culvert-node-proxy.node-1.log"));
        check("culvert-ca", Some("culvert-ca.log"));
        check("engine", Some("engine.log"));
        check("node-proxy", None);
        check("web-0", None);
    }

    #[test]
    fn a_followed_log_survives_rotation() {
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("c.log");
        std::fs::write(&file, "one\n").expect("written");
        let place = show(&file, None).expect("shown");
        std::fs::rename(&file, rotated(&file)).expect("renamed");
        std::fs::write(&file, "two\nthree\n").expect("written");
        let place = show_more(&file, place).expect("shown");
        assert_eq!(place.offset, 10);
    }
}
