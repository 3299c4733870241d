//! One stream of one client.

use std::sync::Arc;

use culvert_api::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use crate::resource::ClientView;
use crate::session::{Event, ServerSession, next_response};

use super::{ClientNode, Publisher, ServerLimits};

pub(super) struct Connection<P: Publisher> {
    publisher: Arc<P>,
    requests: Streaming<DeltaDiscoveryRequest>,
    caller: P::Caller,
    limits: ServerLimits,
    stop: watch::Receiver<bool>,
    changes: watch::Receiver<u64>,
    session: ServerSession,
    /// Known from the first request on.
    client: Option<ClientNode<P::Caller>>,
    /// What the client should see; `None` when that has to be asked for.
    view: Option<ClientView>,
    opened: Instant,
    /// Since when the client owes us a request.
    waiting_since: Option<Instant>,
    is_over: bool,
}

/// What a stream waits for.
enum Wake {
    Request(Box<DeltaDiscoveryRequest>),
    Changed,
    Over,
    TooLate,
}

impl<P: Publisher> Connection<P> {
    pub(super) fn new(
        publisher: Arc<P>,
        requests: Streaming<DeltaDiscoveryRequest>,
        caller: P::Caller,
        limits: ServerLimits,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let opened = Instant::now();
        Self {
            changes: publisher.changes(),
            publisher,
            requests,
            caller,
            limits,
            stop,
            session: ServerSession::new(),
            client: None,
            view: None,
            opened,
            waiting_since: Some(opened),
            is_over: false,
        }
    }

    /// The next response; `None` when the stream is over. An error is its last item.
    pub(super) async fn next(&mut self) -> Option<Result<DeltaDiscoveryResponse, Status>> {
        loop {
            if self.is_over {
                return None;
            }
            if let Some(response) = self.respond() {
                return Some(Ok(response));
            }
            let outcome = match self.wake().await {
                Wake::Request(request) => self.receive(*request),
                Wake::Over => return None,
                Wake::Changed => {
                    self.view = None;
                    Ok(())
                }
                Wake::TooLate => Err(Status::deadline_exceeded(
                    "no request or acknowledgement in time",
                )),
            };
            if let Err(status) = outcome {
                self.is_over = true;
                return Some(Err(status));
            }
        }
    }

    async fn wake(&mut self) -> Wake {
        let too_late = self
            .waiting_since
            .map(|since| since + self.limits.reply_timeout);
        let too_late = async {
            match too_late {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            request = self.requests.message() => match request {
                Ok(Some(request)) => Wake::Request(Box::new(request)),
                // After an error nobody is there to read another.
                Ok(None) | Err(_) => Wake::Over,
            },
            changed = self.changes.changed() => if changed.is_ok() { Wake::Changed } else { Wake::Over },
            _ = self.stop.wait_for(|stop| *stop) => Wake::Over,
            () = too_late => Wake::TooLate,
            () = sleep_until(self.opened + self.limits.stream_age_max) => Wake::Over,
        }
    }

    fn respond(&mut self) -> Option<DeltaDiscoveryResponse> {
        let client = self.client.as_ref()?;
        let view = self.view.get_or_insert_with(|| {
            // Marked before it is read: a change in between is not lost.
            self.changes.borrow_and_update();
            self.publisher.view(client)
        });
        let response = next_response(&mut self.session, view)?;
        let resources = response.resources.len() + response.removed_resources.len();
        self.publisher.pushed(client, &response.type_url, resources);
        self.waiting_since.get_or_insert_with(Instant::now);
        Some(response)
    }

    fn receive(&mut self, mut request: DeltaDiscoveryRequest) -> Result<(), Status> {
        if self.client.is_none() {
            let node = request
                .node
                .take()
                .ok_or_else(|| Status::invalid_argument("the first request names no node"))?;
            let client = ClientNode::new(node, self.caller.clone());
            self.publisher.admit(&client)?;
            self.publisher.connected(&client);
            self.client = Some(client);
            self.waiting_since = None;
        }
        let type_url = request.type_url.clone();
        let event = self
            .session
            .receive(request)
            .map_err(|error| Status::resource_exhausted(error.to_string()))?;
        if let (Event::Rejected(rejections), Some(client)) = (&event, &self.client) {
            for rejection in rejections {
                self.publisher.rejected(client, &type_url, rejection);
            }
        }
        if matches!(event, Event::Acknowledged | Event::Rejected(_)) {
            self.waiting_since = self.session.is_waiting().then(Instant::now);
        }
        Ok(())
    }
}

impl<P: Publisher> Drop for Connection<P> {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            self.publisher.disconnected(client);
        }
    }
}
