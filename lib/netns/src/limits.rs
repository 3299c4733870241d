//! Limits of the process.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit could not be read or set.
#[derive(Debug, thiserror::Error)]
#[error("cannot raise the limit of open files")]
pub struct LimitError(#[source] io::Error);

/// Raises the soft limit of open files to the hard one and returns it.
///
/// # Errors
/// When the kernel refuses, which it does not for a value up to the hard limit.
pub fn raise_open_files() -> Result<u64, LimitError> {
    let failed = |errno: nix::Error| LimitError(errno.into());
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(failed)?;
    }
    Ok(hard)
}
