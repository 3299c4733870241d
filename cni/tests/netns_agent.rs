//! The real agent and the real plugin, with a node proxy of a few lines, in network
//! namespaces of a node and of pods. Needs root.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use culvert_api::proto::{keeper, zds};
use culvert_netns::{
    Family, ListenOptions, Netns, SeqPacket, canonical, create_named, delete_named, listen_tcp,
    named_path,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);
const AGENT: &str = env!("CARGO_BIN_EXE_culvert-cni");

fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn ip(netns: &Netns, args: &str) {
    let output = netns
        .run(|| Command::new("ip").args(args.split_whitespace()).output())
        .expect("enter the namespace")
        .expect("these tests set up interfaces with ip: apt-get install iproute2");
    assert!(output.status.success(), "ip {args}: {output:?}");
}

fn ruleset(netns: &Netns) -> String {
    let output = netns
        .run(|| Command::new("nft").args(["list", "ruleset"]).output())
        .expect("enter the namespace")
        .expect("these tests look at rules with nft: apt-get install nftables");
    String::from_utf8(output.stdout).expect("text")
}

/// A node with its agent.
struct Node {
    netns: Netns,
    directory: tempfile::TempDir,
    agent: Option<Child>,
    pods: Vec<String>,
}

impl Node {
    fn new() -> Self {
        let netns = Netns::create().expect("these tests make network namespaces: run them as root");
        ip(&netns, "link set lo up");
        let node = Self {
            netns,
            directory: tempfile::tempdir().expect("directory"),
            agent: None,
            pods: Vec::new(),
        };
        for kind in ["Pod", "Namespace"] {
            let path = node.path("objects").join(kind);
            std::fs::create_dir_all(path).expect("directory");
        }
        std::fs::create_dir(node.path("run")).expect("directory");
        node.namespace("shop", Some("enabled"));
        node
    }

    fn started() -> Self {
        let mut node = Self::new();
        node.start();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&mut self) {
        let mut command = Command::new(AGENT);
        command
            .arg("agent")
            .env_clear()
            .env("CULVERT_NODE_NAME", "node-1")
            .env("CULVERT_CNI_RUN_DIR", self.path("run"))
            .env("CULVERT_CNI_OBJECTS_DIR", self.path("objects"))
            .env("CULVERT_CNI_STATUS_DIR", self.path("run"))
            .stdout(Stdio::null());
        // A left-over socket would take the wait below for the new agent.
        let _ = std::fs::remove_file(self.path("run/keeper.sock"));
        let child = self.netns.run(|| command.spawn()).expect("enter");
        self.agent = Some(child.expect("started"));
        wait_for("the agent's sockets", || {
            self.path("run/keeper.sock").exists().then_some(())
        });
    }

