//! Issuing tokens: the API server's part where there is no API server.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::{Jwk, JwkSet, KeyAlgorithm, PublicKeyUse, ThumbprintHash};
use jsonwebtoken::{Algorithm, EncodingKey, Header};

use crate::Bound;
use crate::claims::{Audience, Claims, Kubernetes, Reference, subject};

/// What Kubernetes clusters call themselves unless told otherwise.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Issues tokens with one ES256 key, whose public half it publishes as a JWKS.
pub struct TokenIssuer {
    key_pem: String,
    signing: EncodingKey,
    public: Jwk,
    key_id: String,
}

/// What a token is to say.
#[derive(Clone, Copy, Debug)]
pub struct TokenRequest<'a> {
    /// Namespace of the service account.
    pub namespace: &'a str,
    /// The service account.
    pub service_account: &'a str,
    /// The pod that gets the token.
    pub pod: Option<&'a Bound>,
    /// The node of that pod.
    pub node: Option<&'a Bound>,
    /// Who is to accept it.
    pub audience: &'a str,
    /// From now on.
    pub lifetime: Duration,
}

/// Why a token or a key set could not be made.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// No key could be generated.
    #[error("cannot generate an ECDSA P-256 key")]
    Generate(#[source] rcgen::Error),
    /// The key is not a PKCS#8 ECDSA P-256 key.
    #[error("issuer key is not an ECDSA P-256 key in PKCS#8")]
    Key(#[source] jsonwebtoken::errors::Error),
    /// Signing failed.
    #[error("cannot sign a token for {namespace}/{service_account}")]
    Sign {
        /// Namespace of the service account.
        namespace: String,
        /// The service account.
        service_account: String,
        /// What the library said.
        #[source]
        source: jsonwebtoken::errors::Error,
    },
    /// The key set could not be written.
    #[error("cannot write {path}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl TokenIssuer {
    /// Makes an issuer with a fresh key.
    ///
    /// # Errors
    /// Only when the cryptographic library fails.
    pub fn generate() -> Result<Self, IssuerError> {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
            .map_err(IssuerError::Generate)?;
        Self::from_key_pem(&pair.serialize_pem())
    }

    /// Makes an issuer with a key that [`TokenIssuer::key_pem`] gave.
    ///
    /// # Errors
    /// When it is not an ECDSA P-256 key in PKCS#8.
    pub fn from_key_pem(key_pem: &str) -> Result<Self, IssuerError> {
        let signing = EncodingKey::from_ec_pem(key_pem.as_bytes()).map_err(IssuerError::Key)?;
        let mut public =
            Jwk::from_encoding_key(&signing, Algorithm::ES256).map_err(IssuerError::Key)?;
        let key_id = public
            .thumbprint(ThumbprintHash::SHA256)
            .map_err(IssuerError::Key)?;
        public.common.key_id = Some(key_id.clone());
        public.common.key_algorithm = Some(KeyAlgorithm::ES256);
        public.common.public_key_use = Some(PublicKeyUse::Signature);
        Ok(Self {
            key_pem: key_pem.to_owned(),
            signing,
            public,
            key_id,
        })
    }

    /// The private key, PKCS#8, to keep over a restart.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// The public key, as the API server publishes it.
    ///
    /// # Panics
    /// Never: a key set of strings has a JSON form.
    #[must_use]
    pub fn jwks(&self) -> String {
        let keys = vec![self.public.clone()];
        serde_json::to_string_pretty(&JwkSet { keys })
            .expect("invariant: a key set of strings has a JSON form")
    }

    /// Writes [`TokenIssuer::jwks`] to a file, at once or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_jwks(&self, path: &Path) -> Result<(), IssuerError> {
        let temporary = path.with_extension("tmp");
        let write = || {
            let mut file = std::fs::File::create(&temporary)?;
            file.write_all(self.jwks().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        };
        write().map_err(|source| IssuerError::Write {
            path: path.to_owned(),
            source,
        })
    }

    /// Signs a token that is valid from `now` on.
    ///
    /// # Errors
    /// Only when the cryptographic library fails.
    pub fn issue(
        &self,
        request: &TokenRequest<'_>,
        now: SystemTime,
    ) -> Result<String, IssuerError> {
        let now = seconds(now);
        let claims = Claims {
            aud: Audience::Many(vec![request.audience.to_owned()]),
            exp: now.saturating_add(request.lifetime.as_secs()),
            iat: now,
            iss: ISSUER.to_owned(),
            jti: String::new(),
            kubernetes: Some(Kubernetes {
                namespace: request.namespace.to_owned(),
                node: request.node.map(Reference::from),
                pod: request.pod.map(Reference::from),
                serviceaccount: Reference {
                    name: request.service_account.to_owned(),
                    uid: String::new(),
                },
            }),
            nbf: now,
            sub: subject(request.namespace, request.service_account),
        };
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.key_id.clone());
        jsonwebtoken::encode(&header, &claims, &self.signing).map_err(|source| IssuerError::Sign {
            namespace: request.namespace.to_owned(),
            service_account: request.service_account.to_owned(),
            source,
        })
    }
}

pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}

/// Shows nothing of the key.
impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIssuer")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}
