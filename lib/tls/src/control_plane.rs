//! TLS to the CA and to discovery: the server proves a DNS name, the client
//! proves itself inside with a token.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificate::IssuedCertificate;
use crate::config::{client_builder, harden_client, harden_server, provider, server_builder};
use crate::trust::{RootFile, Roots, TrustError};

/// A handshake takes two round trips and a few milliseconds of work; a peer
/// that needs longer holds a slot that another could use.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a connection to the control plane cannot be secured.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The configured name is not a DNS name or an address.
    #[error("{name:?} is not a DNS name")]
    ServerName {
        /// As it was given.
        name: String,
        /// What the parser said.
        #[source]
        source: rustls::pki_types::InvalidDnsNameError,
    },
    /// There are no roots to verify the server with.
    #[error("no root certificates to verify {server_name} with")]
    Roots {
        /// Whom they would verify.
        server_name: String,
        /// What is wrong with them.
        #[source]
        source: TrustError,
    },
    /// The verifier could not be built.
    #[error("cannot build a verifier for {server_name}")]
    Verifier {
        /// Whom it would verify.
        server_name: String,
        /// What the library said.
        #[source]
        source: rustls::server::VerifierBuilderError,
    },
    /// The handshake failed; [`crate::fault::classify_io`] says how.
    #[error("TLS handshake with {server_name} failed")]
    Handshake {
        /// Who was called.
        server_name: String,
        /// What the library said.
        #[source]
        source: io::Error,
    },
}

/// Verifies one server of the control plane by its DNS name, against a root
/// bundle that may be replaced while we run.
pub struct ControlPlaneClient {
    server_name: ServerName<'static>,
    roots: Source,
    config: Mutex<Option<(Arc<RootCertStore>, Arc<ClientConfig>)>>,
}

enum Source {
    Fixed(Roots),
    File(RootFile),
}

impl ControlPlaneClient {
    /// Verifies with the roots in `root_pem`, for ever.
    ///
    /// # Errors
    /// When the name or the bundle is unusable.
    pub fn from_pem(root_pem: &[u8], server_name: &str) -> Result<Self, ControlPlaneError> {
        let roots = Roots::from_pem(root_pem).map_err(|source| ControlPlaneError::Roots {
            server_name: server_name.to_owned(),
            source,
        })?;
        Self::new(Source::Fixed(roots), server_name)
    }

    /// Verifies with the roots in the file, which is looked at with every
    /// connection and may not exist yet.
    ///
    /// # Errors
    /// When the name is unusable.
    pub fn from_file(
        root_file: impl Into<PathBuf>,
        server_name: &str,
    ) -> Result<Self, ControlPlaneError> {
        Self::new(Source::File(RootFile::new(root_file)), server_name)
    }

    fn new(roots: Source, server_name: &str) -> Result<Self, ControlPlaneError> {
        let server_name = ServerName::try_from(server_name.to_owned()).map_err(|source| {
            ControlPlaneError::ServerName {
                name: server_name.to_owned(),
                source,
            }
        })?;
        Ok(Self {
            server_name,
            roots,
            config: Mutex::new(None),
        })
    }

    /// The name that the server must prove.
    #[must_use]
    pub fn server_name(&self) -> ServerName<'static> {
        self.server_name.clone()
    }

    /// The configuration for the next connection.
    ///
    /// # Errors
    /// When there are no usable roots.
    pub fn config(&self) -> Result<Arc<ClientConfig>, ControlPlaneError> {
        let roots = match &self.roots {
            Source::Fixed(roots) => roots.clone(),
            Source::File(file) => file.roots().map_err(|source| ControlPlaneError::Roots {
                server_name: self.name(),
                source,
            })?,
        };
        let mut cached = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((store, config)) if Arc::ptr_eq(store, &roots.store) => Ok(Arc::clone(config)),
            _ => {
                let config = self.build(&roots)?;
                *cached = Some((roots.store, Arc::clone(&config)));
                Ok(config)
            }
        }
    }

    fn build(&self, roots: &Roots) -> Result<Arc<ClientConfig>, ControlPlaneError> {
        let store = Arc::clone(&roots.store);
        let verifier = WebPkiServerVerifier::builder_with_provider(store, provider())
            .build()
            .map_err(|source| ControlPlaneError::Verifier {
                server_name: self.name(),
                source,
            })?;
        let mut config = client_builder()
            .with_webpki_verifier(verifier)
            .with_no_client_auth();
        harden_client(&mut config);
        Ok(Arc::new(config))
    }

    /// Secures a connection to the server.
    ///
    /// # Errors
    /// When there are no roots, the server does not prove its name, or it takes
    /// longer than ten seconds.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub async fn connect<IO>(
        &self,
        connection: IO,
    ) -> Result<tokio_rustls::client::TlsStream<IO>, ControlPlaneError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let connector = TlsConnector::from(self.config()?);
        within(connector.connect(self.server_name(), connection))
            .await
            .map_err(|source| ControlPlaneError::Handshake {
                server_name: self.name(),
                source,
            })
    }

    fn name(&self) -> String {
        self.server_name.to_str().into_owned()
    }
}

impl fmt::Debug for ControlPlaneClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlaneClient")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// A server of the control plane, with a certificate that can be replaced
/// while it serves.
#[derive(Clone)]
pub struct ControlPlaneServer {
    config: Arc<ServerConfig>,
    current: Arc<CurrentKey>,
}

#[derive(Debug)]
struct CurrentKey(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CurrentKey {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl ControlPlaneServer {
    /// Serves with `certificate`, whose DNS names are what clients verify.
    #[must_use]
    pub fn new(certificate: &IssuedCertificate) -> Self {
        let current = Arc::new(CurrentKey(ArcSwap::new(certificate.certified_key())));
        let resolver: Arc<dyn ResolvesServerCert> = Arc::clone(&current) as _;
        let mut config = server_builder()
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        harden_server(&mut config);
        Self {
            config: Arc::new(config),
            current,
        }
    }

    /// Takes another certificate into use for the handshakes to come.
    pub fn replace(&self, certificate: &IssuedCertificate) {
        self.current.0.store(certificate.certified_key());
    }

    /// The configuration, for an acceptor of one's own.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Secures an accepted connection.
    ///
    /// # Errors
    /// When the handshake fails or takes longer than ten seconds.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub async fn accept<IO>(
        &self,
        connection: IO,
    ) -> io::Result<tokio_rustls::server::TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        within(TlsAcceptor::from(self.config()).accept(connection)).await
    }
}

impl fmt::Debug for ControlPlaneServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlaneServer").finish_non_exhaustive()
    }
}

async fn within<T>(handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
}
