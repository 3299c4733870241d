//! Reviewing tokens against the issuer's public keys.

mod keys;

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};

use crate::Caller;
use crate::claims::Claims;
use crate::issuer::seconds;
use keys::{KeySet, Stamp};

/// A projected token has about 1 KB; some issuers add certificates.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// The file is read again after this even if nothing seems to have changed:
/// some file systems keep coarse times.
const REREAD_INTERVAL: Duration = Duration::from_secs(10);

/// Clocks of the issuer and of this machine differ by this much at most.
const LEEWAY_SECONDS: u64 = 10;

/// The answer of a review, later.
pub type Reviewed<'a> = Pin<Box<dyn Future<Output = Result<Caller, ReviewError>> + Send + 'a>>;

/// Says whose token it is.
pub trait TokenReviewer: fmt::Debug + Send + Sync {
    /// Says whose token it is, provided that it was issued for `audience`, has
    /// not expired and belongs to a service account.
    ///
    /// # Cancel safety
    /// A dropped review has no effect.
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> Reviewed<'a>;
}

/// Why a token was refused.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// Not a JWT, or without the claims that every token has.
    #[error("token is malformed")]
    Malformed,
    /// Signed in a way that is never accepted, or not at all.
    #[error("token is signed with an algorithm other than ES256 or RS256")]
    UnsupportedAlgorithm,
    /// The issuer has no such key.
    #[error("token is signed with an unknown key")]
    UnknownKey,
    /// The signature is wrong.
    #[error("signature of the token is wrong")]
    BadSignature,
    /// Its time is over.
    #[error("token has expired")]
    Expired,
    /// Its time has not come.
    #[error("token is not valid yet")]
    NotYetValid,
    /// Meant for somebody else.
    #[error("token is not for audience {audience}")]
    WrongAudience {
        /// The audience that was asked for.
        audience: String,
    },
    /// Not one of a service account.
    #[error("token is not of a service account")]
    NotServiceAccount,
    /// There are no keys to review with.
    #[error("no keys to review tokens with")]
    NoKeys(#[source] KeysError),
}

impl ReviewError {
    /// The error as a metric label: a closed set.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed => "malformed_token",
            Self::UnsupportedAlgorithm => "unsupported_token_algorithm",
            Self::UnknownKey => "unknown_token_key",
            Self::BadSignature => "bad_token_signature",
            Self::Expired => "expired_token",
            Self::NotYetValid => "token_not_yet_valid",
            Self::WrongAudience { .. } => "wrong_audience",
            Self::NotServiceAccount => "not_a_service_account",
            Self::NoKeys(_) => "no_token_keys",
        }
    }
}

/// Why the issuer's keys could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file could not be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is longer than any sensible key set.
    #[error("{path} is too long for a key set", path = path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It is not a key set.
    #[error("{path} is not a JWKS", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// None of its keys can be used.
    #[error("{path} holds no usable ES256 or RS256 key with an id", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reviews tokens with a JWKS in a file. The file may be replaced at any time;
/// while it is missing or broken the keys read last stay in use.
pub struct JwksReviewer {
    path: PathBuf,
    now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    cache: Mutex<Option<Cached>>,
}

struct Cached {
    stamp: Stamp,
    read_at: SystemTime,
    keys: Arc<KeySet>,
}

impl JwksReviewer {
    /// Names the file, which may not exist yet.
    #[must_use]
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self::with_time(path, Arc::new(SystemTime::now))
    }

    /// The same, with a wall clock of the caller's.
    #[must_use]
    pub fn with_time(
        path: impl Into<PathBuf>,
        now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    ) -> Self {
        Self {
            path: path.into(),
            now,
            cache: Mutex::new(None),
        }
    }

    /// The file with the keys.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether tokens can be reviewed now.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), KeysError> {
        self.keys((self.now)()).map(drop)
    }

    fn keys(&self, now: SystemTime) -> Result<Arc<KeySet>, KeysError> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cache.as_ref().filter(|cached| {
            let age = now.duration_since(cached.read_at);
            age.is_ok_and(|age| age < REREAD_INTERVAL)
        });
        match keys::load(&self.path, known.map(|cached| &cached.stamp)) {
            Ok(Some((stamp, keys))) => {
                let keys = Arc::new(keys);
                *cache = Some(Cached {
                    stamp,
                    read_at: now,
                    keys: Arc::clone(&keys),
                });
                Ok(keys)
            }
            outcome => match (&*cache, outcome) {
                (Some(cached), _) => Ok(Arc::clone(&cached.keys)),
                (None, Err(error)) => Err(error),
                (None, Ok(_)) => Err(KeysError::Empty {
                    path: self.path.clone(),
                }),
            },
        }
    }

    fn judge(&self, token: &str, audience: &str) -> Result<Caller, ReviewError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(ReviewError::Malformed);
        }
        let now = (self.now)();
        let claims = verified_claims(token, &*self.keys(now).map_err(ReviewError::NoKeys)?)?;
        let now = seconds(now);
        if claims.exp.saturating_add(LEEWAY_SECONDS) <= now {
            return Err(ReviewError::Expired);
        }
        if claims.nbf > now.saturating_add(LEEWAY_SECONDS) {
            return Err(ReviewError::NotYetValid);
        }
        if !claims.is_for(audience) {
            return Err(ReviewError::WrongAudience {
                audience: audience.to_owned(),
            });
        }
        claims.into_caller().ok_or(ReviewError::NotServiceAccount)
    }
}

/// The claims of a token whose signature is right. The algorithm is the one
/// that belongs to the key, whatever the token says.
fn verified_claims(token: &str, keys: &KeySet) -> Result<Claims, ReviewError> {
    let header = decode_header(token).map_err(|error| match error.kind() {
        // `none`, and every algorithm that the library has never heard of.
        ErrorKind::Json(cause) if cause.is_data() => ReviewError::UnsupportedAlgorithm,
        _ => ReviewError::Malformed,
    })?;
    if !keys::ACCEPTED.contains(&header.alg) {
        return Err(ReviewError::UnsupportedAlgorithm);
    }
    let id = header.kid.as_deref().ok_or(ReviewError::UnknownKey)?;
    let key = keys.find(id).ok_or(ReviewError::UnknownKey)?;
    if header.alg != key.algorithm {
        return Err(ReviewError::UnsupportedAlgorithm);
    }
    // Times and audience are judged by the caller, with its own clock.
    let mut validation = Validation::new(key.algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let decoded = decode::<Claims>(token, &key.key, &validation);
    let decoded = decoded.map_err(|error| match error.kind() {
        ErrorKind::InvalidSignature => ReviewError::BadSignature,
        ErrorKind::InvalidAlgorithm => ReviewError::UnsupportedAlgorithm,
        _ => ReviewError::Malformed,
    })?;
    Ok(decoded.claims)
}

impl TokenReviewer for JwksReviewer {
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> Reviewed<'a> {
        Box::pin(std::future::ready(self.judge(token, audience)))
    }
}

impl fmt::Debug for JwksReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksReviewer")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
