use std::fs;

use serde_json::json;

use super::*;

fn load(text: &str) -> Loaded {
    parse(std::path::Path::new("x.yaml"), text.as_bytes())
}

/// All faults of `text`, as people see them.
fn faults(text: &str) -> Vec<String> {
    load(text).faults.iter().map(ToString::to_string).collect()
}

fn check(text: &str, expect: &[&str]) {
    assert_eq!(faults(text), expect, "{text}");
}

const DEPLOYMENT: &str = "\
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
      - name: web
        image: nginx
        ports: [{name: http, containerPort: 80}]
        resources: {requests: {cpu: 1, memory: 1Gi}}
";

#[test]
fn good_objects_load_without_a_word() {
    let loaded = load(&format!(
        "{DEPLOYMENT}---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{ports: [{{port: 80}}]}}\n"
    ));
    assert_eq!(loaded.faults, []);
    assert_eq!(
        loaded.objects[0].reference().to_string(),
        "Deployment shop/web"
    );
    assert_eq!(
        loaded.objects[1].reference().to_string(),
        "Service default/web"
    );
    assert_eq!(loaded.objects[1].source.to_string(), "x.yaml:16");
    assert_eq!(loaded.objects[0].to_json()["kind"], json!("Deployment"));
    assert_eq!(
        loaded.objects[0].to_json()["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
            ["cpu"],
        json!("1")
    );
}

#[test]
fn faults_name_line_object_field_and_expectation() {
    check(
        &DEPLOYMENT.replace("replicas: 2", "replicas: three"),
        &["x.yaml:5: Deployment shop/web: spec.replicas: expected a whole number, found \"three\""],
    );
    check(
        &DEPLOYMENT.replace("app: web}}\n  template", "app: wob}}\n  template"),
        &["x.yaml:8: Deployment shop/web: spec.template.metadata.labels: must match spec.selector"],
    );
    check(
        &DEPLOYMENT.replace("containerPort: 80", "containerPort: 80000"),
        &[
            "x.yaml:13: Deployment shop/web: spec.template.spec.containers[0].ports[0].containerPort: expected a port from 1 to 65535, found 80000",
        ],
    );
    check(
        &DEPLOYMENT.replace("apps/v1", "v1"),
        &["x.yaml:1: Deployment shop/web: apiVersion: Deployment belongs to apps/v1, found v1"],
    );
    check(
        &DEPLOYMENT.replace("apps/v1", "apps/v1beta1"),
        &["x.yaml:1: Deployment shop/web: apiVersion: expected apps/v1, found apps/v1beta1"],
    );
    check(
        &DEPLOYMENT.replace("name: web, namespace", "name: Web_1, namespace"),
        &[
            "x.yaml:3: Deployment shop/Web_1: metadata.name: expected a name of lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit, at most 253 long, found \"Web_1\"",
        ],
    );
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: 1\n",
        &["x.yaml:5: ConfigMap default/c: data.a: expected text, found 1: write it in quotes"],
    );
    check(
        "- 1\n",
        &["x.yaml:1: expected a Kubernetes object with apiVersion and kind"],
    );
    check(
        "a: 1\n",
        &["x.yaml:1: apiVersion: required: a Kubernetes object has apiVersion and kind"],
    );
}

#[test]
fn misspelt_fields_are_found() {
    check(
        &DEPLOYMENT.replace("image: nginx", "image: nginx\n        comand: [x]"),
        &[
            "x.yaml:13: Deployment shop/web: spec.template.spec.containers[0].comand: Deployment has no such field here; did you mean command?",
        ],
    );
    let loaded = load(&DEPLOYMENT.replace("image: nginx", "image: nginx\n        comand: [x]"));
    assert_eq!(loaded.objects.len(), 1, "a warning only");

    let policy = "apiVersion: policy.culvert.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\nspec:\n  rules:\n  - from:\n    - source:\n        principal: ['*']\n";
    check(
        policy,
        &[
            "x.yaml:8: AuthorizationPolicy shop/p: spec.rules[0].from[0].source.principal: unknown field; did you mean principals?",
        ],
    );
    assert!(load(policy).objects.is_empty(), "an error for our kinds");
    check(
        &policy
            .replace("principal: ['*']", "namespaces: [a]")
            .replace("metadata: {", "metadata: {lables: {}, "),
        &[
            "x.yaml:3: AuthorizationPolicy shop/p: metadata.lables: AuthorizationPolicy has no such field here",
        ],
    );
}

#[test]
fn values_of_policies_are_doubted_but_loaded() {
    let text = "apiVersion: policy.culvert.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: p}\nspec:\n  action: DENY\n  rules:\n  - from:\n    - source:\n        ipBlocks: [10.0.0.0/33]\n    when:\n    - key: source.pi\n      values: ['1']\n";
    check(
        text,
        &[
            "x.yaml:9: AuthorizationPolicy default/p: spec.rules[0].from[0].source.ipBlocks[0]: expected an address such as 10.0.0.1 or a range such as 10.0.0.0/8, found \"10.0.0.0/33\"",
            "x.yaml:11: AuthorizationPolicy default/p: spec.rules[0].when[0].key: unknown attribute \"source.pi\"; did you mean source.ip?",
        ],
    );
    assert_eq!(load(text).objects.len(), 1);
}

