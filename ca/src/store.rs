//! The authority's state on disk: one file, replaced as a whole.
//!
//! Root, intermediate, keys and the progress of a rotation are one JSON
//! document, written aside, flushed and renamed: after a crash there is either
//! the old state or the new one, and never a mixture.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use culvert_identity::{ParseTrustDomainError, TrustDomain};
use culvert_tls::ca::{Authority, AuthorityError};
use serde::{Deserialize, Serialize};

use crate::rotate::{Hierarchy, Next, Retired, State};

const STATE_FILE: &str = "authority.json";
const LOCK_FILE: &str = "lock";
const VERSION: u32 = 1;

/// The directory with the state, held by one process at a time.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    _lock: File,
}

/// Why the state cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Something on the way failed.
    #[error("cannot {action} {path}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Others than the owner may look.
    #[error(
        "{path} has mode {mode:04o}, so that others can reach the signing keys; run `chmod {wanted:o} {path}`",
        path = path.display()
    )]
    Loose {
        /// The file or directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// What they must be.
        wanted: u32,
    },
    /// Somebody else owns it.
    #[error("{path} belongs to uid {owner}, expected {expected}; run `chown {expected} {path}`", path = path.display())]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose it must be.
        expected: u32,
    },
    /// Another CA runs on the same directory.
    #[error("{path} is in use by another culvert-ca", path = path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The document cannot be read.
    #[error("{path} is not a state of this program", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// Written by another version of this program.
    #[error("{path} has version {version}, expected {VERSION}", path = path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: u32,
    },
    /// A certificate or key in it is broken.
    #[error("{path} holds a broken {what}", path = path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: AuthorityError,
    },
    /// The trust domain in it is no trust domain.
    #[error("{path} names no trust domain", path = path.display())]
    BadTrustDomain {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: ParseTrustDomainError,
    },
    /// It belongs to another mesh.
    #[error("{path} is of trust domain {found}, expected {expected}; set CULVERT_TRUST_DOMAIN or use another directory", path = path.display())]
    OtherTrustDomain {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: TrustDomain,
        /// What is configured.
        expected: TrustDomain,
    },
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    trust_domain: String,
    active: HierarchyDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<NextDocument>,
    #[serde(default)]
    retired: Vec<RetiredDocument>,
}

#[derive(Serialize, Deserialize)]
struct HierarchyDocument {
    root: AuthorityDocument,
    intermediate: AuthorityDocument,
}

#[derive(Serialize, Deserialize)]
struct AuthorityDocument {
    certificate: String,
    key: String,
}

#[derive(Serialize, Deserialize)]
struct NextDocument {
    hierarchy: HierarchyDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    switch_at_seconds: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct RetiredDocument {
    certificate: String,
    prune_at_seconds: u64,
}

impl Store {
    /// Opens the directory, makes it when it is missing, and takes it for this
    /// process.
    ///
    /// # Errors
    /// When others than the owner can reach it, or another CA uses it.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent).map_err(failed("make", parent))?;
        }
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("make", directory)(error));
            }
            _ => check_private(directory, 0o700)?,
        }
        let path = directory.join(LOCK_FILE);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                directory: directory.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked {
                path: directory.to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
        }
    }

    /// Reads the state; `None` when there is none yet.
    ///
    /// # Errors
    /// When it cannot be read, is of another trust domain, or others than the
    /// owner can reach it.
    pub fn load(&self, expected: &TrustDomain) -> Result<Option<State>, StoreError> {
        let path = self.directory.join(STATE_FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        check_private(&path, 0o600)?;
        let document: Document =
            serde_json::from_slice(&text).map_err(|source| StoreError::Parse {
                path: path.clone(),
                source,
            })?;
        let state = document.into_state(&path)?;
        if state.trust_domain != *expected {
            return Err(StoreError::OtherTrustDomain {
                path,
                found: state.trust_domain,
                expected: expected.clone(),
            });
        }
        Ok(Some(state))
    }

    /// Replaces the state, durably and as a whole.
    ///
    /// # Errors
    /// When it cannot be written; the old state is still there then.
    ///
    /// # Panics
    /// Never: a document of strings and numbers has a JSON form.
    pub fn save(&self, state: &State) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(&Document::from(state))
            .expect("invariant: a document of strings and numbers has a JSON form");
        replace(&self.directory.join(STATE_FILE), &text, 0o600)
    }
}

