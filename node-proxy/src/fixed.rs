//! State, certificates and pods from files, in place of the control plane: for tests
//! and for a first look.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_identity::{Identity, TrustDomain};
use culvert_model::Change;
use culvert_netns::Netns;
use culvert_tls::{CertificateStore, IssuedCertificate, WorkloadKey};
use serde::Deserialize;

use crate::document::{DocumentError, MeshDocument};
use crate::pods::packet::{Addition, Info};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FixedError {
    /// Not readable.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Not of the expected form.
    #[error("{path} is not of the expected form: {problem}")]
    Form {
        /// The file.
        path: PathBuf,
        /// Where and what.
        problem: String,
    },
    /// An object in it is not right.
    #[error("{path} does not describe a mesh")]
    Mesh {
        /// The file.
        path: PathBuf,
        /// Which and why.
        #[source]
        source: DocumentError,
    },
    /// A file name that names no identity.
    #[error("{path} is not called <namespace>.<service account>.crt")]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// A key that cannot be used.
    #[error("{path} holds no usable key")]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: culvert_tls::KeyError,
    },
    /// A certificate that cannot be used.
    #[error("{path} holds no usable certificate")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: culvert_tls::AnswerError,
    },
    /// Roots that cannot be used.
    #[error("roots beside {path} cannot be trusted")]
    Trust {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: culvert_tls::TrustError,
    },
    /// A pod's namespace.
    #[error("cannot use the pods of {path}")]
    Netns {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: culvert_netns::NetnsError,
    },
}

/// Reads the mesh's state.
///
/// # Errors
/// When the file cannot be read or an object in it is not right.
pub fn state(path: &Path, trust_domain: &TrustDomain) -> Result<Vec<Change>, FixedError> {
    let document: MeshDocument = read_yaml(path)?;
    document
        .changes(trust_domain)
        .map_err(|source| FixedError::Mesh {
            path: path.to_owned(),
            source,
        })
}

/// Reads all certificates of a directory. Whether they are valid now is not asked:
/// their peers are to find out.
///
/// # Errors
/// When a file cannot be read or does not fit its name.
pub fn certificates(
    directory: &Path,
    trust_domain: &TrustDomain,
) -> Result<CertificateStore, FixedError> {
    let store = CertificateStore::new();
    let roots = read(&directory.join("ca.crt"))?;
    let unreadable = |source| FixedError::Read {
        path: directory.to_owned(),
        source,
    };
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .map_err(unreadable)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if let Some(owner) = name.strip_suffix(".crt").filter(|owner| *owner != "ca") {
            let bad_name = || FixedError::Name { path: path.clone() };
            let (namespace, account) = owner.split_once('.').ok_or_else(bad_name)?;
            let identity =
                Identity::new(trust_domain, namespace, account).map_err(|_| bad_name())?;
            let certificate = certificate(&path, &roots, &identity)?;
            store.set(certificate).map_err(|source| FixedError::Trust {
                path: path.clone(),
                source,
            })?;
        }
    }
    Ok(store)
}

fn certificate(
    path: &Path,
    roots: &[u8],
    identity: &Identity,
) -> Result<IssuedCertificate, FixedError> {
    let chain = read(path)?;
    let key_path = path.with_extension("key");
    let key = WorkloadKey::from_pem(&read(&key_path)?).map_err(|source| FixedError::Key {
        path: key_path,
        source,
    })?;
    IssuedCertificate::from_answer(&[&chain, roots], &key, identity).map_err(|source| {
        FixedError::Certificate {
            path: path.to_owned(),
            source,
        }
    })
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodDocument {
    uid: Arc<str>,
    name: Arc<str>,
    namespace: Arc<str>,
    service_account: Arc<str>,
    /// Path of its network namespace; the process's own when it is left out.
    netns: Option<PathBuf>,
}

/// Reads a list of pods.
///
/// # Errors
/// When the file cannot be read or a namespace cannot be opened.
pub fn pods(path: &Path) -> Result<Vec<Addition<Netns>>, FixedError> {
    let documents: Vec<PodDocument> = read_yaml(path)?;
    let mut pods = Vec::new();
    for PodDocument {
        uid,
        name,
        namespace,
        service_account,
        netns,
    } in documents
    {
        let netns = netns.map_or_else(Netns::current, Netns::open);
        let netns = netns.map_err(|source| FixedError::Netns {
            path: path.to_owned(),
            source,
        })?;
        pods.push(Addition {
            uid,
            info: Info {
                name,
                namespace,
                service_account,
            },
            netns,
        });
    }
    Ok(pods)
}

fn read(path: &Path) -> Result<Vec<u8>, FixedError> {
    fs::read(path).map_err(|source| FixedError::Read {
        path: path.to_owned(),
        source,
    })
}

fn read_yaml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, FixedError> {
    let form = |problem: String| FixedError::Form {
        path: path.to_owned(),
        problem,
    };
    let text = String::from_utf8(read(path)?).map_err(|error| form(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| form(error.to_string()))
}
