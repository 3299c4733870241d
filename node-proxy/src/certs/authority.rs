//! The CA as a client sees it.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use culvert_api::proto::ca::IstioCertificateRequest;
use culvert_api::proto::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use culvert_identity::Identity;
use culvert_tls::{IssuedCertificate, csr};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use super::metrics::RequestResult;
use crate::token::{TokenError, TokenFile};

/// The CA asks the API server who we are, which takes longer than signing.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// A chain and a bundle of roots are a few kilobytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Who issues certificates. Behind a trait so that other sources can take its place.
pub trait Authority: Send + Sync + 'static {
    /// Gets a certificate for an identity with a key made for it.
    fn issue(
        &self,
        identity: &Identity,
    ) -> impl Future<Output = Result<IssuedCertificate, IssueError>> + Send;
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// Our own key or request.
    #[error("cannot make a certificate request")]
    Request(#[source] culvert_tls::KeyError),
    /// Our own token.
    #[error("cannot prove who we are to the CA")]
    Token(#[source] TokenError),
    /// The CA could not be reached or did not answer in time.
    #[error("CA at {address} cannot be reached")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What went wrong.
        #[source]
        source: Box<tonic::Status>,
    },
    /// The CA did not answer in time.
    #[error("CA at {address} has not answered within {REQUEST_DEADLINE:?}")]
    Deadline {
        /// Where it is.
        address: String,
    },
    /// The CA said no.
    #[error("CA at {address} refused")]
    Refused {
        /// Where it is.
        address: String,
        /// Its answer.
        #[source]
        source: Box<tonic::Status>,
    },
    /// The answer is not what was asked for.
    #[error("answer of the CA is unusable")]
    Answer(#[source] culvert_tls::AnswerError),
    /// The certificate would be refused by every peer.
    #[error("certificate of the CA would be refused by peers")]
    Useless(#[source] culvert_tls::Fault),
}

impl IssueError {
    pub(crate) fn result(&self) -> RequestResult {
        match self {
            Self::Refused { .. } => RequestResult::refused,
            Self::Unreachable { .. } | Self::Deadline { .. } => RequestResult::unreachable,
            Self::Request(_) | Self::Token(_) | Self::Answer(_) | Self::Useless(_) => {
                RequestResult::unusable
            }
        }
    }
}

/// What a [`CaClient`] needs to know.
#[derive(Debug, Clone)]
pub struct CaConfig {
    /// For messages; the channel knows the way.
    pub address: String,
    /// Our service account's token for the CA.
    pub token_file: PathBuf,
    /// The name of this cluster.
    pub cluster_id: String,
    /// How long certificates should live; none leaves it to the CA.
    pub lifetime: Option<Duration>,
}

/// The CA's certificate service.
#[derive(Debug)]
pub struct CaClient {
    config: CaConfig,
    token: TokenFile,
    channel: Channel,
}

impl CaClient {
    /// A client over a channel that connects by itself.
    #[must_use]
    pub fn new(config: CaConfig, channel: Channel) -> Self {
        Self {
            token: TokenFile::new(&config.token_file),
            config,
            channel,
        }
    }

    fn request(
        &self,
        identity: &Identity,
        csr: String,
    ) -> Result<tonic::Request<IstioCertificateRequest>, IssueError> {
        // The node's account asks in the name of a pod's.
        let asked = Value {
            kind: Some(Kind::StringValue(identity.uri().to_owned())),
        };
        let metadata = Struct {
            fields: [("ImpersonatedIdentity".to_owned(), asked)]
                .into_iter()
                .collect(),
        };
        let mut request = tonic::Request::new(IstioCertificateRequest {
            csr,
            validity_duration: seconds(self.config.lifetime),
            metadata: Some(metadata),
        });
        request.set_timeout(REQUEST_DEADLINE);
        let bearer = self.token.bearer().map_err(IssueError::Token)?;
        request.metadata_mut().insert("authorization", bearer);
        if let Ok(cluster) = MetadataValue::try_from(&self.config.cluster_id) {
            request.metadata_mut().insert("clusterid", cluster);
        }
        Ok(request)
    }

    fn failed(&self, status: tonic::Status) -> IssueError {
        let address = self.config.address.clone();
        let source = Box::new(status);
        match source.code() {
            tonic::Code::Unavailable | tonic::Code::Cancelled | tonic::Code::Unknown => {
                IssueError::Unreachable { address, source }
            }
            tonic::Code::DeadlineExceeded => IssueError::Deadline { address },
            _ => IssueError::Refused { address, source },
        }
    }
}

/// 0 asks for what the CA usually gives.
fn seconds(lifetime: Option<Duration>) -> i64 {
    lifetime.map_or(0, |lifetime| {
        i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX)
    })
}

impl Authority for CaClient {
    async fn issue(&self, identity: &Identity) -> Result<IssuedCertificate, IssueError> {
        let (key, csr) = csr(identity).map_err(IssueError::Request)?;
        let request = self.request(identity, csr)?;
        let mut client = IstioCertificateServiceClient::new(self.channel.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX);
        let call = client.create_certificate(request);
        let answer = tokio::time::timeout(REQUEST_DEADLINE, call)
            .await
            .map_err(|_| IssueError::Deadline {
                address: self.config.address.clone(),
            })?
            .map_err(|status| self.failed(status))?;
        let chain = answer.into_inner().cert_chain;
        IssuedCertificate::from_answer(&chain, &key, identity).map_err(IssueError::Answer)
    }
}
