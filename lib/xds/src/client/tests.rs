use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Mutex;

use culvert_api::proto::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use culvert_api::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use futures_util::Stream;
use futures_util::stream::{BoxStream, StreamExt};
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::*;
use crate::fixture::{
    Board, PATIENCE, channel, listen, node, policy, service, unreadable, workload,
};
use crate::server::ServerLimits;

/// Notes what a client says, and gives the tokens `bad`, `good`, `good`, …
#[derive(Default)]
struct Notes {
    said: watch::Sender<Vec<String>>,
    tokens: Mutex<usize>,
}

impl Notes {
    fn add(&self, text: String) {
        self.said.send_modify(|said| said.push(text));
    }

    fn has(&self, text: &str) -> bool {
        self.said.borrow().iter().any(|note| note.contains(text))
    }

    async fn noted(&self, text: &str) {
        let mut said = self.said.subscribe();
        let found = said.wait_for(|said| said.iter().any(|note| note.contains(text)));
        assert!(
            timeout(PATIENCE, found).await.is_ok(),
            "{text:?} was never said"
        );
    }
}

impl Observer for Arc<Notes> {
    fn connected(&self) {
        self.add("connected".to_owned());
    }
    fn terminated(&self, reason: Termination) {
        self.add(format!("terminated {}", reason.as_str()));
    }
    fn received(&self, type_url: &str, bytes: usize) {
        self.add(format!("received {type_url}"));
        assert!(bytes > 0);
    }
    fn rejected(&self, kind: ResourceType, rejection: &Rejection) {
        self.add(format!("rejected {} {}", kind.as_str(), rejection.resource));
    }
    fn answered(&self, kind: ResourceType) {
        self.add(format!("answered {}", kind.as_str()));
    }
    fn ready(&self) {
        self.add("ready".to_owned());
    }
}

type Target = Arc<Mutex<SocketAddr>>;

/// A client of whatever the target is, the notes it makes, and its snapshots.
fn client(
    target: &Target,
) -> (
    impl Future<Output = ()> + use<>,
    Arc<Notes>,
    watch::Receiver<Arc<Snapshot>>,
) {
    let notes = Arc::new(Notes::default());
    let (sender, snapshots) = watch::channel(Arc::new(Snapshot::empty()));
    let (target, tokens) = (target.clone(), notes.clone());
    let client = Client {
        config: ClientConfig {
            backoff_max: Duration::from_millis(50),
            optional_grace: Duration::from_millis(100),
            ..ClientConfig::new(node(), "")
        },
        connector: move || {
            let address = *target.lock().expect("no panic before");
            channel(address)
        },
        token: move || {
            let mut asked = tokens.tokens.lock().expect("no panic before");
            *asked += 1;
            Ok(Some(if *asked == 1 { "bad" } else { "good" }.to_owned()))
        },
        observer: notes.clone(),
    };
    (client.run(sender), notes, snapshots)
}

async fn until(
    snapshots: &mut watch::Receiver<Arc<Snapshot>>,
    condition: impl Fn(&Snapshot) -> bool,
) {
    let seen = timeout(PATIENCE, snapshots.wait_for(|snapshot| condition(snapshot))).await;
    let reached = matches!(seen, Ok(Ok(_)));
    drop(seen);
    assert!(reached, "stays at {:?}", snapshots.borrow());
}

fn counts(snapshot: &Snapshot) -> (usize, usize, usize) {
    (
        snapshot.workloads().count(),
        snapshot.services().count(),
        snapshot.policies().count(),
    )
}

#[tokio::test]
async fn follows_what_is_published_from_server_to_server() {
    let board = Board::new();
    board.publish(
        vec![workload("c//Pod/a/w"), service("a/s", false)],
        vec![policy("a/p")],
    );
    let (first, second) = (listen().await, listen().await);
    let second_address = second.address;
    let target: Target = Arc::new(Mutex::new(first.address));
    let (running, notes, mut snapshots) = client(&target);
    let (stop, stopped) = watch::channel(false);
    let (_stop_second, second_stopped) = watch::channel(false);

    let story = async {
        until(&mut snapshots, |snapshot| counts(snapshot) == (1, 1, 1)).await;
        assert!(notes.has("terminated Error"), "the first token was bad");
        assert!(notes.has("ready") && notes.has("answered egress_authorization"));
        assert!(notes.has("received type.googleapis.com/istio.workload.Address"));

        board.publish(
            vec![
                workload("c//Pod/a/w"),
                service("a/s", true),
                service("a/new", true),
            ],
            vec![policy("a/p")],
        );
        until(&mut snapshots, |snapshot| counts(snapshot) == (1, 2, 1)).await;

        board.publish(
            vec![
                workload("c//Pod/a/w"),
                service("a/good", true),
                unreadable("a/bad"),
            ],
            vec![policy("a/p"), unreadable("a/closed")],
        );
        until(&mut snapshots, |snapshot| counts(snapshot) == (1, 1, 2)).await;
        board
            .noted("rejected a/bad: message: not an encoded message")
            .await;
        board
            .noted("rejected a/closed: message: not an encoded message")
            .await;
        assert!(
            notes.has("rejected address a/bad") && notes.has("rejected authorization a/closed")
        );
        let closed = snapshots
            .borrow()
            .policy(&"a/closed".parse().expect("valid"))
            .cloned();
        assert!(closed.is_some_and(|policy| policy.unreadable));

        *target.lock().expect("no panic before") = second_address;
        stop.send(true).expect("the server listens");
        board.noted("disconnected node-1").await;
        board.publish(
            vec![service("a/good", true), service("a/later", true)],
            vec![policy("a/p")],
        );
        until(&mut snapshots, |snapshot| counts(snapshot) == (0, 2, 1)).await;
        assert!(notes.has("terminated Complete") || notes.has("terminated Reconnect"));
        // The removed workload, the bad service and the new one; not the one that stayed.
        board.noted("pushed 3 of Address").await;
    };
    tokio::select! {
        () = running => panic!("the client ended"),
        () = async { tokio::join!(
            first.serve(board.clone(), ServerLimits::default(), stopped),
            second.serve(board.clone(), ServerLimits::default(), second_stopped),
        ); } => panic!("the servers ended"),
        () = story => {}
    }
}

