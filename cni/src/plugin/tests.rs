use std::path::Path;

use super::*;

fn environment(command: &str) -> Environment {
    Environment {
        command: command.to_owned(),
        container: "c1".to_owned(),
        netns: "/run/netns/none".to_owned(),
        interface: "eth0".to_owned(),
        args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u1".to_owned(),
    }
}

fn input(run_dir: &Path) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "pods",
        "type": "culvert-cni",
        "runDir": run_dir,
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/none"}],
            "ips": [
                {"address": "10.244.1.2/32", "gateway": "169.254.1.1", "interface": 0},
                {"address": "fd00::2/128"},
                {"address": "nonsense"},
            ],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

/// Exit code and what was printed.
fn call(environment: &Environment, input: &Value) -> (u8, Value) {
    let mut output = Vec::new();
    let code = run(environment, input.to_string().as_bytes(), &mut output);
    let value = serde_json::from_slice(&output).unwrap_or(Value::Null);
    (code, value)
}

#[test]
fn version_needs_nothing() {
    let mut output = Vec::new();
    let code = run(&environment("VERSION"), b"", &mut output);
    let value: Value = serde_json::from_slice(&output).expect("JSON");
    assert_eq!(code, 0);
    assert_eq!(
        value["supportedVersions"],
        json!(["0.4.0", "1.0.0", "1.1.0"])
    );
    let (_, value) = call(&environment("VERSION"), &input(Path::new("/run")));
    assert_eq!(value["cniVersion"], "1.1.0");
}

#[test]
fn errors_have_the_numbers_of_the_specification() {
    let run_dir = tempfile::tempdir().expect("directory");
    let good = input(run_dir.path());
    let check = |environment: &Environment, input: &Value, number: u32| {
        let (code, value) = call(environment, input);
        assert_eq!((code, &value["code"]), (1, &json!(number)), "{value}");
        assert!(
            value["msg"].as_str().is_some_and(|text| !text.is_empty()),
            "{value}"
        );
        assert!(value["cniVersion"].is_string(), "{value}");
    };
    check(&environment("REMOVE"), &good, INVALID_ENVIRONMENT);
    check(&environment("ADD"), &json!("text"), UNDECODABLE);
    let with = |field: &str, value: Value| {
        let mut changed = good.clone();
        changed[field] = value;
        changed
    };
    check(
        &environment("ADD"),
        &with("cniVersion", json!("0.2.0")),
        INCOMPATIBLE_VERSION,
    );
    check(
        &environment("ADD"),
        &with("runDir", json!("relative")),
        INVALID_CONFIG,
    );
    check(
        &environment("ADD"),
        &with("prevResult", json!(1)),
        INVALID_CONFIG,
    );
    check(
        &environment("ADD"),
        &with("prevResult", Value::Null),
        INVALID_CONFIG,
    );
    check(
        &environment("CHECK"),
        &with("prevResult", Value::Null),
        INVALID_CONFIG,
    );
    for bad in ["", "../x", "-x", "a/b"] {
        let changed = Environment {
            container: bad.to_owned(),
            ..environment("ADD")
        };
        check(&changed, &good, INVALID_ENVIRONMENT);
    }
    // No agent.
    check(&environment("ADD"), &good, TRY_AGAIN);
    check(&environment("CHECK"), &good, TRY_AGAIN);
    check(&environment("STATUS"), &good, NOT_AVAILABLE);
}

#[test]
fn del_and_gc_always_succeed() {
    let run_dir = tempfile::tempdir().expect("directory");
    let mut with_list = input(run_dir.path());
    with_list["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
    for input in [input(run_dir.path()), with_list, json!({}), json!("broken")] {
        for command in ["DEL", "GC"] {
            assert_eq!(call(&environment(command), &input), (0, Value::Null));
        }
    }
    let nameless = Environment {
        container: String::new(),
        ..environment("DEL")
    };
    assert_eq!(call(&nameless, &input(run_dir.path())), (0, Value::Null));
}

#[test]
fn without_an_agent_only_exempt_namespaces_and_host_pods_start() {
    let run_dir = tempfile::tempdir().expect("directory");
    let input = input(run_dir.path());
    let passes = |environment: &Environment| {
        let (code, value) = call(environment, &input);
        assert!(
            code == 1 || value == input["prevResult"],
            "passed on as it is: {value}"
        );
        code == 0
    };
    assert!(!passes(&environment("ADD")));
    let list = run_dir.path().join(EXEMPT_FILE);
    std::fs::write(&list, "# a comment\nkube-system\nshopping\n").expect("written");
    assert!(!passes(&environment("ADD")));
    std::fs::write(&list, "kube-system\nshop\n").expect("written");
    assert!(passes(&environment("ADD")));
    std::fs::remove_file(&list).expect("removed");
    let host = Environment {
        netns: "/proc/self/ns/net".to_owned(),
        ..environment("ADD")
    };
    assert!(passes(&host));
    let no_pod = Environment {
        args: String::new(),
        ..environment("ADD")
    };
    assert!(passes(&no_pod));
}

#[test]
fn addresses_of_the_previous_result() {
    let text = input(Path::new("/run/x")).to_string();
    let config = NetworkConfig::parse(text.as_bytes()).expect("good");
    let found: Vec<String> = config
        .addresses()
        .iter()
        .map(|ip| ip.address.to_string())
        .collect();
    assert_eq!(found, ["10.244.1.2", "fd00::2"]);
}
