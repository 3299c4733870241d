//! A node with the real agent and the real plugin, its pods, and a node proxy of a
//! few lines.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use culvert_api::proto::zds;
use culvert_netns::{
    Family, ListenOptions, Netns, SeqPacket, canonical, create_named, delete_named, listen_tcp,
    named_path,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const AGENT: &str = env!("CARGO_BIN_EXE_culvert-cni");

pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn ip(netns: &Netns, args: &str) {
    let output = netns
        .run(|| Command::new("ip").args(args.split_whitespace()).output())
        .expect("enter the namespace")
        .expect("these tests set up interfaces with ip: apt-get install iproute2");
    assert!(output.status.success(), "ip {args}: {output:?}");
}

pub(crate) fn ruleset(netns: &Netns) -> String {
    let output = netns
        .run(|| Command::new("nft").args(["list", "ruleset"]).output())
        .expect("enter the namespace")
        .expect("these tests look at rules with nft: apt-get install nftables");
    String::from_utf8(output.stdout).expect("text")
}

/// A node with its agent.
pub(crate) struct Node {
    pub(crate) netns: Netns,
    directory: tempfile::TempDir,
    pub(crate) agent: Option<Child>,
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

    pub(crate) fn started() -> Self {
        let mut node = Self::new();
        node.start();
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn start(&mut self) {
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

    pub(crate) fn kill(&mut self) {
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

    pub(crate) fn namespace(&self, name: &str, label: Option<&str>) {
        let labels = label.map_or(json!({}), |value| json!({"culvert.dev/mesh": value}));
        let object = json!({"kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        self.write("Namespace", &format!("_.{name}"), &object);
    }

    pub(crate) fn object(&self, pod: &Pod, label: Option<&str>) {
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

    pub(crate) fn remove_object(&self, pod: &Pod) {
        let path = self
            .path("objects/Pod")
            .join(format!("shop.{}.json", pod.name));
        std::fs::remove_file(path).expect("removed");
    }

    /// A pod's namespace, joined to the node's, before any plugin has seen it.
    pub(crate) fn pod(&mut self, number: u8) -> Pod {
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

    pub(crate) fn plugin(&self, command: &str, pod: &Pod) -> Output {
        self.plugin_with(command, pod, &[pod.ip])
    }

    pub(crate) fn plugin_with(&self, command: &str, pod: &Pod, ips: &[Ipv4Addr]) -> Output {
        self.start_plugin(command, pod, ips)
            .wait_with_output()
            .expect("ended")
    }

    pub(crate) fn start_plugin(&self, command: &str, pod: &Pod, ips: &[Ipv4Addr]) -> Child {
        let ips: Vec<Value> = ips
            .iter()
            .map(|ip| json!({"address": format!("{ip}/24"), "interface": 0}))
            .collect();
        let previous = json!({"cniVersion": "1.1.0", "ips": ips, "interfaces": [{"name": "eth0"}]});
        let mut plugin = Command::new(AGENT);
        plugin
            .env_clear()
            .env("CNI_CONTAINERID", pod.sandbox())
            .env("CNI_NETNS", &pod.path)
            .env("CNI_IFNAME", "eth0")
            .env(
                "CNI_ARGS",
                format!(
                    "K8S_POD_NAMESPACE=shop;K8S_POD_NAME={};K8S_POD_UID={}",
                    pod.name, pod.uid
                ),
            );
        self.run_plugin(plugin, command, "prevResult", &previous)
    }

    /// GC, by a runtime that has the sandboxes of `living` and no other.
    pub(crate) fn collect(&self, living: &[&Pod]) -> Output {
        let valid: Vec<Value> = living
            .iter()
            .map(|pod| json!({"containerID": pod.sandbox(), "ifname": "eth0"}))
            .collect();
        let mut plugin = Command::new(AGENT);
        plugin.env_clear();
        self.run_plugin(plugin, "GC", "cni.dev/valid-attachments", &json!(valid))
            .wait_with_output()
            .expect("ended")
    }

    fn run_plugin(&self, mut plugin: Command, command: &str, key: &str, value: &Value) -> Child {
        let input = json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "culvert-cni",
            "runDir": self.path("run"), key: value,
        });
        let mut child = plugin
            .env("CNI_COMMAND", command)
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
    pub(crate) fn add(&self, pod: &Pod) {
        let output = self.plugin("ADD", pod);
        assert!(output.status.success(), "{output:?}");
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            result["interfaces"][0]["name"], "eth0",
            "the result is passed on"
        );
    }

    #[track_caller]
    pub(crate) fn refused(&self, pod: &Pod) -> Value {
        let output = self.plugin("ADD", pod);
        assert!(!output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("an error as JSON")
    }

    pub(crate) fn status(&self, pod: &Pod) -> Option<Value> {
        let path = self
            .path("run/enrollment")
            .join(format!("shop.{}.json", pod.name));
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    pub(crate) fn wait_enrolled(&self, pod: &Pod, enrolled: bool) -> Value {
        wait_for("the status of the pod", || {
            self.status(pod)
                .filter(|status| status["enrolled"] == enrolled)
        })
    }

    pub(crate) fn metrics(&self) -> String {
        self.get(15020, "/metrics")
    }

    pub(crate) fn config_dump(&self) -> Value {
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

pub(crate) struct Pod {
    pub(crate) netns: Netns,
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) ip: Ipv4Addr,
}

impl Pod {
    /// The container id of its sandbox.
    fn sandbox(&self) -> String {
        format!("sandbox-{}", self.uid)
    }
}

/// What the small node proxy did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Add(String, String),
    Delete(String),
    Snapshot,
    Closed,
}

/// A node proxy: opens an outbound listener in each namespace it gets.
pub(crate) struct Proxy {
    told: mpsc::Receiver<Told>,
    connection: std::sync::Arc<SeqPacket>,
}

pub(crate) fn outbound_listener(netns: &Netns) -> TcpListener {
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
    pub(crate) fn start(run_dir: &Path, error: &'static str) -> Self {
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
    pub(crate) fn next(&self) -> Told {
        self.told
            .recv_timeout(PATIENCE)
            .expect("a request of the agent")
    }

    pub(crate) fn add(pod: &Pod) -> Told {
        Told::Add(pod.uid.clone(), format!("shop/{}/web", pod.name))
    }

    pub(crate) fn stop(self) {
        let fd = self.connection.as_fd();
        shut_down(fd);
        while self
            .told
            .recv_timeout(PATIENCE)
            .is_ok_and(|told| told != Told::Closed)
        {}
    }
}

fn shut_down(fd: std::os::fd::BorrowedFd<'_>) {
    socket2::SockRef::from(&fd)
        .shutdown(std::net::Shutdown::Both)
        .expect("shut down");
}

/// Whether the pod's traffic is redirected, by trying.
#[track_caller]
pub(crate) fn check_redirected(pod: &Pod) {
    let far = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 80);
    // The proxy's listener does not accept; the kernel's backlog answers.
    let stream = pod.netns.run(|| TcpStream::connect_timeout(&far, PATIENCE));
    let stream = stream.expect("enter").expect("redirected");
    assert_eq!(canonical(stream.peer_addr().expect("connected")), far);
}