    fn kill(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().expect("killed");
            agent.wait().expect("gone");
        }
    }

    fn write(&self, kind: &str, name: &str, object: &Value) {
        let path = self.path("objects").join(kind).join(format!("{name}.json"));
        let draft = path.with_extension("new");
        std::fs::write(&draft, object.to_string()).expect("written");
        std::fs::rename(&draft, &path).expect("renamed");
    }

    fn namespace(&self, name: &str, label: Option<&str>) {
        let labels = label.map_or(json!({}), |value| json!({"culvert.dev/mesh": value}));
        let object = json!({"kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        self.write("Namespace", &format!("_.{name}"), &object);
    }

    fn object(&self, pod: &Pod, label: Option<&str>) {
        let labels = label.map_or(json!({}), |value| json!({"culvert.dev/mesh": value}));
        let object = json!({
            "kind": "Pod",
            "metadata": {"name": pod.name, "namespace": "shop", "uid": pod.uid, "labels": labels},
            "spec": {"nodeName": "node-1", "serviceAccountName": "web", "containers": [{
                "readinessProbe": {"httpGet": {"port": 8080}},
            }]},
        });
        self.write("Pod", &format!("shop.{}", pod.name), &object);
    }

    fn remove_object(&self, pod: &Pod) {
        let path = self
            .path("objects/Pod")
            .join(format!("shop.{}.json", pod.name));
        std::fs::remove_file(path).expect("removed");
    }

    /// A pod's namespace, joined to the node's, before any plugin has seen it.
    fn pod(&mut self, number: u8) -> Pod {
        let name =
            format!("t-cni-{}-{number}", self.directory.path().display()).replace(['/', '.'], "");
        let netns = create_named(&name).expect("a namespace");
        self.pods.push(name.clone());
        let pod = Pod {
            netns,
            path: named_path(&name).expect("a path"),
            name: format!("web-{number}"),
            uid: format!("uid-{number}"),
            ip: Ipv4Addr::new(10, 9, number, 2),
        };
        let to = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            pod.netns.as_fd().as_raw_fd()
        );
        let (ip_node, ip_pod) = (Ipv4Addr::new(10, 9, number, 1), pod.ip);
        let device = format!("pod{number}");
        ip(&pod.netns, "link set lo up");
        ip(
            &self.netns,
            &format!("link add {device} type veth peer name eth0 netns {to}"),
        );
        ip(&self.netns, &format!("link set {device} up"));
        ip(&self.netns, &format!("addr add {ip_node}/24 dev {device}"));
        ip(&pod.netns, "link set eth0 up");
        ip(&pod.netns, &format!("addr add {ip_pod}/24 dev eth0"));
        ip(&pod.netns, &format!("route add default via {ip_node}"));
        pod
    }

    fn plugin(&self, command: &str, pod: &Pod) -> Output {
        self.plugin_with(command, pod, &[pod.ip])
    }

    fn plugin_with(&self, command: &str, pod: &Pod, ips: &[Ipv4Addr]) -> Output {
        self.start_plugin(command, pod, ips)
            .wait_with_output()
            .expect("ended")
    }

    fn start_plugin(&self, command: &str, pod: &Pod, ips: &[Ipv4Addr]) -> Child {
        let ips: Vec<Value> = ips
            .iter()
            .map(|ip| json!({"address": format!("{ip}/24"), "interface": 0}))
            .collect();
        let input = json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "culvert-cni",
            "runDir": self.path("run"),
            "prevResult": {"cniVersion": "1.1.0", "ips": ips, "interfaces": [{"name": "eth0"}]},
        });
        let mut child = Command::new(AGENT)
            .env_clear()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", format!("sandbox-{}", pod.uid))
            .env("CNI_NETNS", &pod.path)
            .env("CNI_IFNAME", "eth0")
            .env(
                "CNI_ARGS",
                format!(
                    "K8S_POD_NAMESPACE=shop;K8S_POD_NAME={};K8S_POD_UID={}",
                    pod.name, pod.uid
                ),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut stdin = child.stdin.take().expect("piped");
        stdin
            .write_all(input.to_string().as_bytes())
            .expect("written");
        child
    }

    #[track_caller]
    fn add(&self, pod: &Pod) {
        let output = self.plugin("ADD", pod);
        assert!(output.status.success(), "{output:?}");
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            result["interfaces"][0]["name"], "eth0",
            "the result is passed on"
        );
    }

    #[track_caller]
    fn refused(&self, pod: &Pod) -> Value {
        let output = self.plugin("ADD", pod);
        assert!(!output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("an error as JSON")
    }

    fn status(&self, pod: &Pod) -> Option<Value> {
        let path = self
            .path("run/enrollment")
            .join(format!("shop.{}.json", pod.name));
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    fn wait_enrolled(&self, pod: &Pod, enrolled: bool) -> Value {
        wait_for("the status of the pod", || {
            self.status(pod)
                .filter(|status| status["enrolled"] == enrolled)
        })
    }

    fn metrics(&self) -> String {
        self.get(15020, "/metrics")
    }

    fn config_dump(&self) -> Value {
        let answer = self.get(15000, "/config_dump");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        serde_json::from_str(body).expect("JSON")
    }

    fn get(&self, port: u16, path: &str) -> String {
        use std::io::Read;
        let request = || {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        self.netns.run(request).expect("enter").expect("an answer")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        for name in &self.pods {
            let _ = delete_named(name);
        }
    }
}

struct Pod {
    netns: Netns,
    path: PathBuf,
    name: String,
    uid: String,
    ip: Ipv4Addr,
}

/// What the small node proxy did.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Add(String, String),
    Delete(String),
    Snapshot,
    Closed,
}

/// A node proxy: opens an outbound listener in each namespace it gets.
struct Proxy {
    told: mpsc::Receiver<Told>,
    connection: std::sync::Arc<SeqPacket>,
}

fn outbound_listener(netns: &Netns) -> TcpListener {
    let options = ListenOptions {
        family: Family::Dual,
        transparent: true,
        reuse_port: true,
        mark: Some(0x539),
        backlog: 128,
    };
    let listener = netns
        .run(|| listen_tcp(15001, &options))
        .expect("enter")
        .expect("listen");
    listener.set_nonblocking(false).expect("blocking");
    listener
}

impl Proxy {
    /// Connects and serves; `error` is its answer to every Add.
    fn start(run_dir: &Path, error: &'static str) -> Self {
        let path = run_dir.join("zds.sock");
        let connection = wait_for("the agent", || SeqPacket::connect(&path).ok());
        let hello = zds::ZdsHello {
            version: zds::Version::V1.into(),
        };
        connection.send(&hello.encode_to_vec(), &[]).expect("hello");
        let connection = std::sync::Arc::new(connection);
        let (sender, told) = mpsc::channel();
        let own = std::sync::Arc::clone(&connection);
        std::thread::spawn(move || {
            let mut listeners = BTreeMap::new();
            while let Ok(Some(packet)) = own.receive(1024) {
                let request = zds::WorkloadRequest::decode(&*packet.bytes).expect("a request");
                use zds::workload_request::Payload;
                let (told, answer) = match request.payload.expect("a payload") {
                    Payload::Add(add) => {
                        let info = add.workload_info.expect("info");
                        let [fd] = <[OwnedFd; 1]>::try_from(packet.fds).expect("one descriptor");
                        let netns = Netns::from_fd(fd).expect("a namespace");
                        if error.is_empty() {
                            listeners.insert(add.uid.clone(), outbound_listener(&netns));
                        }
                        let who =
                            format!("{}/{}/{}", info.namespace, info.name, info.service_account);
                        (Told::Add(add.uid, who), error)
                    }
                    Payload::Del(del) => {
                        listeners.remove(&del.uid);
                        (Told::Delete(del.uid), "")
                    }
                    Payload::SnapshotSent(_) => (Told::Snapshot, ""),
                    Payload::Keep(keep) => panic!("{keep:?}"),
                };
                let ack = zds::Ack {
                    error: answer.to_owned(),
                };
                let response = zds::WorkloadResponse {
                    payload: Some(zds::workload_response::Payload::Ack(ack)),
                };
                let mut bytes = response.encode_to_vec();
                if bytes.is_empty() {
                    bytes = vec![0x0a, 0];
                }
                if own.send(&bytes, &[]).is_err() || sender.send(told).is_err() {
                    return;
                }
            }
            let _ = sender.send(Told::Closed);
        });
        Self { told, connection }
    }

    #[track_caller]
    fn next(&self) -> Told {
        self.told
            .recv_timeout(PATIENCE)
            .expect("a request of the agent")
    }

    fn add(pod: &Pod) -> Told {
        Told::Add(pod.uid.clone(), format!("shop/{}/web", pod.name))
    }

    fn stop(self) {
        let fd = self.connection.as_fd();
        rustix_shutdown(fd);
        while self
            .told
            .recv_timeout(PATIENCE)
            .is_ok_and(|told| told != Told::Closed)
        {}
    }
}

fn rustix_shutdown(fd: std::os::fd::BorrowedFd<'_>) {
    socket2::SockRef::from(&fd)
        .shutdown(std::net::Shutdown::Both)
        .expect("shut down");
}

/// Whether the pod's traffic is redirected, by trying.
#[track_caller]
fn check_redirected(pod: &Pod) {
    let far = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 80);
    // The proxy's listener does not accept; the kernel's backlog answers.
    let stream = pod.netns.run(|| TcpStream::connect_timeout(&far, PATIENCE));
    let stream = stream.expect("enter").expect("redirected");
    assert_eq!(canonical(stream.peer_addr().expect("connected")), far);
}

