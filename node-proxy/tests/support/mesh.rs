//! Node proxies in this process: workers, state and certificates are the real
//! ones; discovery and CA are replaced by what a test says.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use culvert_identity::{Identity, TrustDomain};
use culvert_model::{
    Change, NetworkAddress, Policy, Port, Service, ServiceName, TunnelProtocol, Workload,
    WorkloadUid,
};
use culvert_netns::Netns;
use culvert_node_proxy::access_log::{AccessLog, Format};
use culvert_node_proxy::certs::Certificates;
use culvert_node_proxy::pods::{Pod, PodDiag, PodListeners};
use culvert_node_proxy::state::State;
use culvert_node_proxy::traffic::TrafficMetrics;
use culvert_node_proxy::workers::{Workers, WorkersConfig, WorkersParts};
use culvert_runtime::{Metrics, SystemClock};
use culvert_tls::ca::{Authority, LeafRequest, Usage, Validity};
use culvert_tls::{CertificateStore, IssuedCertificate};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

pub(crate) const TUNNEL_PORT: u16 = 15008;
pub(crate) const SOON: Duration = Duration::from_secs(10);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn trust_domain() -> TrustDomain {
    "cluster.local".parse().expect("trust domain")
}

pub(crate) fn identity(account: &str) -> Identity {
    Identity::new(&trust_domain(), "shop", account).expect("identity")
}

/// A root and what it signs.
pub(crate) struct Ca {
    root: Authority,
}

impl Ca {
    pub(crate) fn new() -> Self {
        // Old enough to have signed what has expired meanwhile.
        let now = SystemTime::now();
        let validity = Validity {
            not_before: now - 24 * HOUR,
            not_after: now + 24 * HOUR,
        };
        Self {
            root: Authority::root(&trust_domain(), validity).expect("root"),
        }
    }

    pub(crate) fn issue(&self, identity: &Identity) -> IssuedCertificate {
        self.issue_for(identity, Validity::lasting(SystemTime::now(), HOUR))
    }

    pub(crate) fn issue_for(&self, identity: &Identity, validity: Validity) -> IssuedCertificate {
        let request = LeafRequest {
            usage: Usage::Both,
            ..LeafRequest::new(identity, validity)
        };
        let roots = self.root.certificate_pem();
        self.root.issue(&request, &[], roots).expect("leaf")
    }
}

