//! One stream, from connecting to its end.

use culvert_api::proto::discovery::DeltaDiscoveryRequest;
use culvert_api::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{AsciiMetadataValue, errors::InvalidMetadataValue};
use tonic::{Code, Request, Status};

use crate::chain::chain;

use super::state::State;
use super::{BoxError, Client, Connector, Observer, TokenSource};

/// 200 MiB: what stock clients accept; a large cluster's first answer is one message.
const RESPONSE_BYTES_MAX: usize = 200 << 20;

/// 16: the first requests, and one reply for each type under way.
const REPLIES_MAX: usize = 16;

/// Why an attempt or a stream came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Termination {
    /// The token could not be read.
    Token,
    /// No connection came about.
    ConnectionError,
    /// The server refused, or broke off with an error.
    Error,
    /// The connection was lost, or the server moved on.
    Reconnect,
    /// The server ended the stream in order.
    Complete,
}

impl Termination {
    /// A label value for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Token => "Token",
            Self::ConnectionError => "ConnectionError",
            Self::Error => "Error",
            Self::Reconnect => "Reconnect",
            Self::Complete => "Complete",
        }
    }

    fn of(status: &Status) -> Self {
        match status.code() {
            Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable => {
                Self::Reconnect
            }
            _ => Self::Error,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("cannot read the discovery token")]
    Token(#[source] BoxError),
    #[error("the discovery token is not a header value")]
    TokenForm(#[source] InvalidMetadataValue),
    #[error("cannot connect to discovery")]
    Connect(#[source] BoxError),
    #[error("connecting to discovery took too long")]
    ConnectTimeout,
    #[error("discovery did not answer in time")]
    ResponseTimeout,
    #[error("discovery takes no replies")]
    Reply,
    #[error("discovery ended the stream")]
    Status(#[source] Box<Status>),
}

impl StreamError {
    fn termination(&self) -> Termination {
        match self {
            Self::Token(_) | Self::TokenForm(_) => Termination::Token,
            Self::Connect(_) | Self::ConnectTimeout => Termination::ConnectionError,
            Self::ResponseTimeout | Self::Reply => Termination::Reconnect,
            Self::Status(status) => Termination::of(status),
        }
    }
}

impl<C: Connector, T: TokenSource, O: Observer> Client<C, T, O> {
    /// Connects and takes in responses until the stream ends.
    ///
    /// # Cancel safety
    /// A response is either taken in whole or not at all.
    pub(super) async fn stream(&self, state: &mut State) -> Termination {
        match self.stream_to_end(state).await {
            Ok(()) => {
                tracing::debug!("discovery ended the stream in order");
                Termination::Complete
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "no stream from discovery");
                error.termination()
            }
        }
    }

    async fn stream_to_end(&self, state: &mut State) -> Result<(), StreamError> {
        let (replies, requests) = mpsc::channel(REPLIES_MAX);
        for request in state.session.connect() {
            self.reply(&replies, request).await?;
        }
        let request = self.request(ReceiverStream::new(requests))?;
        let channel = timeout(self.config.connect_timeout, self.connector.connect())
            .await
            .map_err(|_| StreamError::ConnectTimeout)?
            .map_err(StreamError::Connect)?;
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(RESPONSE_BYTES_MAX);
        let opened = Instant::now();
        let opening = client.delta_aggregated_resources(request);
        let mut responses = timeout(self.config.response_timeout, opening)
            .await
            .map_err(|_| StreamError::ResponseTimeout)?
            .map_err(|status| StreamError::Status(Box::new(status)))?
            .into_inner();
        self.observer.connected();
        let first_due = sleep_until(opened + self.config.response_timeout);
        tokio::pin!(first_due);
        let mut has_answered = false;
        loop {
            tokio::select! {
                message = responses.message() => {
                    let message = message.map_err(|status| StreamError::Status(Box::new(status)))?;
                    let Some(response) = message else {
                        return Ok(());
                    };
                    has_answered = true;
                    let reply = state.receive(&response, &self.observer);
                    self.reply(&replies, reply).await?;
                }
                () = state.burst_over() => state.flush(&self.observer),
                () = &mut first_due, if !has_answered => return Err(StreamError::ResponseTimeout),
            }
        }
    }

    async fn reply(
        &self,
        replies: &mpsc::Sender<DeltaDiscoveryRequest>,
        reply: DeltaDiscoveryRequest,
    ) -> Result<(), StreamError> {
        match timeout(self.config.response_timeout, replies.send(reply)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(StreamError::Reply),
        }
    }

    fn request<S>(&self, requests: S) -> Result<Request<S>, StreamError> {
        let mut request = Request::new(requests);
        if let Some(token) = self.token.token().map_err(StreamError::Token)? {
            let mut value: AsciiMetadataValue = format!("Bearer {}", token.trim())
                .parse()
                .map_err(StreamError::TokenForm)?;
            value.set_sensitive(true);
            request.metadata_mut().insert("authorization", value);
        }
        if let Ok(cluster) = self.config.node.cluster_id.parse() {
            request.metadata_mut().insert("clusterid", cluster);
        }
        Ok(request)
    }
}
