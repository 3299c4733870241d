//! The DNS proxy in a pod's namespace. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN: run as
//! root.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use culvert_identity::{Identity, TrustDomain};
use culvert_model::{Change, NetworkAddress, Service, ServiceName, WorkloadUid};
use culvert_netns::{Netns, loopback_up};
use culvert_node_proxy::dns::{Dns, DnsConfig, DnsMetrics};
use culvert_node_proxy::pods::{Pod, PodDiag, sockets};
use culvert_node_proxy::state::State;
use culvert_runtime::{Drain, Metrics, spawn_worker};
use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};

const WAIT: Duration = Duration::from_secs(10);

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).expect("name"), kind));
    message.to_vec().expect("encodes")
}

struct World {
    netns: Netns,
    metrics: Metrics,
    dns: Dns,
    drain: Drain,
    runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
}

/// A pod whose machine has the given servers, and a service `cart`.
fn world(servers: &[IpAddr]) -> World {
    let (world, state) = unknown_world(servers);
    state.apply([cart()]);
    world
}

fn cart() -> Change {
    let name = ServiceName::new("shop", "cart.shop.svc.cluster.local");
    let mut service = Service::new(name, "cart");
    service.addresses = vec![NetworkAddress::host("", Ipv4Addr::new(10, 96, 0, 7).into())];
    Change::Service(service)
}

/// The same before anything of the mesh is known.
fn unknown_world(servers: &[IpAddr]) -> (World, State) {
    let netns = Netns::create().expect("run as root");
    netns.run(loopback_up).expect("enter").expect("loopback");
    let directory = tempfile::tempdir().expect("directory");
    let resolv_conf: PathBuf = directory.path().join("resolv.conf");
    let lines: String = servers
        .iter()
        .map(|ip| format!("nameserver {ip}\n"))
        .collect();
    std::fs::write(&resolv_conf, lines + "options timeout:1 attempts:1\n").expect("write");
    let state = State::new("");
    let (metrics, drain) = (Metrics::new(), Drain::new(Duration::ZERO));
    let config = DnsConfig {
        domain: "cluster.local".into(),
        resolv_conf,
    };
    let (dns, thread) =
        Dns::new(config, state.clone(), DnsMetrics::register(&metrics)).expect("namespace");
    let watch = drain.watch();
    spawn_worker("dns", move || thread.run(watch)).expect("thread");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let domain: TrustDomain = "cluster.local".parse().expect("trust domain");
    let pod = Pod {
        uid: "1".into(),
        name: "web".into(),
        namespace: "shop".into(),
        identity: Identity::new(&domain, "shop", "web").expect("identity"),
        workload: WorkloadUid::from("Kubernetes//Pod/shop/web"),
        netns: netns.clone(),
        diag: PodDiag::default(),
    };
    let opened = sockets::open(&netns, sockets::Dns::On, Vec::new()).expect("sockets");
    runtime
        .block_on(dns.add_pod(Arc::new(pod), opened.dns))
        .expect("served");
    let world = World {
        netns,
        metrics,
        dns,
        drain,
        runtime,
        _directory: directory,
    };
    (world, state)
}

impl Drop for World {
    fn drop(&mut self) {
        self.drain.stop("the test is over");
    }
}

impl World {
    fn udp(&self, query: &[u8], to: &str) -> Option<Vec<u8>> {
        let to: IpAddr = to.parse().expect("address");
        let ask = || {
            let local: IpAddr = if to.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                "::1".parse().expect("ip")
            };
            let socket = UdpSocket::bind((local, 0)).expect("bind");
            socket.set_read_timeout(Some(WAIT)).expect("timeout");
            socket.connect((to, 15053)).expect("connect");
            socket.send(query).expect("send");
            let mut answer = vec![0; 4096];
            let length = socket.recv(&mut answer).ok()?;
            answer.truncate(length);
            Some(answer)
        };
        self.netns.run(ask).expect("enter")
    }

    fn tcp(&self, queries: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", 15053)).expect("connect");
            stream.set_read_timeout(Some(WAIT)).expect("timeout");
            let exchange = |query: &Vec<u8>| {
                let length = u16::try_from(query.len()).expect("short").to_be_bytes();
                stream
                    .write_all(&[&length[..], query].concat())
                    .expect("write");
                let mut length = [0; 2];
                stream.read_exact(&mut length).expect("length");
                let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut answer).expect("answer");
                answer
            };
            queries.iter().map(exchange).collect()
        };
        self.netns.run(ask).expect("enter")
    }

    /// A server in the pod's namespace that gives this answer to everything.
    fn server(&self, at: IpAddr, answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static) {
        let socket = self
            .netns
            .run(|| UdpSocket::bind((at, 53)).expect("bind"))
            .expect("enter");
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if let Some(answer) = answer(&buffer[..length]) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
    }
}

fn reply(query: &[u8], code: ResponseCode, tail: &[u8]) -> Vec<u8> {
    let query = Message::from_vec(query).expect("query");
    let mut message = Message::error_msg(query.metadata.id, OpCode::Query, code);
    message.add_queries(query.queries);
    let mut bytes = message.to_vec().expect("encodes");
    bytes.extend_from_slice(tail);
    bytes
}

