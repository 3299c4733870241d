//! Who calls: a service-account token for this audience.

use std::sync::Arc;

use culvert_runtime::chain;
use culvert_token::{Caller, ReviewError, TokenReviewer};
use culvert_xds::server::{Authenticator, bearer_token};
use tonic::{Status, metadata::MetadataMap};

use crate::metrics::DiscoveryMetrics;

/// The audience of tokens for discovery.
pub const AUDIENCE: &str = "culvert-discovery";

/// Reviews the bearer token of a call.
#[derive(Clone, Debug)]
pub struct TokenAuthenticator {
    reviewer: Arc<dyn TokenReviewer>,
    metrics: DiscoveryMetrics,
}

impl TokenAuthenticator {
    /// Has tokens reviewed by `reviewer`.
    pub fn new(reviewer: Arc<dyn TokenReviewer>, metrics: DiscoveryMetrics) -> Self {
        Self { reviewer, metrics }
    }
}

impl Authenticator for TokenAuthenticator {
    type Caller = Caller;

    async fn authenticate(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        let token = bearer_token(metadata).inspect_err(|_| self.metrics.refused("no_token"))?;
        match self.reviewer.review(token, AUDIENCE).await {
            Ok(caller) => Ok(caller),
            Err(error) => {
                self.metrics.refused(error.reason());
                tracing::warn!(error = chain(&error), "caller refused");
                Err(match error {
                    // Ours to mend: the caller should come back.
                    ReviewError::NoKeys(_) => Status::unavailable("tokens cannot be reviewed now"),
                    other => Status::unauthenticated(other.to_string()),
                })
            }
        }
    }
}
