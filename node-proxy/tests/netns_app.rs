//! The whole process on files in place of the control plane. Needs CAP_SYS_ADMIN and
//! CAP_NET_ADMIN: run as root.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime};

use culvert_identity::{Identity, TrustDomain};
use culvert_netns::{create_named, delete_named, loopback_up};
use culvert_node_proxy::app::{self, App};
use culvert_node_proxy::config::Config;
use culvert_tls::ca::{Authority, LeafRequest, Validity};
use culvert_tls::csr;

const STATE: &str = "
workloads:
- {name: web, namespace: shop, serviceAccount: web, workloadIps: [127.0.0.1], protocol: HBONE, services: {}}
services: []
policies: []
";

/// Files for one pod in the namespace of that name.
fn write_files(directory: &Path, netns: &str) {
    let domain: TrustDomain = "cluster.local".parse().expect("trust domain");
    let identity = Identity::new(&domain, "shop", "web").expect("identity");
    let validity = Validity::lasting(SystemTime::now(), Duration::from_secs(3600));
    let root = Authority::root(&domain, validity).expect("root");
    let certificates = directory.join("certificates");
    std::fs::create_dir(&certificates).expect("directory");
    let write = |name: &str, text: &str| {
        std::fs::write(directory.join(name), text).expect("write");
    };
    write("certificates/ca.crt", root.certificate_pem());
    // A key of its own: the library gives no workload's key away.
    let key = Authority::root(&domain, validity).expect("key").key_pem();
    write("certificates/shop.web.key", &key);
    let (_, request) = csr(&identity).expect("request");
    let public = culvert_tls::ca::public_key_from_csr(request.as_bytes()).expect("key");
    let leaf = root
        .sign(&public, &LeafRequest::new(&identity, validity))
        .expect("signs");
    write("certificates/shop.web.crt", &leaf.pem);
    write("state.yaml", STATE);
    write(
        "pods.yaml",
        &format!(
            "[{{uid: u1, name: web, namespace: shop, serviceAccount: web, \
             netns: /run/netns/{netns}}}]"
        ),
    );
}

async fn build(directory: &Path) -> anyhow::Result<App> {
    let path = |name: &str| directory.join(name).display().to_string();
    let environment = [
        ("CULVERT_STATIC_STATE", path("state.yaml")),
        ("CULVERT_STATIC_CERTIFICATES", path("certificates")),
        ("CULVERT_STATIC_PODS", path("pods.yaml")),
        ("CULVERT_ADMIN_ADDRESS", "127.0.0.1:0".to_owned()),
        ("CULVERT_METRICS_ADDRESS", "127.0.0.1:0".to_owned()),
        ("CULVERT_READY_ADDRESS", "127.0.0.1:0".to_owned()),
        ("CULVERT_ACCESS_LOG", "off".to_owned()),
        ("CULVERT_WORKERS", "2".to_owned()),
    ];
    let mut raw = Config::raw(environment);
    let config = Config::read(&mut raw);
    let effective = raw.effective();
    app::build(raw.finish(|| config)?, effective).await
}

fn request(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("timeout");
    let text = format!("{request} HTTP/1.0\r\nHost: x\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

#[tokio::test]
async fn a_key_that_is_not_the_certificates_stops_the_start() {
    let directory = tempfile::tempdir().expect("directory");
    write_files(directory.path(), "t-p-none");
    let error = build(directory.path())
        .await
        .expect_err("the key is another one");
    let text = format!("{error:#}");
    assert!(
        text.contains("shop.web.crt holds no usable certificate"),
        "{text}"
    );
    assert!(
        text.contains("does not belong to the private key"),
        "{text}"
    );
}

#[tokio::test]
async fn it_starts_shows_itself_and_ends_when_told() {
    let name = format!("t-p-app-{}", std::process::id());
    let netns = create_named(&name).expect("run as root");
    netns.run(loopback_up).expect("enter").expect("loopback");
    let directory = tempfile::tempdir().expect("directory");
    write_files(directory.path(), &name);
    for file in ["shop.web.crt", "shop.web.key"] {
        std::fs::remove_file(directory.path().join("certificates").join(file)).expect("remove");
    }
    let app = build(directory.path()).await.expect("starts");
    let addresses = app.addresses;
    let visitor = std::thread::spawn(move || {
        let ready = request(addresses.ready, "GET /healthz/ready");
        assert!(ready.starts_with("HTTP/1.0 200"), "{ready}");
        let dump = request(addresses.admin, "GET /config_dump");
        let body = dump.split_once("\r\n\r\n").expect("a body").1;
        let dump: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(dump["workloads"][0]["uid"], "Kubernetes//Pod/shop/web");
        assert_eq!(dump["pods"][0]["state"], "Up");
        assert_eq!(dump["connections"], serde_json::json!([]));
        assert_eq!(dump["config"]["CULVERT_WORKERS"], "2");
        let metrics = request(addresses.metrics, "GET /metrics");
        assert!(
            metrics.contains("culvert_build_info{component=\"node-proxy\""),
            "{metrics}"
        );
        for port in [15001, 15006, 15008, 15053] {
            let connect = || TcpStream::connect(("127.0.0.1", port));
            netns
                .run(connect)
                .expect("enter")
                .expect("a listener in the pod");
        }
        let quit = request(addresses.admin, "POST /quitquitquit");
        assert!(quit.starts_with("HTTP/1.0 200"), "{quit}");
    });
    tokio::time::timeout(Duration::from_secs(20), app.run())
        .await
        .expect("in time")
        .expect("in order");
    visitor.join().expect("the visitor saw what it should");
    delete_named(&name).expect("delete");
}
