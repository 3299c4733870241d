//! Pods from an agent, with real namespaces and sockets. Needs CAP_SYS_ADMIN and
//! CAP_NET_ADMIN: run as root.

use std::collections::HashMap;
use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_api::proto::{keeper, zds};
use culvert_netns::{
    AsyncSeqPacket, AsyncSeqPacketListener, Netns, SeqPacketListener, loopback_up,
};
use culvert_node_proxy::certs::Certificates;
use culvert_node_proxy::pods::client::AgentClient;
use culvert_node_proxy::pods::keeper::Keeper;
use culvert_node_proxy::pods::session::StopMode;
use culvert_node_proxy::pods::{
    DataPath, NodeConfig, NodeHost, Pod, PodListeners, PodMetrics, PodView,
};
use culvert_runtime::{Drain, Metrics, Readiness, SystemClock, Tasks};
use prost::Message;
use tokio::sync::watch;
use tokio::time::timeout;
use zds::workload_request::Payload;

const SOON: Duration = Duration::from_secs(10);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(SOON, future)
        .await
        .unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

fn fresh() -> Netns {
    let netns = Netns::create().expect("run as root");
    netns.run(loopback_up).expect("enter").expect("loopback");
    netns
}

type Held = HashMap<Arc<str>, (Arc<Pod>, PodListeners)>;

/// Workers that only hold what they are given.
#[derive(Debug, Clone, Default)]
struct Holder {
    pods: Arc<Mutex<Held>>,
}

impl DataPath for Holder {
    async fn add_pod(&self, pod: Arc<Pod>, listeners: PodListeners) -> Result<(), String> {
        let before = self
            .pods
            .lock()
            .expect("lock")
            .insert(pod.uid.clone(), (pod, listeners));
        if before.is_some() {
            Err("served twice".to_owned())
        } else {
            Ok(())
        }
    }

    async fn remove_pod(&self, uid: &Arc<str>, _: StopMode) {
        self.pods.lock().expect("lock").remove(uid);
    }
}

impl Holder {
    fn uids(&self) -> Vec<String> {
        let mut uids: Vec<_> = self
            .pods
            .lock()
            .expect("lock")
            .keys()
            .map(ToString::to_string)
            .collect();
        uids.sort();
        uids
    }

    /// Accepts a connection that waits at the pod's outbound listener.
    fn accept(&self, uid: &str) -> std::io::Result<TcpStream> {
        let pods = self.pods.lock().expect("lock");
        pods.get(uid)
            .expect("served")
            .1
            .outbound
            .accept()
            .map(|(stream, _)| stream)
    }

    fn inode(&self, uid: &str) -> u64 {
        self.pods
            .lock()
            .expect("lock")
            .get(uid)
            .expect("served")
            .0
            .netns
            .inode()
    }
}

/// A node proxy's control side. Dropping it is a kill: nothing is told to anybody.
struct Proxy {
    holder: Holder,
    view: watch::Receiver<Arc<[PodView]>>,
    readiness: Readiness,
    metrics: Metrics,
    _tasks: Tasks,
    _drain: Drain,
}

impl Proxy {
    fn start(directory: &std::path::Path) -> Self {
        let holder = Holder::default();
        let (readiness, metrics, drain) =
            (Readiness::new(), Metrics::new(), Drain::new(Duration::ZERO));
        let node = NodeConfig {
            trust_domain: "cluster.local".parse().expect("trust domain"),
            cluster_id: "Kubernetes".to_owned(),
        };
        let certificates = Certificates::fixed(Arc::default(), Arc::new(SystemClock));
        let keeper = Keeper::new(directory.join("keeper.sock"));
        let host = NodeHost::new(node, holder.clone(), certificates).with_keeper(Some(keeper));
        let condition = readiness.condition("pods");
        let client = AgentClient::new(
            directory.join("zds.sock"),
            Arc::new(host),
            condition,
            PodMetrics::register(&metrics),
        );
        let view = client.view();
        let mut tasks = Tasks::new();
        tasks.critical("pods", client.run(drain.watch()));
        Self {
            holder,
            view,
            readiness,
            metrics,
            _tasks: tasks,
            _drain: drain,
        }
    }

    async fn wait_for(&mut self, what: &str, condition: impl Fn(&[PodView]) -> bool) {
        soon(what, self.view.wait_for(|pods| condition(pods)))
            .await
            .expect("the client runs");
    }
}

/// The agent's ZDS side.
struct Agent {
    listener: AsyncSeqPacketListener,
    connection: Option<AsyncSeqPacket>,
}

impl Agent {
    fn listen(directory: &std::path::Path) -> Self {
        let listener = SeqPacketListener::bind(directory.join("zds.sock")).expect("bind");
        Self {
            listener: listener.into_async().expect("register"),
            connection: None,
        }
    }

    async fn accept(&mut self) {
        let connection = soon("a connection", self.listener.accept())
            .await
            .expect("accept");
        let hello = soon("hello", connection.receive(1024))
            .await
            .expect("receive")
            .expect("open");
        assert_eq!(hello.bytes, b"\x08\x01");
        self.connection = Some(connection);
    }