#[test]
fn add_enrolls_and_del_takes_out() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Told::Snapshot);
    let (pod, outside) = (node.pod(1), node.pod(2));
    node.object(&pod, None);
    node.object(&outside, Some("disabled"));
    node.add(&pod);
    assert_eq!(proxy.next(), Proxy::add(&pod));
    check_redirected(&pod);
    assert_eq!(node.wait_enrolled(&pod, true)["annotation"], "true");
    assert!(node.plugin("CHECK", &pod).status.success());
    assert!(node.plugin("STATUS", &pod).status.success());
    node.add(&outside);
    assert_eq!(ruleset(&outside.netns), "");
    let status = node.wait_enrolled(&outside, false);
    assert!(
        status["reason"]
            .as_str()
            .expect("text")
            .contains("disabled"),
        "{status}"
    );
    wait_for("the probe rules of the node", || {
        let rules = ruleset(&node.netns);
        rules.contains(&format!("{} . 8080", pod.ip)).then_some(())
    });
    let metrics = node.metrics();
    let changed = "culvert_cni_rule_applications_total{result=\"changed\"} 1";
    assert!(metrics.contains(changed), "{metrics}");
    let answered = "culvert_cni_add_duration_seconds_count{result=\"not_enrolled\"} 1";
    assert!(metrics.contains(answered), "{metrics}");
    assert!(metrics.contains("culvert_cni_pods_enrolled 1"), "{metrics}");
    assert!(
        metrics.contains("culvert_cni_pods_not_captured 0"),
        "{metrics}"
    );
    assert!(
        metrics.contains("culvert_cni_zds_connections 1"),
        "{metrics}"
    );

    assert!(node.plugin("DEL", &pod).status.success());
    assert_eq!(proxy.next(), Told::Delete(pod.uid.clone()));
    node.remove_object(&pod);
    wait_for("the status to go", || {
        node.status(&pod).is_none().then_some(())
    });
    wait_for("the probe to go", || {
        let rules = ruleset(&node.netns);
        (!rules.contains("8080")).then_some(())
    });
    assert!(node.plugin("DEL", &pod).status.success(), "twice is fine");
}

