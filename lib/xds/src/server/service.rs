//! The gRPC face of the server.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use culvert_api::proto::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use culvert_api::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use futures_util::Stream;
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status, Streaming};

use super::connection::Connection;
use super::{Authenticator, Publisher, ServerLimits};

/// 32 MiB: a reconnect names every resource that the client has, at some 100
/// bytes for each.
const REQUEST_BYTES_MAX: usize = 32 << 20;

/// The discovery service for any number of clients.
pub struct DiscoveryServer<A, P> {
    authenticator: A,
    publisher: Arc<P>,
    limits: ServerLimits,
    streams: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl<A, P> fmt::Debug for DiscoveryServer<A, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscoveryServer")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl<A, P> DiscoveryServer<A, P>
where
    A: Authenticator,
    P: Publisher<Caller = A::Caller>,
{
    /// A server of the publisher's views. When `stop` becomes true, or its
    /// sender is gone, all streams end in order and clients go elsewhere.
    pub fn new(
        authenticator: A,
        publisher: Arc<P>,
        limits: ServerLimits,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            authenticator,
            publisher,
            limits,
            streams: Arc::new(Semaphore::new(limits.streams_max)),
            stop,
        }
    }

    /// The service to give to a gRPC server.
    pub fn into_service(self) -> AggregatedDiscoveryServiceServer<Self> {
        AggregatedDiscoveryServiceServer::new(self).max_decoding_message_size(REQUEST_BYTES_MAX)
    }
}

#[tonic::async_trait]
impl<A, P> AggregatedDiscoveryService for DiscoveryServer<A, P>
where
    A: Authenticator,
    P: Publisher<Caller = A::Caller>,
{
    type DeltaAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let permit = self
            .streams
            .clone()
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many streams"))?;
        let authenticating = self.authenticator.authenticate(request.metadata());
        let caller = tokio::time::timeout(self.limits.reply_timeout, authenticating)
            .await
            .map_err(|_| Status::unavailable("authentication took too long"))??;
        let connection = Connection::new(
            self.publisher.clone(),
            request.into_inner(),
            caller,
            self.limits,
            self.stop.clone(),
        );
        let responses = futures_util::stream::unfold(
            (connection, permit),
            |(mut connection, permit)| async move {
                let response = connection.next().await?;
                Some((response, (connection, permit)))
            },
        );
        Ok(Response::new(Box::pin(responses)))
    }
}
