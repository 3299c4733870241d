//! The certificate service: one request from metadata to signed answer.

use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::ca::istio_certificate_service_server::IstioCertificateService;
use culvert_api::proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use culvert_identity::Identity;
use culvert_runtime::{Clock, chain};
use culvert_tls::ca::{CsrError, IssueError, public_key_from_csr};
use culvert_token::{Caller, TokenReviewer};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::authenticate::{AuthenticateError, authenticate};
use crate::authorize::{Authorizer, Denied, Granted};
use crate::issue::{CertificateRequest, Issuer};
use crate::metrics::CaMetrics;

/// Requests in work: twice the eight that each of a hundred nodes may have open
/// and those that wait for a pod's object, at a few KB each. A request costs a
/// fraction of a millisecond, so a line of thousands is gone in a second.
const REQUESTS_MAX: usize = 2048;

/// How long a request waits in that line before the caller is told to come
/// back: below the ten seconds that callers give a request.
const QUEUE_WAIT_MAX: Duration = Duration::from_secs(5);

/// The metadata key by which a node asks for a pod's identity.
const IMPERSONATED: &str = "ImpersonatedIdentity";

/// Answers `CreateCertificate`.
#[derive(Debug)]
pub struct CertificateService {
    parts: Parts,
    requests: Semaphore,
}

/// What the service works with.
#[derive(Debug)]
pub struct Parts {
    /// Says whose token it is.
    pub reviewer: Arc<dyn TokenReviewer>,
    /// Signs.
    pub issuer: Arc<Issuer>,
    /// Says who may ask for what.
    pub authorizer: Authorizer,
    /// Domain of services, for DNS names of the control plane.
    pub cluster_domain: String,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Counts.
    pub metrics: CaMetrics,
}

/// Why a request gets no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The caller is not known.
    #[error("caller is not known")]
    Unauthenticated(#[source] AuthenticateError),
    /// The caller may not have what it asks for.
    #[error("identity is not given")]
    Denied(#[source] Denied),
    /// The request's metadata is not of the expected form.
    #[error("metadata {IMPERSONATED} is not text")]
    BadMetadata,
    /// The certificate request is unusable.
    #[error("certificate request is not acceptable")]
    BadRequest(#[source] CsrError),
    /// There is too much to do.
    #[error("too many requests")]
    Overloaded,
    /// Signing failed.
    #[error("cannot issue")]
    Issue(#[source] IssueError),
}

impl Refusal {
    /// The reason as a metric label: a closed set.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unauthenticated(error) => error.reason(),
            Self::Denied(denied) => denied.reason(),
            Self::BadMetadata => "malformed_identity",
            Self::BadRequest(_) => "bad_certificate_request",
            Self::Overloaded => "overloaded",
            Self::Issue(IssueError::IssuerExpired) => "issuer_expired",
            Self::Issue(_) => "signing_failed",
        }
    }

    /// What the caller is told: never why.
    fn status(&self) -> Status {
        match self {
            Self::Unauthenticated(_) => Status::unauthenticated("request is not authenticated"),
            Self::Denied(Denied::NoPlacement(_)) | Self::Overloaded | Self::Issue(_) => {
                Status::unavailable("no certificate can be issued now")
            }
            Self::Denied(_) | Self::BadMetadata => {
                Status::permission_denied("request is not permitted")
            }
            Self::BadRequest(_) => {
                Status::invalid_argument("certificate request is not acceptable")
            }
        }
    }
}

impl CertificateService {
    /// A service made of these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            requests: Semaphore::new(REQUESTS_MAX),
        }
    }

    async fn answer(
        &self,
        request: &Request<IstioCertificateRequest>,
        caller: &mut Option<Caller>,
    ) -> Result<Vec<String>, Refusal> {
        let waiting = tokio::time::timeout(QUEUE_WAIT_MAX, self.requests.acquire());
        let _place = waiting
            .await
            .map_err(|_| Refusal::Overloaded)?
            .map_err(|_| Refusal::Overloaded)?;
        let parts = &self.parts;
        let authenticated = authenticate(&*parts.reviewer, request.metadata())
            .await
            .map_err(Refusal::Unauthenticated)?;
        let caller = caller.insert(authenticated);
        let body = request.get_ref();
        let requested = impersonated(body)?;
        let granted = parts
            .authorizer
            .authorize(caller, requested)
            .await
            .map_err(Refusal::Denied)?;
        self.sign(body, caller, &granted)
    }

    fn sign(
        &self,
        body: &IstioCertificateRequest,
        caller: &Caller,
        granted: &Granted,
    ) -> Result<Vec<String>, Refusal> {
        let started = Instant::now();
        let key = public_key_from_csr(body.csr.as_bytes()).map_err(Refusal::BadRequest)?;
        let request = CertificateRequest {
            identity: granted.identity(),
            dns_names: &self.dns_names(granted),
            lifetime: Duration::from_secs(u64::try_from(body.validity_duration).unwrap_or(0)),
        };
        let now = self.parts.clock.now();
        let answer = self.parts.issuer.issue(&key, &request, now);
        let answer = answer.map_err(Refusal::Issue)?;
        self.parts.metrics.issued(started.elapsed());
        let lifetime = answer.leaf.validity.not_after.duration_since(now);
        tracing::info!(
            identity = %granted.identity(),
            caller = describe(caller),
            serial = answer.leaf.serial,
            lifetime = ?lifetime.unwrap_or_default(),
            "issued"
        );
        Ok(answer.chain)
    }

    /// Discovery serves under a DNS name. Only its own token gets that name: a
    /// node that asks for discovery's identity does not serve discovery.
    fn dns_names(&self, granted: &Granted) -> Vec<String> {
        match granted {
            Granted::Own(identity) if is_discovery(identity) => {
                let name = "culvert-discovery.culvert-system.svc";
                let domain = &self.parts.cluster_domain;
                vec![name.to_owned(), format!("{name}.{domain}")]
            }
            _ => Vec::new(),
        }
    }
}

