//! Directories of manifests: fixtures with the places of this machine filled in.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::binaries;

/// A copy of a fixture directory that a test may edit.
#[derive(Debug)]
pub struct Manifests {
    directory: TempDir,
}

impl Manifests {
    /// An empty directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn empty() -> Result<Self> {
        // /tmp, since programs in pods run as other users as well.
        let directory = tempfile::Builder::new().prefix("culvert-test-").tempdir()?;
        Ok(Self { directory })
    }

    /// A copy of `tests/fixtures/NAME`; what is not YAML goes to the scratch space.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn fixture(name: &str) -> Result<Self> {
        Self::copy_of(
            &Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fixtures")
                .join(name),
        )
    }

    /// A copy of any directory; what is not YAML goes to the scratch space.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn copy_of(from: &Path) -> Result<Self> {
        let manifests = Self::empty()?;
        let entries = fs::read_dir(from).with_context(|| from.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let name = path
                .file_name()
                .context("a file has a name")?
                .to_string_lossy();
            if path
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                manifests.write(&name, &text)?;
            } else {
                manifests.write_work(&name, &text)?;
            }
        }
        Ok(manifests)
    }

    /// Writes a file, with `@TESTKIT@` and `@WORK@` replaced by the test
    /// programs' path and this directory's scratch space. The file appears at
    /// once and whole, as an editor's would.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let text = self.filled_in(text)?;
        let path = self.path().join(name);
        let unfinished = self.path().join(format!(".{name}.new"));
        fs::write(&unfinished, text).with_context(|| unfinished.display().to_string())?;
        fs::rename(&unfinished, &path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    fn write_work(&self, name: &str, text: &str) -> Result<()> {
        let path = self.work()?.join(name);
        std::fs::write(&path, self.filled_in(text)?).with_context(|| path.display().to_string())
    }

    fn filled_in(&self, text: &str) -> Result<String> {
        let testkit = binaries::path("culvert-testkit")?;
        Ok(text
            .replace("@TESTKIT@", &testkit.to_string_lossy())
            .replace("@WORK@", &self.work()?.to_string_lossy()))
    }

    /// Replaces one text in a file.
    ///
    /// # Errors
    /// When the text is not in it.
    pub fn edit(&self, name: &str, from: &str, to: &str) -> Result<()> {
        let path = self.path().join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        anyhow::ensure!(text.contains(from), "`{from}` is not in {name}");
        self.write(name, &text.replace(from, to))?;
        Ok(())
    }

    /// Removes a file.
    ///
    /// # Errors
    /// When it is not there.
    pub fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.path().join(name)).with_context(|| name.to_owned())
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A scratch directory for data of the programs, not read as manifests.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn work(&self) -> Result<PathBuf> {
        let name = self
            .directory
            .path()
            .file_name()
            .context("a temporary directory has a name")?;
        let work = std::env::temp_dir().join(format!("{}-work", name.to_string_lossy()));
        fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
        Ok(work)
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        // Left-over scratch files are no reason to fail.
        let _ = self.work().map(fs::remove_dir_all);
    }
}
