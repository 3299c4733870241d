//! Processes found by the namespaces they live in, and signals to them. Works
//! after a crash of everything, since it asks only the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Which namespace is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// Mounts.
    Mount,
    /// Network.
    Network,
}

impl Namespace {
    fn file(self) -> &'static str {
        match self {
            Self::Mount => "mnt",
            Self::Network => "net",
        }
    }
}

/// Every process number, kernel threads too.
pub(crate) fn all() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Inode of a namespace of a process.
pub(crate) fn inode(pid: i32, namespace: Namespace) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/{}", namespace.file())).ok()?;
    // "net:[4026531840]"
    let text = link.to_str()?;
    text.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

/// Processes in any of the namespaces.
pub(crate) fn inside(namespace: Namespace, inodes: &BTreeSet<u64>) -> Vec<i32> {
    all()
        .into_iter()
        .filter(|pid| inode(*pid, namespace).is_some_and(|one| inodes.contains(&one)))
        .collect()
}

/// Processes of our own programs that name a directory in their arguments or
/// environment.
pub(crate) fn naming(directory: &Path) -> Vec<i32> {
    let needle = directory.as_os_str().as_encoded_bytes();
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let names = |pid: i32| {
        ["cmdline", "environ"].iter().any(|file| {
            fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|bytes| {
                bytes
                    .split(|byte| *byte == 0)
                    .any(|word| names_directory(word, needle))
            })
        })
    };
    all()
        .into_iter()
        .filter(|pid| *pid != own && is_ours(*pid) && names(*pid))
        .collect()
}

fn names_directory(word: &[u8], directory: &[u8]) -> bool {
    word.windows(directory.len())
        .enumerate()
        .filter(|(_, window)| *window == directory)
        .any(|(at, _)| {
            matches!(
                word.get(at + directory.len()),
                None | Some(b'/' | b':' | b' ')
            )
        })
}

/// Whether the process runs one of our programs.
fn is_ours(pid: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().starts_with("culvert")
}

/// What a process is, for reports.
pub(crate) fn describe(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    let short: String = text.trim().chars().take(60).collect();
    format!("{pid} ({short})")
}

/// Sends a signal; a process that is gone is fine.
pub(crate) fn signal(pid: i32, signal: Signal) {
    if pid > 1 {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Sends a signal to a whole session's group, or to the process when it has none.
pub(crate) fn signal_group(pid: i32, signal_: Signal) {
    if pid > 1 && killpg(Pid::from_raw(pid), signal_).is_err() {
        signal(pid, signal_);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_namespaces_are_known() {
        let own = i32::try_from(std::process::id()).expect("pid");
        let network = inode(own, Namespace::Network).expect("network namespace");
        assert!(inside(Namespace::Network, &BTreeSet::from([network])).contains(&own));
        assert!(inside(Namespace::Network, &BTreeSet::new()).is_empty());
    }

    #[test]
    fn a_directory_is_named_whole() {
        let check = |word: &str, expect: bool| {
            assert_eq!(
                names_directory(word.as_bytes(), b"/run/culvert/a"),
                expect,
                "{word}"
            );
        };
        check("/run/culvert/a", true);
        check("X=/run/culvert/a/objects:/x", true);
        check("/run/culvert/ab", false);
        check("/run", false);
    }
}
