//! Certificates for peers that misbehave: from the mesh's own CA with a fault,
//! and from authorities that the mesh does not know.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use culvert_identity::{Identity, TrustDomain};
use culvert_tls::IssuedCertificate;
use culvert_tls::ca::{Authority, LeafRequest, Usage, Validity};

use super::mesh::Mesh;

const HOUR: Duration = Duration::from_secs(3600);

/// Something that signs certificates.
#[derive(Debug)]
pub struct Signer {
    authority: Authority,
    /// The signing certificate and those above it, without the root.
    above: Vec<String>,
    /// The roots that the holder of a certificate trusts: the mesh's own, so
    /// that a bad client gets as far as being judged.
    roots: String,
}

/// What is wrong with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// It may be used by servers only.
    ServerOnly,
}

impl Signer {
    /// The mesh's own CA, read from its state directory as only root can.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn of_mesh(mesh: &Mesh) -> Result<Self> {
        let state = mesh.directory().join("ca");
        let pems = pem_files(&state)?;
        let roots = std::fs::read_to_string(mesh.directory().join("root-cert.pem"))
            .context("root bundle of the mesh")?;
        let mut signers = Vec::new();
        for (certificate, key) in pairs(&pems) {
            signers.extend(Authority::from_pem(certificate, key));
        }
        // The intermediate is the one whose certificate is not a root.
        let authority = signers
            .into_iter()
            .find(|signer| !roots.contains(signer.certificate_pem().trim()))
            .with_context(|| format!("no intermediate with its key in {}", state.display()))?;
        let above = vec![authority.certificate_pem().to_owned()];
        Ok(Self {
            authority,
            above,
            roots,
        })
    }

    /// An authority that nobody in the mesh has heard of, of any trust domain.
    ///
    /// # Errors
    /// When a key cannot be made.
    pub fn stranger(mesh: &Mesh, trust_domain: &str) -> Result<Self> {
        let trust_domain: TrustDomain = trust_domain.parse()?;
        let validity = Validity::lasting(SystemTime::now(), 24 * HOUR);
        let authority = Authority::root(&trust_domain, validity)?;
        let roots = std::fs::read_to_string(mesh.directory().join("root-cert.pem"))
            .context("root bundle of the mesh")?;
        Ok(Self {
            authority,
            above: Vec::new(),
            roots,
        })
    }

    /// A certificate for `identity`, with a flaw.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn certificate(&self, identity: &Identity, flaw: Flaw) -> Result<IssuedCertificate> {
        let now = SystemTime::now();
        let (not_before, not_after) = match flaw {
            // An issuer is back-dated by two minutes, and a validity is cut to its own.
            Flaw::Expired => (now - HOUR, now - Duration::from_secs(20)),
            Flaw::NotYetValid => (now + HOUR, now + 2 * HOUR),
            Flaw::None | Flaw::ServerOnly => (now - HOUR, now + HOUR),
        };
        let mut request = LeafRequest::new(
            identity,
            Validity {
                not_before,
                not_after,
            },
        );
        if flaw == Flaw::ServerOnly {
            request.usage = Usage::Server;
        }
        let above: Vec<&str> = self.above.iter().map(String::as_str).collect();
        self.authority
            .issue(&request, &above, &self.roots)
            .with_context(|| format!("certificate of {identity} with {flaw:?}"))
    }
}

/// A certificate as files, for programs that are not ours.
#[derive(Debug, Clone)]
pub struct PemFiles {
    /// Leaf and intermediates.
    pub chain: std::path::PathBuf,
    /// The private key.
    pub key: std::path::PathBuf,
    /// The roots of the mesh.
    pub roots: std::path::PathBuf,
}

impl Signer {
    /// A certificate for `identity` as files in `directory`.
    ///
    /// # Errors
    /// When it cannot be signed or written.
    pub fn pem_files(&self, identity: &Identity, directory: &std::path::Path) -> Result<PemFiles> {
        let key = rcgen::KeyPair::generate()?;
        let request = rcgen::CertificateParams::default()
            .serialize_request(&key)?
            .pem()?;
        let public = culvert_tls::ca::public_key_from_csr(request.as_bytes())?;
        let validity = Validity::lasting(SystemTime::now(), HOUR);
        let leaf = self
            .authority
            .sign(&public, &LeafRequest::new(identity, validity))?;
        let name = format!("{}.{}", identity.namespace(), identity.service_account());
        let file = |extension: &str, text: &str| -> Result<std::path::PathBuf> {
            let path = directory.join(format!("{name}.{extension}"));
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            Ok(path)
        };
        Ok(PemFiles {
            chain: file("crt", &format!("{}{}", leaf.pem, self.above.concat()))?,
            key: file("key", &key.serialize_pem())?,
            roots: file("ca", &self.roots)?,
        })
    }
}

/// The identity of an account in the mesh's trust domain.
///
/// # Errors
/// When it has no legal form.
pub fn identity(namespace: &str, account: &str) -> Result<Identity> {
    Ok(Identity::new(
        &"cluster.local".parse()?,
        namespace,
        account,
    )?)
}

fn pem_files(directory: &std::path::Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut texts = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            texts.extend(pem_files(&path)?);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            match serde_json::from_str(&text) {
                Ok(document) => collect_texts(&document, &mut texts),
                Err(_) => texts.push(text),
            }
        }
    }
    Ok(texts)
}

/// Every text of a JSON document: PEM in it has its line breaks back then.
fn collect_texts(document: &serde_json::Value, texts: &mut Vec<String>) {
    match document {
        serde_json::Value::String(text) => texts.push(text.clone()),
        serde_json::Value::Array(items) => {
            items.iter().for_each(|item| collect_texts(item, texts));
        }
        serde_json::Value::Object(fields) => {
            fields
                .values()
                .for_each(|field| collect_texts(field, texts));
        }
        _ => {}
    }
}

/// Every certificate with every key: which belong together shows on reading.
fn pairs(texts: &[String]) -> Vec<(&str, &str)> {
    let certificates = texts.iter().flat_map(|text| blocks(text, "CERTIFICATE"));
    let keys: Vec<&str> = texts
        .iter()
        .flat_map(|text| blocks(text, "PRIVATE KEY"))
        .collect();
    certificates
        .flat_map(|certificate| keys.iter().map(move |key| (certificate, *key)))
        .collect()
}

fn blocks<'t>(text: &'t str, kind: &str) -> Vec<&'t str> {
    let (begin, end) = (
        format!("-----BEGIN {kind}-----"),
        format!("-----END {kind}-----"),
    );
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(from) = rest.find(&begin) {
        let Some(length) = rest[from..].find(&end) else {
            break;
        };
        found.push(&rest[from..from + length + end.len()]);
        rest = &rest[from + length..];
    }
    found
}
