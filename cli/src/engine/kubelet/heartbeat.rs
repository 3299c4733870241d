//! Nodes say that they live: the Ready condition, and a Lease every ten seconds.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::engine::object::{condition, set, timestamp};
use crate::engine::scheduler::node_key;
use crate::engine::world::{Action, Store};

/// How often a node renews its lease: Kubernetes' own interval.
const RENEW: Duration = Duration::from_secs(10);
/// How long a lease holds.
const LEASE_SECONDS: u64 = 40;

/// Marks a node ready.
pub(crate) fn mark_ready(store: &Store, node: &str) {
    store.modify(&node_key(node), |object| {
        if condition(object, "Ready") != Some("True") {
            set(
                object,
                &["status", "conditions"],
                json!([{
                    "type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastTransitionTime": timestamp(SystemTime::now()),
                }]),
            );
        }
    });
}

/// Renews the leases of all nodes for good.
pub(crate) async fn run(store: Store, nodes: Vec<String>) {
    let started: BTreeMap<String, String> = nodes
        .iter()
        .map(|node| (node.clone(), timestamp(SystemTime::now())))
        .collect();
    loop {
        let leases = started
            .iter()
            .map(|(node, acquired)| Action::Put(lease(&store, node, acquired)));
        store.apply(leases.collect::<Vec<_>>());
        tokio::time::sleep(RENEW).await;
    }
}

fn lease(store: &Store, node: &str, acquired: &str) -> Value {
    let owner = store
        .object(&node_key(node))
        .map(|object| object["metadata"]["uid"].clone());
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": node, "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}],
        },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": acquired,
            "renewTime": timestamp(SystemTime::now()),
        },
    })
}