fn is_discovery(identity: &Identity) -> bool {
    identity.namespace() == "culvert-system" && identity.service_account() == "culvert-discovery"
}

/// The identity that is asked for in the metadata, if any.
fn impersonated(body: &IstioCertificateRequest) -> Result<Option<&str>, Refusal> {
    use prost_types::value::Kind;
    let fields = body.metadata.as_ref().map(|metadata| &metadata.fields);
    let Some(value) = fields.and_then(|fields| fields.get(IMPERSONATED)) else {
        return Ok(None);
    };
    match &value.kind {
        Some(Kind::StringValue(text)) => Ok(Some(text)),
        _ => Err(Refusal::BadMetadata),
    }
}

/// Who it is, for the log.
fn describe(caller: &Caller) -> String {
    let mut text = format!("{}/{}", caller.namespace, caller.service_account);
    if let Some(pod) = &caller.pod {
        text.push_str(&format!(" pod {}", pod.name));
    }
    if let Some(node) = &caller.node {
        text.push_str(&format!(" node {}", node.name));
    }
    text
}

#[tonic::async_trait]
impl IstioCertificateService for CertificateService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let mut caller = None;
        let refusal = match self.answer(&request, &mut caller).await {
            Ok(cert_chain) => return Ok(Response::new(IstioCertificateResponse { cert_chain })),
            Err(refusal) => refusal,
        };
        self.parts.metrics.refused(refusal.reason());
        let requested = impersonated(request.get_ref()).ok().flatten();
        let requested: Option<String> = requested.map(|text| text.chars().take(512).collect());
        tracing::warn!(
            reason = refusal.reason(),
            caller = caller.as_ref().map(describe),
            peer = request
                .extensions()
                .get::<crate::serve::Peer>()
                .map(tracing::field::display),
            requested,
            error = chain(&refusal),
            "refused"
        );
        Err(refusal.status())
    }
}
