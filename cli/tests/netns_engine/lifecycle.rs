//! What a kubelet does: init containers, files, probes, restarts, ends.

use crate::harness::{Cluster, wait_for};

const POD: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {greeting: hello, file.txt: "from a file\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: shop}
stringData: {key: secret}
---
apiVersion: v1
kind: Pod
metadata: {name: whole, namespace: shop, labels: {app: whole}}
spec:
  hostname: special
  terminationGracePeriodSeconds: 5
  initContainers:
    - name: first
      image: any
      command: [sh, -c, "echo prepared > /shared-of-test/note"]
      volumeMounts: [{name: shared, mountPath: /shared-of-test}]
  containers:
    - name: main
      image: any
      command: [sh, -c]
      args:
        - |
          trap 'echo ending; exit 3' TERM
          echo "$(GREETING) from $NAME at $ADDRESS with $KEY"
          while true; do sleep 0.1; done
      workingDir: /tmp
      env:
        - {name: GREETING, valueFrom: {configMapKeyRef: {name: settings, key: greeting}}}
        - {name: KEY, valueFrom: {secretKeyRef: {name: keys, key: key}}}
        - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
      volumeMounts:
        - {name: shared, mountPath: /shared-of-test}
        - {name: config, mountPath: /config-of-test/deep}
    - name: side
      image: any
      command: [sleep, infinity]
      volumeMounts: [{name: shared, mountPath: /shared-of-test}]
  volumes:
    - {name: shared, emptyDir: {}}
    - {name: config, configMap: {name: settings}}
"#;

#[test]
fn a_pod_has_its_files_environment_and_name() {
    let cluster = Cluster::up("tpod", "1", &[("pod.yaml", POD)]);
    let exec = |command: &[&str]| cluster.exec("whole.shop", command).trim().to_owned();
    assert_eq!(exec(&["cat", "/shared-of-test/note"]), "prepared");
    assert_eq!(
        exec(&["cat", "/config-of-test/deep/file.txt"]),
        "from a file"
    );
    assert_eq!(exec(&["hostname"]), "special");
    assert_eq!(exec(&["pwd"]), "/tmp");
    assert!(exec(&["cat", "/etc/hosts"]).contains("special"));
    let side = cluster.succeeds(&[
        "exec",
        "whole.shop",
        "-c",
        "side",
        "--",
        "cat",
        "/shared-of-test/note",
    ]);
    assert_eq!(side.trim(), "prepared");
    let code = cluster
        .run(&["exec", "whole.shop", "--", "sh", "-c", "exit 42"])
        .status
        .code();
    assert_eq!(code, Some(42), "the exit code is passed on");
    wait_for("the first line of the log", || {
        cluster
            .run(&["logs", "whole.shop"])
            .stdout
            .starts_with(b"hello from whole at 10.244.1.")
    });
    assert!(!std::path::Path::new("/etc/special-of-test").exists());
    cluster.succeeds(&["down"]);
    for made in ["/shared-of-test", "/config-of-test"] {
        assert!(
            !std::path::Path::new(made).exists(),
            "{made} was made for the pod and goes with it"
        );
    }
}

const PROBED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: sick, namespace: shop, labels: {app: sick}}
spec:
  containers:
    - name: main
      image: any
      command: [sh, -c, "touch /tmp/tprobe-alive; exec culvert testserver"]
      readinessProbe: {httpGet: {port: 8080, path: /}, periodSeconds: 1}
      livenessProbe: {exec: {command: [test, -e, /tmp/tprobe-alive]}, initialDelaySeconds: 1, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: never, namespace: shop, labels: {app: never}}
spec:
  containers:
    - name: main
      image: any
      command: [sleep, infinity]
      readinessProbe: {tcpSocket: {port: 1}, periodSeconds: 1}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: shop}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: work, image: any, command: ["true"]}]
"#;

