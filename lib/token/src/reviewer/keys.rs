//! The issuer's public keys, read from a file.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

use super::KeysError;

/// A key has less than 1 KB; issuers publish a handful.
const KEY_SET_BYTES_MAX: u64 = 1024 * 1024;

/// Everything else is refused before a key is even looked up.
pub(super) const ACCEPTED: [Algorithm; 2] = [Algorithm::ES256, Algorithm::RS256];

/// Public keys by their ids.
pub(super) struct KeySet {
    keys: HashMap<String, Key>,
}

/// A public key and the only algorithm that it is used with.
pub(super) struct Key {
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

/// Tells one version of the file from the next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl KeySet {
    pub(super) fn find(&self, id: &str) -> Option<&Key> {
        self.keys.get(id)
    }

    /// Keys that cannot be used are left out: an issuer may publish others.
    fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(serde::Deserialize)]
        struct Loose {
            keys: Vec<serde_json::Value>,
        }
        let loose: Loose = serde_json::from_slice(text)?;
        let known = loose.keys.into_iter().filter_map(|value| {
            let jwk: Jwk = serde_json::from_value(value).ok()?;
            let id = jwk.common.key_id.clone()?;
            Some((id, Key::usable(&jwk)?))
        });
        Ok(Self {
            keys: known.collect(),
        })
    }
}

impl Key {
    fn usable(jwk: &Jwk) -> Option<Self> {
        let for_signatures = jwk.common.public_key_use.as_ref();
        if for_signatures.is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
            return None;
        }
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
                Algorithm::ES256
            }
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            _ => return None,
        };
        let key = DecodingKey::from_jwk(jwk).ok()?;
        Some(Self { algorithm, key })
    }
}

/// Reads the file unless it is still the version that is known.
pub(super) fn load(
    path: &Path,
    known: Option<&Stamp>,
) -> Result<Option<(Stamp, KeySet)>, KeysError> {
    let failed = |source| KeysError::Read {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let stamp = Stamp {
        modified: metadata.modified().ok(),
        length: metadata.len(),
        inode: metadata.ino(),
    };
    if known == Some(&stamp) {
        return Ok(None);
    }
    if stamp.length > KEY_SET_BYTES_MAX {
        return Err(KeysError::TooLong {
            path: path.to_owned(),
        });
    }
    let text = std::fs::read(path).map_err(failed)?;
    let keys = KeySet::parse(&text).map_err(|source| KeysError::Parse {
        path: path.to_owned(),
        source,
    })?;
    if keys.keys.is_empty() {
        return Err(KeysError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(Some((stamp, keys)))
}
