//! Serves views of the mesh to proxies.
//!
//! The server reads its answers from a [`Publisher`] and never waits for it:
//! when something changed, each stream compares what its client has with what
//! it should have. A client that is slow to acknowledge gets one difference
//! later instead of many now, so that no queue grows.

mod connection;
mod service;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use culvert_api::proto::discovery::Node as WireNode;
use prost_types::value::Kind;
use tokio::sync::watch;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::resource::ClientView;
use crate::session::Rejection;

pub use service::DiscoveryServer;

/// Says who calls.
pub trait Authenticator: Send + Sync + 'static {
    /// Who a caller turned out to be.
    type Caller: Clone + Send + Sync + 'static;

    /// Judges the metadata of a call; the token is in [`bearer_token`].
    ///
    /// # Errors
    /// The status that the caller gets.
    fn authenticate(
        &self,
        metadata: &MetadataMap,
    ) -> impl Future<Output = Result<Self::Caller, Status>> + Send;
}

/// Says what clients see.
pub trait Publisher: Send + Sync + 'static {
    /// Who a caller turned out to be.
    type Caller: Clone + Send + Sync + 'static;

    /// Whether the caller may be the proxy that it says it is.
    ///
    /// # Errors
    /// The status that the caller gets.
    fn admit(&self, client: &ClientNode<Self::Caller>) -> Result<(), Status>;

    /// What the client sees now. Sets that did not change should be the same
    /// ones as before: then nothing is compared.
    fn view(&self, client: &ClientNode<Self::Caller>) -> ClientView;

    /// Fires when a view may have changed. Its closing ends all streams.
    fn changes(&self) -> watch::Receiver<u64>;

    /// A client was admitted.
    fn connected(&self, _client: &ClientNode<Self::Caller>) {}

    /// An admitted client is gone.
    fn disconnected(&self, _client: &ClientNode<Self::Caller>) {}

    /// A response goes out, with that many resources changed and removed.
    fn pushed(&self, _client: &ClientNode<Self::Caller>, _type_url: &str, _resources: usize) {}

    /// A client refused a resource.
    fn rejected(
        &self,
        _client: &ClientNode<Self::Caller>,
        _type_url: &str,
        _rejection: &Rejection,
    ) {
    }
}

/// A proxy at the other end of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientNode<C> {
    /// The `id` that it gave.
    pub id: String,
    /// All texts of the metadata that it gave, `NAMESPACE` and `NODE_NAME` among them.
    pub metadata: BTreeMap<String, String>,
    /// Who it proved to be.
    pub caller: C,
}

impl<C> ClientNode<C> {
    fn new(node: WireNode, caller: C) -> Self {
        let fields = node
            .metadata
            .map(|metadata| metadata.fields)
            .unwrap_or_default();
        let metadata = fields
            .into_iter()
            .filter_map(|(key, value)| match value.kind {
                Some(Kind::StringValue(text)) => Some((key, text)),
                _ => None,
            })
            .collect();
        Self {
            id: node.id,
            metadata,
            caller,
        }
    }

    fn entry(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }

    /// The proxy's pod, as it says; empty if it does not.
    pub fn name(&self) -> &str {
        self.entry("NAME")
    }

    /// The proxy's namespace, as it says; empty if it does not.
    pub fn namespace(&self) -> &str {
        self.entry("NAMESPACE")
    }

    /// The node that the proxy serves, as it says; empty if it does not.
    pub fn node_name(&self) -> &str {
        self.entry("NODE_NAME")
    }
}

/// What a server allows.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Streams at a time.
    pub streams_max: usize,
    /// How long a client may take for its first request, and to acknowledge.
    pub reply_timeout: Duration,
    /// How long a stream lives before the client has to authenticate again.
    pub stream_age_max: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            // A node proxy holds one: this is twice the nodes of the largest clusters.
            streams_max: 10_000,
            // A client acknowledges as soon as it has decoded.
            reply_timeout: Duration::from_secs(60),
            // Tokens live an hour; a reconnect costs only differences.
            stream_age_max: Duration::from_secs(30 * 60),
        }
    }
}

/// The bearer token of a call.
///
/// # Errors
/// `Unauthenticated` when there is none.
pub fn bearer_token(metadata: &MetadataMap) -> Result<&str, Status> {
    metadata
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .map(str::trim)
        .filter(|token| !token.is_empty())
        .ok_or_else(|| Status::unauthenticated("a bearer token is required"))
}