#[test]
fn broken_document_leaves_its_neighbours_alone() {
    let text = format!(
        "{DEPLOYMENT}---\napiVersion: v1\nkind: Service\nmetadata:\n  name: api\n  namespace: shop\nspec:\n  ports: [\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{{{ .Release.Name }}}}-c\n---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n"
    );
    let loaded = load(&text);
    let names: Vec<_> = loaded
        .objects
        .iter()
        .map(|o| o.reference().to_string())
        .collect();
    assert_eq!(names, ["Deployment shop/web", "Namespace shop"]);
    let found = faults(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("Service shop/api: document is not YAML"),
        "{found:?}"
    );
    assert!(
        found[1].contains("render it first (helm template)"),
        "{found:?}"
    );
    assert!(found[1].starts_with("x.yaml:27: "), "{found:?}");
}

#[test]
fn lists_are_expanded() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: a}\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: B}\n";
    let loaded = load(text);
    assert_eq!(loaded.objects.len(), 1);
    assert!(faults(text)[0].starts_with("x.yaml:9: Namespace B: metadata.name: "));
}

#[test]
fn unknown_kinds_are_listed() {
    let loaded = load(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r, namespace: shop}\n---\napiVersion: v1\nkind: Servce\nmetadata: {name: r}\n",
    );
    assert_eq!(loaded.unknown[0].object.to_string(), "HTTPRoute shop/r");
    assert_eq!(loaded.faults.len(), 1);
    assert_eq!(
        loaded.faults[0].message,
        "unknown kind; did you mean Service?"
    );
    assert!(!loaded.faults[0].is_error());
}

#[test]
fn duplicates_are_reported_across_files() {
    let directory = tempfile::tempdir().unwrap();
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
    fs::create_dir(directory.path().join("sub")).unwrap();
    fs::write(directory.path().join("a.yaml"), namespace).unwrap();
    fs::write(directory.path().join("sub/b.yml"), namespace).unwrap();
    fs::write(
        directory.path().join("c.json"),
        "{\"apiVersion\": \"v1\",\n\"kind\": \"Namespace\",\n\"metadata\": {\"name\": \"C\"}}",
    )
    .unwrap();
    fs::write(directory.path().join(".hidden.yaml"), "{").unwrap();
    fs::write(directory.path().join("readme.md"), "{").unwrap();
    let loaded = load_dir(directory.path());
    assert_eq!(loaded.objects.len(), 1);
    let found: Vec<_> = loaded.faults.iter().map(ToString::to_string).collect();
    assert!(
        found[0].contains("c.json:3: Namespace C: metadata.name"),
        "{found:?}"
    );
    assert!(found[1].contains("sub/b.yml:1: Namespace a"), "{found:?}");
    assert!(found[1].contains("a.yaml:1, which is kept"), "{found:?}");
}

#[test]
fn limits_hold() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.yaml");
    fs::write(&file, "a: 1\n---\na: 1\n---\na: 1\n").unwrap();
    let limits = Limits {
        documents_max: 2,
        ..Limits::default()
    };
    let loaded = load_file_within(&file, &limits);
    assert!(
        loaded.faults[0].message.contains("3 documents"),
        "{:?}",
        loaded.faults
    );
    let limits = Limits {
        file_bytes_max: 2,
        ..Limits::default()
    };
    let loaded = load_file_within(&file, &limits);
    assert_eq!(loaded.faults[0].reason, FaultReason::Limit);
    let limits = Limits {
        files_max: 0,
        ..Limits::default()
    };
    assert_eq!(
        load_dir_within(directory.path(), &limits).faults[0].reason,
        FaultReason::Limit
    );
    assert_eq!(
        load_dir(&directory.path().join("none")).faults[0].reason,
        FaultReason::Io
    );
}

#[test]
fn alias_bombs_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        text += &format!(
            "a{level}: &a{level} [{}]\n",
            [before.as_str(); 10].join(", ")
        );
    }
    assert!(load(&text).errors().count() > 0);
}

#[test]
fn workloads_and_services_are_checked() {
    check(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n",
        &["x.yaml:4: Pod default/p: spec.containers: required: at least one container"],
    );
    check(
        "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec:\n  ports:\n  - port: 80\n  - port: 81\n    name: a\n",
        &[
            "x.yaml:6: Service default/s: spec.ports[0].name: required when a Service has several ports",
        ],
    );
    check(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  template:\n    spec:\n      containers: [{name: c, image: i}]\n",
        &[
            "x.yaml:7: Job default/j: spec.template.spec.restartPolicy: required: one of Never, OnFailure",
        ],
    );
    check(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: n}\nspec:\n  podSelector: {}\n  ingress:\n  - from: [{}]\n    ports: [{port: 90, endPort: 80}]\n",
        &[
            "x.yaml:7: NetworkPolicy default/n: spec.ingress[0].from[0]: expected podSelector, namespaceSelector or ipBlock",
            "x.yaml:8: NetworkPolicy default/n: spec.ingress[0].ports[0].endPort: expected 90 or more, found 80",
        ],
    );
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let _ = parse_bytes(&bytes);
    }

    #[test]
    fn any_yaml_like_text_is_survived(text in "(apiVersion: v1\nkind: (Pod|Service|List)\n)?[-a-z0-9:{}\\[\\]&*!|>'\"#%@,. \n]{0,120}") {
        let _ = parse_bytes(text.as_bytes());
    }
}