/// An access log that a test can read.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("lock").clone()).expect("text")
    }

    pub(crate) async fn wait_for(&self, what: &str) -> String {
        wait(&format!("{what:?} in the access log"), || {
            self.text()
                .lines()
                .rev()
                .find(|line| line.contains(what))
                .map(str::to_owned)
        })
        .await
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A node proxy's data path.
pub(crate) struct Node {
    pub(crate) workers: Workers,
    pub(crate) state: State,
    pub(crate) store: Arc<CertificateStore>,
    pub(crate) metrics: Metrics,
    pub(crate) log: Log,
    home: Netns,
}

impl Node {
    pub(crate) fn new(workers: usize) -> Self {
        Self::with_descriptors(workers, 2048)
    }

    /// As if the process could open that many files.
    pub(crate) fn with_descriptors(workers: usize, descriptors: u64) -> Self {
        let state = State::new("");
        let store = Arc::new(CertificateStore::new());
        let metrics = Metrics::new();
        let log = Log::default();
        let clock = Arc::new(SystemClock);
        let parts = WorkersParts {
            state: state.clone(),
            certificates: Certificates::fixed(Arc::clone(&store), clock.clone()),
            traffic: TrafficMetrics::register(&metrics),
            access_log: AccessLog::start(Format::Text, Box::new(log.clone())).expect("log"),
            clock,
        };
        let workers =
            Workers::start(WorkersConfig::new(workers, descriptors), parts).expect("workers");
        Self {
            workers,
            state,
            store,
            metrics,
            log,
            home: Netns::current().expect("own namespace"),
        }
    }

    pub(crate) fn certify(&self, certificate: IssuedCertificate) {
        self.store.set(certificate).expect("roots");
    }

    /// A pod in this process's namespace, with listeners at the given places.
    pub(crate) async fn add_pod(&self, account: &str, listeners: PodListeners) {
        self.add_pod_in(account, self.home.clone(), listeners).await;
    }

    pub(crate) async fn add_pod_in(&self, account: &str, netns: Netns, listeners: PodListeners) {
        let pod = Pod {
            uid: Arc::from(format!("uid-{account}")),
            name: Arc::from(account),
            namespace: Arc::from("shop"),
            identity: identity(account),
            workload: uid(account),
            netns,
            diag: PodDiag::default(),
        };
        self.workers
            .add_pod(pod, listeners)
            .await
            .expect("worker answers");
    }

    pub(crate) fn exposition(&self) -> String {
        self.metrics.encode().expect("encodes")
    }

    /// The sum of all series of a family whose labels contain every text.
    pub(crate) fn sum(&self, family: &str, labels: &[&str]) -> u64 {
        let text = self.exposition();
        let lines = text.lines().filter(|line| {
            let name = line.split(['{', ' ']).next();
            name == Some(family) && labels.iter().all(|label| line.contains(label))
        });
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    pub(crate) async fn wait_sum(&self, family: &str, labels: &[&str], at_least: u64) {
        wait(&format!("{family} {labels:?} >= {at_least}"), || {
            (self.sum(family, labels) >= at_least).then_some(())
        })
        .await;
    }
}

/// Polls until there is an answer.
pub(crate) async fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within {SOON:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(SOON, future).await;
    result.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

/// Loopback addresses that no other test of this machine uses at the moment.
pub(crate) fn fresh_net() -> [u8; 3] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let low = u8::try_from(process % 200).expect("below 200");
    [127, 20 + low, NEXT.fetch_add(1, Ordering::Relaxed)]
}

pub(crate) fn ip(net: [u8; 3], host: u8) -> IpAddr {
    IpAddr::from([net[0], net[1], net[2], host])
}

pub(crate) fn listen(address: SocketAddr) -> TcpListener {
    let listener = TcpListener::bind(address).unwrap_or_else(|e| panic!("bind {address}: {e}"));
    listener.set_nonblocking(true).expect("non-blocking");
    listener
}

pub(crate) fn uid(account: &str) -> WorkloadUid {
    WorkloadUid::new(format!("Kubernetes//Pod/shop/{account}"))
}

/// A meshed workload behind `services` (name, service port, target port).
pub(crate) fn workload(account: &str, address: IpAddr, services: &[(&str, u16, u16)]) -> Workload {
    let mut workload = Workload::new(uid(account), account, identity(account));
    workload.addresses = vec![address];
    workload.tunnel_protocol = TunnelProtocol::Hbone;
    workload.workload_name = account.into();
    workload.canonical_name = account.into();
    for (name, service_port, target_port) in services {
        workload
            .services
            .insert(service_name(name), vec![port(*service_port, *target_port)]);
    }
    workload
}

fn port(service_port: u16, target_port: u16) -> Port {
    Port {
        service_port,
        target_port: Some(target_port),
        app_protocol: culvert_model::AppProtocol::Unknown,
    }
}

pub(crate) fn service_name(name: &str) -> ServiceName {
    ServiceName::new("shop", format!("{name}.shop.svc.cluster.local"))
}

pub(crate) fn service(name: &str, vip: IpAddr, service_port: u16, target_port: u16) -> Service {
    let mut service = Service::new(service_name(name), name);
    service.addresses = vec![NetworkAddress::host("", vip)];
    service.ports = vec![port(service_port, target_port)];
    service
}

pub(crate) fn policies(policies: impl IntoIterator<Item = Policy>) -> Vec<Change> {
    policies.into_iter().map(Change::Policy).collect()
}

/// Connects from one address to another.
pub(crate) async fn connect(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = if to.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    };
    let socket = socket.expect("socket");
    socket.set_reuseaddr(true).expect("reuse");
    socket.bind(SocketAddr::new(from, 0)).expect("bind");
    soon("connect", socket.connect(to)).await.expect("connect")
}

/// An application that answers each connection with what it gets, after the
/// client's address in brackets.
pub(crate) fn echo(address: SocketAddr) -> tokio::task::JoinHandle<()> {
    let listener = listen(address);
    tokio::task::spawn_local(async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
        loop {
            let (mut stream, peer) = listener.accept().await.expect("accept");
            tokio::task::spawn_local(async move {
                let greeting = format!("[{}]", peer.ip());
                if stream.write_all(greeting.as_bytes()).await.is_err() {
                    return;
                }
                let (mut read, mut write) = stream.split();
                if tokio::io::copy(&mut read, &mut write).await.is_ok() {
                    let _ = write.shutdown().await;
                }
            });
        }
    })
}

/// Sends, half-closes and reads to the end.
pub(crate) async fn exchange(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
    soon("exchange", async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    })
    .await
}

/// Runs a test body on a LocalSet with the real clock.
pub(crate) fn run<F: Future<Output = ()>>(body: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    tokio::task::LocalSet::new().block_on(&runtime.expect("runtime"), body);
}
