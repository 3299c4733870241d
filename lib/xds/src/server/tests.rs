use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use culvert_api::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::*;
use crate::fixture::{Board, Listening, PATIENCE, channel, listen, node, service, workload};
use crate::kind::ResourceType;
use crate::session::ClientSession;

/// A client that does only what a test says.
struct RawClient {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl RawClient {
    async fn open(channel: Channel, token: Option<&str>) -> Result<Self, Status> {
        let (requests, outgoing) = mpsc::channel(16);
        let mut request = Request::new(ReceiverStream::new(outgoing));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().expect("ascii");
            request.metadata_mut().insert("authorization", value);
        }
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let responses = client
            .delta_aggregated_resources(request)
            .await?
            .into_inner();
        Ok(Self {
            requests,
            responses,
        })
    }

    async fn send(&self, request: DeltaDiscoveryRequest) {
        self.requests
            .send(request)
            .await
            .expect("the stream is open");
    }

    async fn receive(&mut self) -> Result<Option<DeltaDiscoveryResponse>, Status> {
        timeout(PATIENCE, self.responses.message())
            .await
            .expect("an answer in time")
    }

    async fn fails_with(&mut self) -> Code {
        self.receive().await.expect_err("an error").code()
    }
}

fn first_requests() -> Vec<DeltaDiscoveryRequest> {
    ClientSession::new(&node()).connect()
}

/// Runs a test beside a server.
async fn beside<T: Future<Output = ()>>(
    limits: ServerLimits,
    test: impl FnOnce(Channel, Arc<Board>, watch::Sender<bool>) -> T,
) {
    let board = Board::new();
    let listening: Listening = listen().await;
    let address = listening.address;
    let (stop, stopped) = watch::channel(false);
    let test = async {
        let channel = channel(address).await.expect("a connection");
        test(channel, board.clone(), stop.clone()).await;
    };
    tokio::select! {
        () = listening.serve(board.clone(), limits, stopped) => panic!("the server ended"),
        () = test => {}
    }
}