    async fn raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> String {
        let connection = self.connection.as_ref().expect("connected");
        connection.send(bytes, fds).await.expect("send");
        let answer = soon("an answer", connection.receive(1024))
            .await
            .expect("receive");
        let answer = zds::WorkloadResponse::decode(&*answer.expect("open").bytes).expect("answer");
        let Some(zds::workload_response::Payload::Ack(ack)) = answer.payload else {
            panic!("no acknowledgement")
        };
        ack.error
    }

    async fn ask(&self, payload: Payload, fds: &[BorrowedFd<'_>]) -> String {
        self.raw(
            &zds::WorkloadRequest {
                payload: Some(payload),
            }
            .encode_to_vec(),
            fds,
        )
        .await
    }

    async fn add(&self, uid: &str, netns: &Netns) -> String {
        let info = zds::WorkloadInfo {
            name: format!("{uid}-pod"),
            namespace: "shop".to_owned(),
            service_account: "cart".to_owned(),
        };
        let add = zds::AddWorkload {
            uid: uid.to_owned(),
            workload_info: Some(info),
        };
        self.ask(Payload::Add(add), &[netns.as_fd()]).await
    }

    async fn delete(&self, uid: &str) -> String {
        self.ask(
            Payload::Del(zds::DelWorkload {
                uid: uid.to_owned(),
            }),
            &[],
        )
        .await
    }

    async fn keep(&self, uid: &str) -> String {
        self.ask(
            Payload::Keep(zds::KeepWorkload {
                uid: uid.to_owned(),
            }),
            &[],
        )
        .await
    }

    async fn snapshot_sent(&self) -> String {
        self.ask(Payload::SnapshotSent(zds::SnapshotSent {}), &[])
            .await
    }
}

type Kept = Arc<Mutex<HashMap<String, Vec<(keeper::Socket, OwnedFd)>>>>;

/// The agent's keeper; lives as long as the test.
fn keep_sockets(directory: &std::path::Path) -> Kept {
    let listener = SeqPacketListener::bind(directory.join("keeper.sock")).expect("bind");
    let kept = Kept::default();
    let own = Arc::clone(&kept);
    std::thread::spawn(move || {
        while let Ok(connection) = listener.accept() {
            while let Ok(Some(packet)) = connection.receive(1024) {
                let request = keeper::Request::decode(&*packet.bytes).expect("request");
                let mut kept = own.lock().expect("lock");
                let mut answer = keeper::Answer {
                    ok: true,
                    ..Default::default()
                };
                let mut fds = Vec::new();
                match request.payload.expect("payload") {
                    keeper::request::Payload::Put(put) => {
                        let sockets = put.sockets.into_iter().zip(packet.fds).collect();
                        kept.insert(put.uid, sockets);
                    }
                    keeper::request::Payload::Take(take) => {
                        for (socket, fd) in kept.get(&take.uid).into_iter().flatten() {
                            answer.sockets.push(*socket);
                            fds.push(fd.as_fd());
                        }
                    }
                }
                connection
                    .send(&answer.encode_to_vec(), &fds)
                    .expect("answer");
            }
        }
    });
    kept
}

fn connect(netns: &Netns) -> std::io::Result<TcpStream> {
    netns
        .run(|| TcpStream::connect(("127.0.0.1", 15001)))
        .expect("enter")
}

#[tokio::test]
async fn what_the_agent_gets_wrong_hurts_nobody_else() {
    let directory = tempfile::tempdir().expect("directory");
    let mut agent = Agent::listen(directory.path());
    let mut proxy = Proxy::start(directory.path());
    agent.accept().await;
    let netns = fresh();
    assert_eq!(agent.add("good", &netns).await, "");
    // A pod without a namespace, and one with something else.
    let bare = zds::WorkloadInfo {
        name: "x".into(),
        namespace: "y".into(),
        service_account: "z".into(),
    };
    let add = zds::AddWorkload {
        uid: "bad".into(),
        workload_info: Some(bare),
    };
    let error = agent.ask(Payload::Add(add.clone()), &[]).await;
    assert!(error.contains("0 descriptors, expected 1"), "{error}");
    let file = tempfile::tempfile().expect("file");
    let error = agent.ask(Payload::Add(add), &[file.as_fd()]).await;
    assert!(error.contains("not a network namespace"), "{error}");
    assert_eq!(agent.snapshot_sent().await, "");
    soon("ready", proxy.readiness.wait_ready()).await;
    // What cannot be understood at all makes both start afresh, pods untouched.
    for bytes in [&b"\xff\xff"[..], &[7; 1025]] {
        assert_ne!(agent.raw(bytes, &[]).await, "");
        agent.accept().await;
        assert!(!proxy.readiness.is_ready());
        assert_eq!(agent.keep("good").await, "");
        assert_eq!(agent.snapshot_sent().await, "");
        assert_ne!(agent.keep("good").await, "", "keep after the snapshot");
        agent.accept().await;
        assert_eq!(agent.keep("good").await, "");
        assert_eq!(agent.snapshot_sent().await, "");
        soon("ready", proxy.readiness.wait_ready()).await;
    }
    assert_eq!(proxy.holder.uids(), ["good"]);
    proxy
        .wait_for("the pod is up", |pods| {
            pods.len() == 1 && pods[0].state == "Up"
        })
        .await;
}

#[tokio::test]
async fn pods_come_move_and_go() {
    let directory = tempfile::tempdir().expect("directory");
    let mut agent = Agent::listen(directory.path());
    let proxy = Proxy::start(directory.path());
    agent.accept().await;
    assert_eq!(agent.snapshot_sent().await, "");
    let (first, second) = (fresh(), fresh());
    assert_eq!(agent.add("a", &first).await, "");
    // The answer comes only once connections are taken.
    connect(&first).expect("there is a listener");
    assert_eq!(agent.add("a", &first).await, "");
    assert_eq!(agent.add("a", &second).await, "");
    assert_eq!(proxy.holder.inode("a"), second.inode());
    connect(&second).expect("there is a listener");
    connect(&first).expect_err("the old listener is gone");
    assert_eq!(agent.delete("a").await, "");
    connect(&second).expect_err("the listener is gone");
    assert_eq!(agent.delete("a").await, "");
    assert!(proxy.holder.uids().is_empty());
}

#[tokio::test]
async fn connections_wait_while_no_proxy_runs() {
    let directory = tempfile::tempdir().expect("directory");
    let kept = keep_sockets(directory.path());
    let mut agent = Agent::listen(directory.path());
    let proxy = Proxy::start(directory.path());
    agent.accept().await;
    let netns = fresh();
    assert_eq!(agent.add("a", &netns).await, "");
    assert_eq!(kept.lock().expect("lock")["a"].len(), 3);
    drop(proxy);
    let waiting = connect(&netns).expect("the agent's copy still listens");
    let proxy = Proxy::start(directory.path());
    agent.accept().await;
    assert_eq!(agent.add("a", &netns).await, "");
    assert_eq!(agent.snapshot_sent().await, "");
    let accepted = proxy.holder.accept("a").expect("it has waited");
    assert_eq!(
        accepted.peer_addr().expect("address").port(),
        waiting.local_addr().expect("address").port()
    );
    // Sockets of a former sandbox are not taken over.
    let other = fresh();
    assert_eq!(agent.delete("a").await, "");
    assert_eq!(agent.add("a", &other).await, "");
    connect(&other).expect("a listener in the new one");
}

#[tokio::test]
async fn an_agent_that_comes_back_gets_the_sockets_again() {
    let directory = tempfile::tempdir().expect("directory");
    let mut agent = Agent::listen(directory.path());
    let proxy = Proxy::start(directory.path());
    agent.accept().await;
    let (a, b) = (fresh(), fresh());
    // A stock agent keeps nothing, which stops nobody.
    assert_eq!(agent.add("a", &a).await, "");
    assert_eq!(agent.add("b", &b).await, "");
    assert_eq!(agent.snapshot_sent().await, "");
    drop(agent);
    let kept = keep_sockets(directory.path());
    connect(&a).expect("served without an agent");
    let mut agent = Agent::listen(directory.path());
    agent.accept().await;
    assert_eq!(agent.add("a", &a).await, "");
    assert_eq!(agent.snapshot_sent().await, "");
    // The pod that the agent did not name is gone, the other's sockets are kept.
    soon("sockets are kept", async {
        while !kept.lock().expect("lock").contains_key("a") || proxy.holder.uids() != ["a"] {
            tokio::task::yield_now().await;
        }
    })
    .await;
    connect(&b).expect_err("no longer served");
}

#[tokio::test]
async fn a_pod_that_cannot_be_served_is_reported_and_tried_again() {
    let directory = tempfile::tempdir().expect("directory");
    let mut agent = Agent::listen(directory.path());
    let mut proxy = Proxy::start(directory.path());
    agent.accept().await;
    let (good, bad) = (fresh(), fresh());
    let taken = bad
        .run(|| TcpListener::bind(("0.0.0.0", 15006)).expect("bind"))
        .expect("enter");
    let error = agent.add("bad", &bad).await;
    assert!(error.contains("TCP listener at [::]:15006"), "{error}");
    // Nothing of it stays open, and others are served.
    connect(&bad).expect_err("no listener");
    assert_eq!(agent.add("good", &good).await, "");
    assert_eq!(agent.snapshot_sent().await, "");
    soon("ready in spite of it", proxy.readiness.wait_ready()).await;
    proxy
        .wait_for("pending", |pods| {
            pods[0].state == "Pending" && pods[0].reason.is_some()
        })
        .await;
    let text = proxy.metrics.encode().expect("encodes");
    assert!(
        text.contains("workload_manager_pending_proxy_count 1"),
        "{text}"
    );
    assert!(
        text.contains("workload_manager_active_proxy_count 1"),
        "{text}"
    );
    drop(taken);
    proxy
        .wait_for("served at last", |pods| {
            pods.iter().all(|pod| pod.state == "Up")
        })
        .await;
    connect(&bad).expect("a listener");
}
