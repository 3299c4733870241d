//! Asks the CA for the certificate that node proxies verify.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use culvert_api::proto::ca::{
    IstioCertificateRequest, istio_certificate_service_client::IstioCertificateServiceClient,
};
use culvert_tls::{ControlPlaneClient, ControlPlaneError, IssuedCertificate, csr};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint, Uri},
};

use crate::config::CaConfig;

/// Name resolution, TCP and TLS to a server in the same cluster.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// The CA may have to ask the API server who we are.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// A chain and a bundle of roots are a few kilobytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Asked for; the CA has the last word.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The bundle or the name to verify the CA with.
    #[error("CA cannot be verified")]
    Verify(#[source] ControlPlaneError),
    /// Our own key or request.
    #[error("cannot make a certificate request")]
    Csr(#[source] culvert_tls::KeyError),
    /// Our own token.
    #[error("cannot read token file {path}")]
    Token {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It holds what no token can.
    #[error("token file {path} holds no token")]
    NoToken {
        /// The file.
        path: PathBuf,
    },
    /// Not of the form `host:port`.
    #[error("address {address:?} of the CA is not of the form host:port")]
    Address {
        /// The address.
        address: String,
    },
    /// The CA could not be reached.
    #[error("CA at {address} cannot be reached")]
    Connect {
        /// The address.
        address: String,
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
    /// It took too long.
    #[error("CA at {address} has not answered in time")]
    Deadline {
        /// The address.
        address: String,
    },
    /// The CA said no.
    #[error("CA at {address} refused")]
    Refused {
        /// The address.
        address: String,
        /// Its answer.
        #[source]
        source: Box<tonic::Status>,
    },
    /// The answer is not what was asked for.
    #[error("answer of the CA is unusable")]
    Answer(#[source] culvert_tls::AnswerError),
}

/// The CA's certificate service.
#[derive(Debug)]
pub struct CaClient {
    config: CaConfig,
    tls: Arc<ControlPlaneClient>,
}

impl CaClient {
    /// A client; the root bundle may appear later.
    ///
    /// # Errors
    /// When the CA's name is no name.
    pub fn new(config: CaConfig) -> Result<Self, RequestError> {
        let tls = ControlPlaneClient::from_file(config.root_file.clone(), &config.server_name)
            .map_err(RequestError::Verify)?;
        Ok(Self {
            config,
            tls: Arc::new(tls),
        })
    }

    /// Gets a certificate with a new key.
    ///
    /// # Errors
    /// When there is none, and why.
    pub async fn request(&self) -> Result<IssuedCertificate, RequestError> {
        let identity = &self.config.identity;
        let (key, csr) = csr(identity).map_err(RequestError::Csr)?;
        let mut request = tonic::Request::new(IstioCertificateRequest {
            csr,
            validity_duration: i64::try_from(LIFETIME.as_secs()).unwrap_or(i64::MAX),
            metadata: None,
        });
        request.set_timeout(REQUEST_DEADLINE);
        request
            .metadata_mut()
            .insert("authorization", self.bearer()?);
        if let Ok(cluster) = MetadataValue::try_from(&self.config.cluster_id) {
            request.metadata_mut().insert("clusterid", cluster);
        }
        let mut client = IstioCertificateServiceClient::new(self.channel().await?)
            .max_decoding_message_size(ANSWER_BYTES_MAX);
        let address = || self.config.address.clone();
        let answer = timeout(REQUEST_DEADLINE, client.create_certificate(request))
            .await
            .map_err(|_| RequestError::Deadline { address: address() })?
            .map_err(|status| RequestError::Refused {
                address: address(),
                source: Box::new(status),
            })?;
        let chain = answer.into_inner().cert_chain;
        IssuedCertificate::from_answer(&chain, &key, identity).map_err(RequestError::Answer)
    }

    fn bearer(&self) -> Result<MetadataValue<Ascii>, RequestError> {
        let path = || self.config.token_file.clone();
        let token = std::fs::read_to_string(&self.config.token_file).map_err(|source| {
            RequestError::Token {
                path: path(),
                source,
            }
        })?;
        let token = token.trim();
        if token.is_empty() {
            return Err(RequestError::NoToken { path: path() });
        }
        let mut value = MetadataValue::try_from(format!("Bearer {token}"))
            .map_err(|_| RequestError::NoToken { path: path() })?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// One certificate a day: a connection is made for each request.
    async fn channel(&self) -> Result<Channel, RequestError> {
        let address = self.config.address.clone();
        let bad = || RequestError::Address {
            address: address.clone(),
        };
        // TLS is ours, so the library must believe that there is none.
        let uri: Uri = format!("http://{address}").parse().map_err(|_| bad())?;
        if uri.port().is_none() {
            return Err(bad());
        }
        let (tls, target) = (self.tls.clone(), address.clone());
        let connector = tower::service_fn(move |_: Uri| {
            let (tls, target) = (tls.clone(), target.clone());
            async move {
                let tcp = TcpStream::connect(&target).await?;
                tcp.set_nodelay(true)?;
                tls.connect(tcp)
                    .await
                    .map(TokioIo::new)
                    .map_err(io::Error::other)
            }
        });
        let endpoint = Endpoint::from(uri);
        timeout(CONNECT_DEADLINE, endpoint.connect_with_connector(connector))
            .await
            .map_err(|_| RequestError::Deadline {
                address: address.clone(),
            })?
            .map_err(|source| RequestError::Connect { address, source })
    }
}