#[test]
fn probes_decide_and_jobs_end() {
    let cluster = Cluster::new("tprobe", &[("pods.yaml", PROBED)]);
    let up = cluster.run(&["up", &cluster.path(), "--no-mesh", "--timeout", "5s"]);
    assert!(!up.status.success(), "one pod never gets ready");
    assert!(
        String::from_utf8_lossy(&up.stderr).contains("Pod shop/never"),
        "{up:?}"
    );
    let ready = |name: &str| {
        let pod = cluster.object("pod", &format!("{name}.shop")).expect("pod");
        pod["status"]["containerStatuses"][0]["ready"] == true
    };
    assert!(ready("sick"));
    assert!(!ready("never"));
    wait_for("the Job's end", || {
        cluster
            .object("job", "once.shop")
            .is_some_and(|job| job["status"]["succeeded"] == 1)
    });
    let restarts = || {
        let pod = cluster.object("pod", "sick.shop").expect("pod");
        pod["status"]["containerStatuses"][0]["restartCount"]
            .as_u64()
            .expect("a number")
    };
    // On a busy machine the first probe may come before the program's first step.
    let before = restarts();
    std::fs::remove_file("/tmp/tprobe-alive").expect("the pod made it");
    wait_for("a restart after the liveness probe", || {
        restarts() > before && ready("sick")
    });
    std::fs::remove_file("/tmp/tprobe-alive").expect("made again");
}

#[test]
fn a_pod_may_finish_before_it_goes() {
    let cluster = Cluster::up("tend", "1", &[("pod.yaml", POD)]);
    let log = std::fs::read_dir(cluster.state().join("pods"))
        .expect("pods")
        .next()
        .expect("one pod");
    let log = std::fs::File::open(log.expect("entry").path().join("logs/main.log")).expect("log");
    cluster.succeeds(&["delete", "pod", "whole.shop"]);
    assert!(cluster.object("pod", "whole.shop").is_none());
    // The file is gone, but still open here.
    let mut text = String::new();
    std::io::Read::read_to_string(&mut &log, &mut text).expect("read");
    assert!(text.contains("\nending\n"), "{text}");
}

#[test]
fn a_broken_object_beside_good_ones_is_told_with_its_line() {
    let good = "apiVersion: v1\nkind: Pod\nmetadata: {name: good, namespace: shop}\n\
                spec: {containers: [{name: c, image: any, command: [sleep, infinity]}]}\n";
    let bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad, namespace: shop}\n\
               spec:\n  containers:\n  - {name: c, image: unheard:1}\n---\n\
               apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: shop}\nspec:\n  ports: [{port: high}]\n";
    let cluster = Cluster::new("tbroken", &[("good.yaml", good), ("bad.yaml", bad)]);
    let up = cluster.run(&["up", &cluster.path(), "--no-mesh"]);
    let said = String::from_utf8_lossy(&up.stderr).into_owned();
    assert!(up.status.success(), "the good one runs: {said}");
    assert!(
        said.contains("bad.yaml:12") && said.contains("port"),
        "{said}"
    );
    assert!(
        said.contains("spec.containers[0].command") && said.contains("--image unheard:1=COMMAND"),
        "{said}"
    );
    // Mended by a line in images.yaml, while it runs.
    cluster.write("images.yaml", "unheard: {command: [sleep, infinity]}\n");
    wait_for("the mended pod", || {
        cluster
            .object("pod", "bad.shop")
            .is_some_and(|pod| pod["status"]["phase"] == "Running")
    });
    let nothing = Cluster::new("tnothing", &[("bad.yaml", "kind: Pod\n")]);
    assert!(
        !nothing
            .run(&["up", &nothing.path(), "--no-mesh"])
            .status
            .success()
    );
    assert!(!nothing.state().exists(), "nothing was started");
}

#[test]
fn an_edited_config_map_reaches_the_running_pod() {
    let cluster = Cluster::up("tconf", "1", &[("pod.yaml", POD)]);
    let before = cluster.object("pod", "whole.shop").expect("pod")["metadata"]["uid"].clone();
    cluster.write("pod.yaml", &POD.replace("from a file", "from an edit"));
    wait_for("the new content", || {
        cluster
            .exec("whole.shop", &["cat", "/config-of-test/deep/file.txt"])
            .trim()
            == "from an edit"
    });
    let after = cluster.object("pod", "whole.shop").expect("pod")["metadata"]["uid"].clone();
    assert_eq!(before, after, "the pod runs on");
}