#[test]
fn add_waits_for_the_pod_object_and_for_the_proxy() {
    let mut node = Node::started();
    let pod = node.pod(1);
    let waiting = node.start_plugin("ADD", &pod, &[pod.ip]);
    node.object(&pod, None);
    wait_for("the status", || {
        let status = node.status(&pod)?;
        (status["reason"] == "no node proxy is connected").then_some(())
    });
    let proxy = Proxy::start(&node.path("run"), "");
    let output = waiting.wait_with_output().expect("ended");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(proxy.next(), Proxy::add(&pod));
    check_redirected(&pod);
}

#[test]
fn add_fails_for_a_wrong_namespace_and_for_a_proxy_that_cannot() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "no port left");
    let pod = node.pod(1);
    node.object(&pod, None);
    let output = node.plugin_with("ADD", &pod, &[Ipv4Addr::new(10, 9, 1, 77)]);
    let error: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let details = error["details"].as_str().expect("text");
    assert!(
        details.contains("does not have the pod's address 10.9.1.77"),
        "{error}"
    );
    let error = node.refused(&pod);
    assert!(
        error["details"]
            .as_str()
            .expect("text")
            .contains("no port left"),
        "{error}"
    );
    assert_eq!(ruleset(&pod.netns), "", "nothing is redirected to nobody");
    assert_eq!(proxy.next(), Told::Snapshot);
    assert_eq!(proxy.next(), Proxy::add(&pod));
    assert_eq!(proxy.next(), Told::Delete(pod.uid.clone()));
}