/// Writes a file aside, flushes it and renames it into place.
///
/// # Errors
/// When it cannot be written; what was there before stays.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), StoreError> {
    let temporary = path.with_extension("tmp");
    // Left by a crash; it may be half written or have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", &temporary)(error));
        }
        _ => {}
    }
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed("make", &temporary))?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(failed("write", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("replace", path))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("flush", directory))
}

fn check_private(path: &Path, wanted: u32) -> Result<(), StoreError> {
    let metadata = fs::metadata(path).map_err(failed("look at", path))?;
    let expected = rustix::process::geteuid().as_raw();
    if metadata.uid() != expected {
        return Err(StoreError::Owner {
            path: path.to_owned(),
            owner: metadata.uid(),
            expected,
        });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(StoreError::Loose {
            path: path.to_owned(),
            mode,
            wanted,
        });
    }
    Ok(())
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io {
        action,
        path,
        source,
    }
}

impl From<&State> for Document {
    fn from(state: &State) -> Self {
        Self {
            version: VERSION,
            trust_domain: state.trust_domain.to_string(),
            active: HierarchyDocument::from(&state.active),
            next: state.next.as_ref().map(|next| NextDocument {
                hierarchy: HierarchyDocument::from(&next.hierarchy),
                switch_at_seconds: next.switch_at.map(seconds),
            }),
            retired: state.retired.iter().map(RetiredDocument::from).collect(),
        }
    }
}

impl From<&Hierarchy> for HierarchyDocument {
    fn from(hierarchy: &Hierarchy) -> Self {
        Self {
            root: AuthorityDocument::from(&*hierarchy.root),
            intermediate: AuthorityDocument::from(&*hierarchy.intermediate),
        }
    }
}

impl From<&Authority> for AuthorityDocument {
    fn from(authority: &Authority) -> Self {
        Self {
            certificate: authority.certificate_pem().to_owned(),
            key: authority.key_pem(),
        }
    }
}

impl From<&Retired> for RetiredDocument {
    fn from(retired: &Retired) -> Self {
        Self {
            certificate: retired.certificate_pem.clone(),
            prune_at_seconds: seconds(retired.prune_at),
        }
    }
}

impl Document {
    fn into_state(self, path: &Path) -> Result<State, StoreError> {
        if self.version != VERSION {
            return Err(StoreError::Version {
                path: path.to_owned(),
                version: self.version,
            });
        }
        let trust_domain =
            self.trust_domain
                .parse()
                .map_err(|source| StoreError::BadTrustDomain {
                    path: path.to_owned(),
                    source,
                })?;
        let next = self.next.map(|next| {
            Ok(Next {
                hierarchy: next.hierarchy.read(path)?,
                switch_at: next.switch_at_seconds.map(time),
            })
        });
        Ok(State {
            trust_domain,
            active: self.active.read(path)?,
            next: next.transpose()?,
            retired: self.retired.into_iter().map(Retired::from).collect(),
        })
    }
}

impl HierarchyDocument {
    fn read(self, path: &Path) -> Result<Hierarchy, StoreError> {
        Ok(Hierarchy {
            root: self.root.read("root", path)?,
            intermediate: self.intermediate.read("intermediate", path)?,
        })
    }
}

impl AuthorityDocument {
    fn read(&self, what: &'static str, path: &Path) -> Result<Arc<Authority>, StoreError> {
        let authority = Authority::from_pem(&self.certificate, &self.key);
        authority
            .map(Arc::new)
            .map_err(|source| StoreError::Authority {
                path: path.to_owned(),
                what,
                source,
            })
    }
}

impl From<RetiredDocument> for Retired {
    fn from(document: RetiredDocument) -> Self {
        Self {
            certificate_pem: document.certificate,
            prune_at: time(document.prune_at_seconds),
        }
    }
}

pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}

fn time(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests;
