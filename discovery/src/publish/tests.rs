use culvert_model::{Action, Policy, Workload, WorkloadUid};
use culvert_runtime::Metrics;
use culvert_token::Bound;

use super::*;

fn publisher() -> ViewPublisher {
    let account = Account {
        namespace: "culvert-system".to_owned(),
        name: "culvert-node-proxy".to_owned(),
    };
    ViewPublisher::new([account].into(), DiscoveryMetrics::new(&Metrics::new()))
}

fn client(account: &str, bound_to: Option<&str>, says: &str) -> ClientNode<Caller> {
    let node = bound_to.map(|name| Bound {
        name: name.to_owned(),
        uid: "u".to_owned(),
    });
    ClientNode {
        id: format!("ztunnel~{says}"),
        metadata: [("NODE_NAME".to_owned(), says.to_owned())].into(),
        caller: Caller {
            namespace: "culvert-system".to_owned(),
            service_account: account.to_owned(),
            pod: None,
            node,
        },
    }
}

fn workload(namespace: &str, node: &str, policies: &[&str], egress: &[&str]) -> Workload {
    let identity = format!("spiffe://cluster.local/ns/{namespace}/sa/default");
    let uid = WorkloadUid::new(format!("Kubernetes//Pod/{namespace}/{node}"));
    let mut workload = Workload::new(uid, node, identity.parse().unwrap());
    let names = |list: &[&str]| list.iter().map(|name| name.parse().unwrap()).collect();
    workload.node = node.into();
    workload.authorization_policies = names(policies);
    workload.egress_policies = names(egress);
    workload
}

fn state() -> Compiled {
    let mut compiled = Compiled::default();
    let workloads = [
        workload("shop", "n1", &["shop/web", "shop/strict"], &["shop/out"]),
        workload("else", "n2", &["else/other"], &[]),
    ];
    for workload in workloads {
        compiled.workloads.insert(workload.uid.clone(), workload);
    }
    for (name, scope) in [
        ("shop/web", Scope::WorkloadSelector),
        ("shop/strict", Scope::WorkloadSelector),
        ("else/other", Scope::WorkloadSelector),
        ("shop/all", Scope::Namespace),
        ("else/all", Scope::Namespace),
        ("culvert-system/mesh", Scope::Global),
    ] {
        let name: PolicyName = name.parse().unwrap();
        let policy = Policy::new(name.clone(), scope, Action::Deny, Vec::new());
        compiled.policies.insert(name, policy);
    }
    let out: PolicyName = "shop/out".parse().unwrap();
    let policy = Policy::new(
        out.clone(),
        Scope::WorkloadSelector,
        Action::Deny,
        Vec::new(),
    );
    compiled.egress_policies.insert(out, policy);
    compiled
}

fn names(set: &ResourceSet) -> Vec<&str> {
    set.iter().map(|resource| resource.name()).collect()
}

#[test]
fn a_node_gets_all_addresses_and_only_its_policies() {
    let publisher = publisher();
    publisher.publish(&state());
    let view = |node| publisher.view(&client("culvert-node-proxy", Some(node), node));
    assert_eq!(view("n1").addresses.len(), 2);
    assert_eq!(
        names(&view("n1").authorizations),
        ["culvert-system/mesh", "shop/all", "shop/strict", "shop/web"]
    );
    assert_eq!(names(&view("n1").egress_authorizations), ["shop/out"]);
    assert_eq!(
        names(&view("n2").authorizations),
        ["culvert-system/mesh", "else/all", "else/other"]
    );
    assert_eq!(names(&view("n2").egress_authorizations), [""; 0]);
    assert_eq!(names(&view("new").authorizations), ["culvert-system/mesh"]);
    assert_eq!(view("new").addresses.len(), 2);
}

#[test]
fn what_does_not_change_stays_the_same_object() {
    let publisher = publisher();
    let mut changes = publisher.changes();
    assert_eq!(publisher.publish(&state()), 9);
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    let n2 = client("culvert-node-proxy", Some("n2"), "n2");
    let before = publisher.view(&n2);
    assert_eq!(publisher.publish(&state()), 0);
    assert!(!changes.has_changed().unwrap(), "nothing to compare");
    let mut compiled = state();
    let name: PolicyName = "shop/web".parse().unwrap();
    compiled.policies.get_mut(&name).unwrap().dry_run = true;
    assert_eq!(publisher.publish(&compiled), 1);
    assert!(changes.has_changed().unwrap());
    let after = publisher.view(&n2);
    assert!(Arc::ptr_eq(&before.addresses, &after.addresses));
    assert!(Arc::ptr_eq(&before.authorizations, &after.authorizations));
}

#[test]
fn only_the_proxy_of_a_node_is_admitted() {
    let publisher = publisher();
    let admits =
        |account, bound_to, says| publisher.admit(&client(account, bound_to, says)).is_ok();
    assert!(admits("culvert-node-proxy", Some("n1"), "n1"));
    assert!(!admits("default", Some("n1"), "n1"));
    assert!(!admits("culvert-node-proxy", None, "n1"));
    assert!(!admits("culvert-node-proxy", Some("n2"), "n1"));
    assert!(!admits("culvert-node-proxy", Some("n1"), ""));
    let mut other = client("culvert-node-proxy", Some("n1"), "n1");
    other
        .metadata
        .insert("NAMESPACE".to_owned(), "shop".to_owned());
    assert!(publisher.admit(&other).is_err());
}

#[test]
fn a_handover_between_processes_leaves_one_connected() {
    let publisher = publisher();
    let client = client("culvert-node-proxy", Some("n1"), "n1");
    publisher.connected(&client);
    publisher.connected(&client);
    publisher.disconnected(&client);
    assert_eq!(publisher.connected_nodes().len(), 1);
    publisher.disconnected(&client);
    assert_eq!(publisher.connected_nodes().len(), 0);
}