#[test]
fn without_an_agent_pods_wait_and_exempt_namespaces_start() {
    let mut node = Node::started();
    node.kill();
    let pod = node.pod(1);
    node.object(&pod, None);
    assert_eq!(node.refused(&pod)["code"], 11);
    assert!(node.plugin("DEL", &pod).status.success());
    let list = node.path("run/exempt-namespaces");
    let text = std::fs::read_to_string(&list).expect("kept on disk");
    assert!(
        text.contains("kube-system") && text.contains("culvert-system"),
        "{text}"
    );
    std::fs::write(&list, text + "shop\n").expect("written");
    node.add(&pod);
}

#[test]
fn told_to_end_the_agent_answers_who_waits_and_is_gone() {
    let mut node = Node::started();
    let pod = node.pod(1);
    node.object(&pod, None);
    // There is no node proxy, so this waits.
    let waiting = node.start_plugin("ADD", &pod, &[pod.ip]);
    let dumped = wait_for("the sandbox", || {
        let pods = node.config_dump()["agent"]["pods"].take();
        pods[0]["sandbox"].is_object().then(|| pods[0].clone())
    });
    assert_eq!(dumped["uid"], pod.uid);
    assert_eq!(
        (&dumped["member"], &dumped["enrolled"], &dumped["captured"]),
        (&json!(true), &json!(false), &json!(false))
    );
    assert_eq!(dumped["reason"], "no node proxy is connected");
    let mut agent = node.agent.take().expect("running");
    let id = nix::unistd::Pid::from_raw(agent.id().try_into().expect("a process id"));
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).expect("told");
    let answered = waiting.wait_with_output().expect("ended");
    assert!(!answered.status.success(), "{answered:?}");
    // Well before the deadline of its drain: nothing is left to be done.
    let ended = wait_for("its end", || agent.try_wait().expect("a child"));
    assert!(ended.success(), "{ended}");
}

#[test]
fn labels_enroll_and_un_enroll_running_pods() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Told::Snapshot);
    let pod = node.pod(1);
    node.namespace("shop", None);
    node.object(&pod, None);
    node.add(&pod);
    // By the namespace, by the pod, and back, and once more.
    for _ in 0..2 {
        node.namespace("shop", Some("enabled"));
        assert_eq!(proxy.next(), Proxy::add(&pod));
        node.wait_enrolled(&pod, true);
        check_redirected(&pod);
        node.object(&pod, Some("disabled"));
        assert_eq!(proxy.next(), Told::Delete(pod.uid.clone()));
        node.wait_enrolled(&pod, false);
        assert_eq!(ruleset(&pod.netns), "");
        node.object(&pod, Some("enabled"));
        assert_eq!(proxy.next(), Proxy::add(&pod));
        node.wait_enrolled(&pod, true);
        node.namespace("shop", None);
        node.object(&pod, None);
        assert_eq!(proxy.next(), Told::Delete(pod.uid.clone()));
        node.wait_enrolled(&pod, false);
        assert_eq!(ruleset(&pod.netns), "");
    }
}

#[test]
fn a_new_agent_knows_running_pods_and_repairs_their_rules() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    let (pod, other) = (node.pod(1), node.pod(2));
    for one in [&pod, &other] {
        node.object(one, None);
        node.add(one);
    }
    node.kill();
    proxy.stop();
    node.wait_enrolled(&pod, true);
    // Meanwhile: rules get lost, and a pod goes without the agent's knowledge.
    let damage = || {
        Command::new("nft")
            .args(["delete", "table", "inet", "culvert"])
            .status()
    };
    assert!(
        pod.netns
            .run(damage)
            .expect("enter")
            .expect("nft")
            .success()
    );
    node.remove_object(&other);
    delete_named(
        other
            .path
            .file_name()
            .expect("a name")
            .to_str()
            .expect("text"),
    )
    .expect("gone");
    drop(other);
    node.start();
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Proxy::add(&pod));
    assert_eq!(proxy.next(), Told::Snapshot);
    wait_for("the rules", || {
        (!ruleset(&pod.netns).is_empty()).then_some(())
    });
    check_redirected(&pod);
    wait_for("the other record to go", || {
        let records = std::fs::read_dir(node.path("run/sandboxes")).expect("readable");
        (records.count() == 1).then_some(())
    });
}