fn at(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

#[test]
fn without_any_server_the_answer_is_a_failure_and_own_names_still_work() {
    let world = world(&[]);
    let answer = world
        .udp(&query("example.org.", RecordType::A), "127.0.0.1")
        .expect("answer");
    let message = Message::from_vec(&answer).expect("readable");
    assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
    for to in ["127.0.0.1", "::1"] {
        let answer = world
            .udp(&query("cart.", RecordType::A), to)
            .expect("answer");
        let message = Message::from_vec(&answer).expect("readable");
        assert_eq!(
            message.answers[0].data.ip_addr(),
            Some(Ipv4Addr::new(10, 96, 0, 7).into())
        );
    }
}

/// Sent on, the question would come back as a name that does not exist.
#[test]
fn names_wait_for_the_first_snapshot() {
    let (world, state) = unknown_world(&[]);
    let socket = world
        .netns
        .run(|| UdpSocket::bind(("127.0.0.1", 0)).expect("bind"))
        .expect("enter");
    socket.connect(("127.0.0.1", 15053)).expect("connect");
    socket.send(&query("cart", RecordType::A)).expect("send");
    let receive = |limit| {
        socket.set_read_timeout(Some(limit)).expect("timeout");
        let mut answer = vec![0; 4096];
        socket
            .recv(&mut answer)
            .map(|length| answer[..length].to_vec())
    };
    let early = receive(Duration::from_millis(300));
    assert!(early.is_err(), "answered from nothing: {early:?}");
    state.apply([cart()]);
    let answer = receive(WAIT);
    let answer = Message::from_vec(&answer.expect("an answer")).expect("decodes");
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    assert!(
        answer
            .answers
            .iter()
            .any(|record| record.record_type() == RecordType::A)
    );
}

#[test]
fn other_names_come_back_byte_for_byte() {
    let world = world(&[at(10)]);
    // Bytes after the message that only a verbatim copy keeps.
    world.server(at(10), |query| {
        Some(reply(query, ResponseCode::NXDomain, b"\xde\xad"))
    });
    for kind in [RecordType::A, RecordType::SRV, RecordType::TXT] {
        let asked = query("nowhere.example.", kind);
        let answer = world.udp(&asked, "127.0.0.1").expect("answer");
        assert_eq!(answer, reply(&asked, ResponseCode::NXDomain, b"\xde\xad"));
    }
    let text = world.metrics.encode().expect("encodes");
    assert!(text.contains("istio_dns_requests_total 3"), "{text}");
    assert!(
        text.contains("istio_dns_upstream_requests_total 3"),
        "{text}"
    );
    assert!(
        text.contains("istio_dns_upstream_failures_total 0"),
        "{text}"
    );
}

#[test]
fn a_server_that_fails_or_is_silent_is_passed_over() {
    let world = world(&[at(10), at(11), at(12)]);
    world.server(at(10), |query| {
        Some(reply(query, ResponseCode::ServFail, b""))
    });
    world.server(at(11), |_| None);
    world.server(at(12), |query| {
        Some(reply(query, ResponseCode::NoError, b"!"))
    });
    let asked = query("example.org.", RecordType::A);
    let answer = world.udp(&asked, "127.0.0.1").expect("answer");
    assert_eq!(answer, reply(&asked, ResponseCode::NoError, b"!"));
    let text = world.metrics.encode().expect("encodes");
    assert!(
        text.contains("istio_dns_upstream_failures_total 1"),
        "{text}"
    );
}

#[test]
fn a_refusal_of_all_servers_is_the_answer() {
    let world = world(&[at(10), at(11)]);
    for last in [10, 11] {
        world.server(at(last), |query| {
            Some(reply(query, ResponseCode::Refused, b""))
        });
    }
    let asked = query("example.org.", RecordType::A);
    assert_eq!(
        world.udp(&asked, "127.0.0.1"),
        Some(reply(&asked, ResponseCode::Refused, b""))
    );
}

#[test]
fn a_stream_carries_one_question_after_another() {
    let world = world(&[]);
    let queries = [
        query("cart.", RecordType::A),
        query("cart.shop.", RecordType::AAAA),
    ];
    let answers = world.tcp(&queries);
    assert_eq!(
        Message::from_vec(&answers[0])
            .expect("readable")
            .answers
            .len(),
        1
    );
    assert_eq!(
        Message::from_vec(&answers[1])
            .expect("readable")
            .answers
            .len(),
        0
    );
    // Nobody listens on the server's TCP port: a failure comes, not silence.
    let world = self::world(&[at(10)]);
    let answers = world.tcp(&[query("example.org.", RecordType::A)]);
    let code = Message::from_vec(&answers[0])
        .expect("readable")
        .metadata
        .response_code;
    assert_eq!(code, ResponseCode::ServFail);
}

#[test]
fn a_pod_that_goes_takes_its_sockets_along() {
    let world = world(&[]);
    world.runtime.block_on(world.dns.remove_pod("1".into()));
    let bind = || {
        let address: SocketAddr = "127.0.0.1:15053".parse().expect("address");
        std::net::TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
    };
    assert!(world.netns.run(bind).expect("enter"));
}
