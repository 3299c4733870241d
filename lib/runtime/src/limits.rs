//! Raises the limit of open files to what the system permits.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit of open files of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimit {
    /// What was in force before.
    pub before: u64,
    /// What is in force now: the hard limit.
    pub now: u64,
}

/// The limit could not be raised.
#[derive(Debug, thiserror::Error)]
#[error("could not raise the limit of open files from {before} to {hard}")]
pub struct LimitError {
    before: u64,
    hard: u64,
    #[source]
    source: std::io::Error,
}

/// Sets the soft limit of open files to the hard limit.
///
/// A proxy holds two or more descriptors a connection and the usual soft limit
/// is 1,024. The hard limit may be too low as well and cannot be raised here:
/// beyond it the proxies shed connections and count them.
///
/// # Errors
/// When the system refuses.
pub fn raise_file_limit() -> Result<FileLimit, LimitError> {
    let limit = getrlimit(Resource::Nofile);
    let before = limit.current.unwrap_or(u64::MAX);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    if before == hard {
        return Ok(FileLimit { before, now: hard });
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )
    .map_err(|error| LimitError {
        before,
        hard,
        source: error.into(),
    })?;
    Ok(FileLimit { before, now: hard })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_becomes_hard() {
        let first = raise_file_limit().expect("raising soft to hard needs no privilege");
        assert!(first.now >= first.before);
        let second = raise_file_limit().expect("idempotent");
        assert_eq!(second.before, first.now);
    }
}