#[tokio::test]
async fn a_caller_without_a_good_token_is_refused() {
    beside(ServerLimits::default(), async |channel, board, _| {
        for token in [None, Some(""), Some("bad")] {
            let refused = RawClient::open(channel.clone(), token)
                .await
                .err()
                .expect("refused");
            assert_eq!(refused.code(), Code::Unauthenticated, "{token:?}");
        }
        assert!(board.notes().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_is_not_who_it_says_gets_nothing() {
    beside(ServerLimits::default(), async |channel, board, _| {
        board.publish(vec![workload("c//Pod/a/w")], vec![]);
        let mut nameless = RawClient::open(channel.clone(), Some("good"))
            .await
            .expect("a stream");
        nameless
            .send(DeltaDiscoveryRequest {
                node: None,
                ..first_requests().remove(0)
            })
            .await;
        assert_eq!(nameless.fails_with().await, Code::InvalidArgument);
        assert_eq!(nameless.receive().await.expect("over"), None);

        let mut elsewhere = RawClient::open(channel, Some("good"))
            .await
            .expect("a stream");
        let other = crate::session::Node {
            node_name: "node-x".to_owned(),
            ..node()
        };
        elsewhere
            .send(ClientSession::new(&other).connect().remove(0))
            .await;
        assert_eq!(elsewhere.fails_with().await, Code::PermissionDenied);
        assert!(board.notes().is_empty(), "{:?}", board.notes());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_says_nothing_is_let_go() {
    let limits = ServerLimits {
        reply_timeout: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    beside(limits, async |channel, board, _| {
        let mut silent = RawClient::open(channel.clone(), Some("good"))
            .await
            .expect("a stream");
        assert_eq!(silent.fails_with().await, Code::DeadlineExceeded);
        let mut deaf = RawClient::open(channel, Some("good"))
            .await
            .expect("a stream");
        deaf.send(first_requests().remove(0)).await;
        assert!(deaf.receive().await.expect("the first answer").is_some());
        assert_eq!(deaf.fails_with().await, Code::DeadlineExceeded);
        board.noted("disconnected node-1").await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_acknowledges_stays_and_hears_of_changes() {
    let limits = ServerLimits {
        reply_timeout: Duration::from_millis(200),
        ..ServerLimits::default()
    };
    beside(limits, async |channel, board, _| {
        let mut client = RawClient::open(channel, Some("good"))
            .await
            .expect("a stream");
        let mut session = ClientSession::new(&node());
        for request in session.connect() {
            client.send(request).await;
        }
        for _ in ResourceType::ALL {
            let response = client
                .receive()
                .await
                .expect("a stream")
                .expect("an answer");
            client.send(session.receive(&response).reply).await;
        }
        // Longer than a client may take to answer: nothing is owed now.
        assert!(
            timeout(limits.reply_timeout * 2, client.responses.message())
                .await
                .is_err()
        );
        board.publish(vec![service("a/s", true)], vec![]);
        let response = client.receive().await.expect("a stream").expect("a push");
        assert_eq!(response.resources[0].name, "a/s");
    })
    .await;
}

#[tokio::test]
async fn many_changes_make_one_push_for_a_slow_client() {
    beside(ServerLimits::default(), async |channel, board, _| {
        let mut client = RawClient::open(channel, Some("good"))
            .await
            .expect("a stream");
        let mut session = ClientSession::new(&node());
        client.send(session.connect().remove(2)).await;
        let first = client
            .receive()
            .await
            .expect("a stream")
            .expect("an answer");
        for number in 0..100 {
            board.publish(
                vec![
                    service("a/s", number % 2 == 0),
                    service(&format!("a/s{number}"), true),
                ],
                vec![],
            );
        }
        client.send(session.receive(&first).reply).await;
        let push = client.receive().await.expect("a stream").expect("a push");
        let names: Vec<_> = push
            .resources
            .iter()
            .map(|resource| resource.name.as_str())
            .collect();
        assert_eq!(names, ["a/s", "a/s99"]);
    })
    .await;
}

#[tokio::test]
async fn streams_end_in_order_when_the_server_stops_or_they_are_old() {
    let limits = ServerLimits {
        stream_age_max: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    beside(limits, async |channel, _, _| {
        let mut old = RawClient::open(channel, Some("good"))
            .await
            .expect("a stream");
        assert_eq!(old.receive().await.expect("no error"), None);
    })
    .await;
    let board = Board::new();
    let listening = listen().await;
    let address = listening.address;
    let (stop, stopped) = watch::channel(false);
    let client = async {
        let channel = channel(address).await.expect("a connection");
        let mut open = RawClient::open(channel, Some("good"))
            .await
            .expect("a stream");
        stop.send(true).expect("the server listens");
        assert_eq!(open.receive().await.expect("no error"), None);
    };
    let both = async {
        tokio::join!(
            listening.serve(board, ServerLimits::default(), stopped),
            client
        )
    };
    timeout(PATIENCE, both)
        .await
        .expect("the server ends although its client stays");
}

#[tokio::test]
async fn there_are_only_so_many_streams() {
    let limits = ServerLimits {
        streams_max: 1,
        ..ServerLimits::default()
    };
    beside(limits, async |channel, board, _| {
        let first = RawClient::open(channel.clone(), Some("good"))
            .await
            .expect("a stream");
        first.send(first_requests().remove(0)).await;
        board.noted("connected node-1").await;
        let second = RawClient::open(channel.clone(), Some("good"))
            .await
            .err()
            .expect("refused");
        assert_eq!(second.code(), Code::ResourceExhausted);
        drop(first);
        board.noted("disconnected node-1").await;
        let reopen = async {
            while RawClient::open(channel.clone(), Some("good"))
                .await
                .is_err()
            {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, reopen)
            .await
            .expect("the place is free again");
    })
    .await;
}