#[test]
fn the_newest_proxy_gets_pods_and_all_hear_of_their_end() {
    let mut node = Node::started();
    let old = Proxy::start(&node.path("run"), "");
    let pod = node.pod(1);
    node.object(&pod, None);
    node.add(&pod);
    assert_eq!(old.next(), Told::Snapshot);
    assert_eq!(old.next(), Proxy::add(&pod));
    let new = Proxy::start(&node.path("run"), "");
    assert_eq!(new.next(), Proxy::add(&pod));
    assert_eq!(new.next(), Told::Snapshot);
    let second = node.pod(2);
    node.object(&second, None);
    node.add(&second);
    assert_eq!(new.next(), Proxy::add(&second));
    // The old one is told nothing but ends.
    assert!(node.plugin("DEL", &pod).status.success());
    assert_eq!(old.next(), Told::Delete(pod.uid.clone()));
    assert_eq!(new.next(), Told::Delete(pod.uid.clone()));
    // When the new one dies, the old one is told what it missed.
    new.stop();
    assert_eq!(old.next(), Proxy::add(&second));
    assert_eq!(node.wait_enrolled(&second, true)["enrolled"], true);
}

#[test]
fn sockets_outlive_the_proxy_but_not_the_pod() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    let pod = node.pod(1);
    node.object(&pod, None);
    let ask = |payload: keeper::request::Payload, fds: &[std::os::fd::BorrowedFd<'_>]| {
        let client = SeqPacket::connect(node.path("run/keeper.sock")).expect("connected");
        let request = keeper::Request {
            payload: Some(payload),
        };
        client.send(&request.encode_to_vec(), fds).expect("sent");
        let packet = client.receive(1024).expect("received").expect("an answer");
        let answer = keeper::Answer::decode(&*packet.bytes).expect("an answer");
        (answer, packet.fds)
    };
    let listener = outbound_listener(&pod.netns);
    let put = || {
        let socket = keeper::Socket {
            port: 15001,
            udp: false,
            ipv6: true,
        };
        let put = keeper::Put {
            uid: pod.uid.clone(),
            sockets: vec![socket],
        };
        ask(keeper::request::Payload::Put(put), &[listener.as_fd()])
    };
    let take = || {
        let take = keeper::Take {
            uid: pod.uid.clone(),
        };
        ask(keeper::request::Payload::Take(take), &[])
    };
    assert_eq!(put().0.error, "the pod is not known");
    node.add(&pod);
    assert_eq!(put().0.error, "");
    let (answer, fds) = take();
    assert_eq!((answer.sockets.len(), fds.len()), (1, 1));
    assert_eq!(take().1.len(), 1, "it stays kept");
    let again: TcpListener = fds.into_iter().next().expect("one").into();
    assert_eq!(again.local_addr().expect("bound").port(), 15001);
    assert!(node.plugin("DEL", &pod).status.success());
    wait_for("the sockets to go", || take().1.is_empty().then_some(()));
    assert_eq!(put().0.error, "the pod is not known");
    drop(proxy);
}

#[test]
fn a_proxy_that_does_not_keep_to_the_protocol_is_cut_off() {
    let node = Node::started();
    let path = node.path("run/zds.sock");
    let closed = |first: &[u8], second: Option<&[u8]>| {
        let connection = SeqPacket::connect(&path).expect("connected");
        connection.send(first, &[]).expect("sent");
        let mut snapshot = false;
        loop {
            match connection.receive(1024) {
                Ok(Some(_)) => {
                    assert!(!snapshot, "one request at a time");
                    snapshot = true;
                    if let Some(bytes) = second {
                        connection.send(bytes, &[]).expect("sent");
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
    };
    closed(&[0xff, 0xff], None);
    closed(&[8, 7], None);
    // A good hello, then nonsense for an answer.
    closed(&[8, 1], Some(&[0xff]));
    // And the next one is served.
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Told::Snapshot);
}
