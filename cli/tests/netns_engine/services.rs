//! Names, service addresses and what stands behind them.

use std::collections::BTreeSet;

use crate::harness::{Cluster, wait_for};

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: server
          image: testserver
          args: ["--udp", "9000", "--tcp", "9000"]
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {port: http}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports:
    - {name: http, port: 80, targetPort: http}
    - {name: echo, port: 9000, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: shop}
spec:
  selector: {app: nobody}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: shop}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: v1
kind: Pod
metadata: {name: shell, namespace: shop, labels: {app: shell}}
spec:
  containers: [{name: shell, image: any, command: [sleep, infinity]}]
"#;

const IMAGES: &str = "testserver: {command: [culvert, testserver]}\n";

const PEERS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: sql, port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  replicas: 2
  serviceName: peers
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: db, image: testserver}]
"#;

fn cluster(mesh: &'static str) -> Cluster {
    Cluster::up(
        mesh,
        "2",
        &[
            ("web.yaml", WEB),
            ("images.yaml", IMAGES),
            ("peers.yaml", PEERS),
        ],
    )
}

/// The servers that answer.
fn servers(cluster: &Cluster, url: &str, tries: usize) -> BTreeSet<String> {
    let answers = (0..tries).filter_map(|_| cluster.fetch("shell.shop", url));
    let server = |body: String| {
        body.lines()
            .find_map(|line| line.strip_prefix("server: ").map(str::to_owned))
    };
    answers.filter_map(server).collect()
}

#[test]
fn services_have_names_and_addresses() {
    let cluster = cluster("tsvc");
    for url in [
        "http://web/",
        "http://web.shop/",
        "http://web.shop.svc.cluster.local/",
        "http://alias/",
    ] {
        assert!(cluster.fetch("shell.shop", url).is_some(), "{url}");
    }
    assert_eq!(
        servers(&cluster, "http://web/", 20).len(),
        2,
        "both replicas answer"
    );
    // From the pod itself and back: the connection must not end at the pod alone.
    let web = cluster
        .objects("pods")
        .into_iter()
        .find(|pod| pod["metadata"]["labels"]["app"] == "web");
    let name = format!(
        "{}.shop",
        web.expect("a server")["metadata"]["name"]
            .as_str()
            .expect("name")
    );
    for _ in 0..10 {
        assert!(cluster.fetch(&name, "http://web/").is_some(), "hairpin");
    }
    let echo = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); \
                s.sendto(b'ping', ('web', 9000)); print(s.recv(9))";
    assert!(
        cluster
            .exec("shell.shop", &["python3", "-c", echo])
            .contains("ping"),
        "UDP"
    );
    let refused = cluster.run(&[
        "exec",
        "shell.shop",
        "--",
        "curl",
        "-sS",
        "-m",
        "5",
        "http://nobody/",
    ]);
    assert_eq!(
        refused.status.code(),
        Some(7),
        "a service without endpoints refuses"
    );
    let unknown = cluster.run(&[
        "exec",
        "shell.shop",
        "--",
        "curl",
        "-sS",
        "-m",
        "5",
        "http://nope/",
    ]);
    assert_eq!(
        unknown.status.code(),
        Some(6),
        "an unknown name is not found"
    );
}

#[test]
fn stateful_pods_keep_their_names() {
    let cluster = cluster("tsts");
    for index in 0..2 {
        let body = cluster
            .fetch("shell.shop", &format!("http://db-{index}.peers:8080/"))
            .expect("answer");
        assert!(body.contains(&format!("server: db-{index}\n")), "{body}");
    }
    let before = cluster.object("pod", "db-1.shop").expect("pod")["metadata"]["uid"].clone();
    cluster.succeeds(&["delete", "pod", "db-1.shop", "--grace-period", "1"]);
    wait_for("db-1 comes back under its name", || {
        cluster
            .object("pod", "db-1.shop")
            .is_some_and(|pod| pod["metadata"]["uid"] != before)
            && cluster
                .fetch("shell.shop", "http://db-1.peers:8080/")
                .is_some()
    });
}

#[test]
fn edits_take_effect() {
    let cluster = cluster("tedit");
    cluster.write("web.yaml", &WEB.replace("replicas: 2", "replicas: 3"));
    wait_for("a third replica", || {
        servers(&cluster, "http://web/", 20).len() == 3
    });
    cluster.succeeds(&["scale", "deployment/web.shop", "--replicas", "1"]);
    wait_for("one replica", || {
        let pods = cluster.objects("pods");
        pods.iter()
            .filter(|pod| pod["metadata"]["labels"]["app"] == "web")
            .count()
            == 1
    });
    cluster.write("web.yaml", "apiVersion: v1\nkind: [broken\n");
    wait_for("the fault is told", || {
        cluster
            .succeeds(&["status", "-o", "json"])
            .contains("web.yaml:2")
    });
    assert!(
        cluster.fetch("shell.shop", "http://web/").is_some(),
        "a broken file stops nothing"
    );
    cluster.remove("peers.yaml");
    wait_for("the StatefulSet goes with its file", || {
        cluster
            .objects("pods")
            .iter()
            .all(|pod| pod["metadata"]["labels"]["app"] != "db")
    });
}
