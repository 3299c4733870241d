//! Where the programs under test are: beside the running test binary, so that
//! a development test uses development programs and a release one release.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The target directory's profile directory, such as `target/debug`.
///
/// # Errors
/// When the running program is in no such place.
pub fn directory() -> Result<PathBuf> {
    let here = std::env::current_exe().context("path of the running program")?;
    let parent = here
        .parent()
        .context("the running program is in a directory")?;
    let profile = if parent.ends_with("deps") {
        parent.parent()
    } else {
        Some(parent)
    };
    profile
        .map(Path::to_path_buf)
        .context("the running program is in target/<profile>")
}

/// The path of one of our programs.
///
/// # Errors
/// When it was not built, with the command that builds it.
pub fn path(program: &str) -> Result<PathBuf> {
    let path = directory()?.join(program);
    let release = if path.parent().is_some_and(|dir| dir.ends_with("release")) {
        "--release "
    } else {
        ""
    };
    ensure!(
        path.exists(),
        "{} is not built: run `cargo build {release}--workspace --bins` (or `make test`)",
        path.display()
    );
    Ok(path)
}

/// The repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A tool that `make deps` installs into `target/tools`.
///
/// # Errors
/// When it is missing, with the remedy.
pub fn tool(name: &str) -> Result<PathBuf> {
    let path = repository().join("target/tools/bin").join(name);
    ensure!(path.exists(), "{name} is missing: run `make deps`");
    Ok(path)
}