#[tokio::test]
async fn keeps_its_snapshot_while_nobody_is_there() {
    let board = Board::new();
    board.publish(vec![service("a/s", false)], vec![]);
    let listening = listen().await;
    let target: Target = Arc::new(Mutex::new(listening.address));
    let (running, notes, mut snapshots) = client(&target);
    let (stop, stopped) = watch::channel(false);
    let story = async {
        until(&mut snapshots, |snapshot| counts(snapshot) == (0, 1, 0)).await;
        stop.send(true).expect("the server listens");
        notes.noted("terminated ConnectionError").await;
        assert_eq!(counts(&snapshots.borrow()), (0, 1, 0));
    };
    let serving = listening.serve(board.clone(), ServerLimits::default(), stopped);
    tokio::select! {
        () = running => panic!("the client ended"),
        ((), ()) = async { tokio::join!(serving, story) } => {}
    }
}

#[tokio::test]
async fn ends_when_nobody_reads() {
    let target: Target = Arc::new(Mutex::new("127.0.0.1:9".parse().expect("valid")));
    let (running, _, snapshots) = client(&target);
    let mut running = pin!(running);
    assert!(
        timeout(Duration::from_millis(20), &mut running)
            .await
            .is_err()
    );
    drop(snapshots);
    timeout(PATIENCE, running).await.expect("an end");
}

/// A server of another make: it answers the two types it knows, each when it is
/// told to, and is silent about the third.
struct Stock {
    answer_policies: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Stock {
    type DeltaAggregatedResourcesStream =
        BoxStream<'static, Result<DeltaDiscoveryResponse, Status>>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Ok(Response::new(Box::pin(stock_answers(
            request.into_inner(),
            self.answer_policies.clone(),
        ))))
    }
}

fn stock_answers(
    requests: Streaming<DeltaDiscoveryRequest>,
    policies_allowed: watch::Receiver<bool>,
) -> impl Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send {
    let answer = move |request: Result<DeltaDiscoveryRequest, Status>| {
        let mut policies_allowed = policies_allowed.clone();
        async move {
            let request = request
                .ok()
                .filter(|request| request.response_nonce.is_empty())?;
            let kind = ResourceType::from_url(&request.type_url)?;
            let resources = match kind {
                ResourceType::Address => vec![service("a/s", false).to_wire(kind.url())],
                ResourceType::Authorization => {
                    policies_allowed.wait_for(|allowed| *allowed).await.ok()?;
                    vec![policy("a/p").to_wire(kind.url())]
                }
                ResourceType::EgressAuthorization => return None,
            };
            Some(Ok(DeltaDiscoveryResponse {
                type_url: request.type_url,
                resources,
                nonce: "1".to_owned(),
                ..DeltaDiscoveryResponse::default()
            }))
        }
    };
    // Types are answered apart, so that one does not hold up the other.
    requests
        .map(answer)
        .buffer_unordered(8)
        .filter_map(std::future::ready)
}

#[tokio::test]
async fn nothing_is_published_before_policies_are_there_and_stock_servers_suffice() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let target: Target = Arc::new(Mutex::new(listener.local_addr().expect("bound")));
    let (allow, allowed) = watch::channel(false);
    let service = AggregatedDiscoveryServiceServer::new(Stock {
        answer_policies: allowed,
    });
    let serving = Server::builder()
        .add_service(service)
        .serve_with_incoming(TcpListenerStream::new(listener));
    let (running, notes, mut snapshots) = client(&target);
    let story = async {
        notes.noted("answered address").await;
        let published = timeout(Duration::from_millis(300), snapshots.changed()).await;
        assert!(published.is_err(), "workloads without policies are open");
        allow.send(true).expect("the server listens");
        until(&mut snapshots, |snapshot| counts(snapshot) == (0, 1, 1)).await;
        assert!(notes.has("ready") && !notes.has("answered egress_authorization"));
    };
    tokio::select! {
        () = running => panic!("the client ended"),
        _ = serving => panic!("the server ended"),
        () = story => {}
    }
}
