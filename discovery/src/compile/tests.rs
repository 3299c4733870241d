mod authorization;
mod network_policy;
mod peer_authentication;
mod workloads;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use culvert_identity::Identity;
use culvert_kubeyaml::parse_bytes;
use culvert_model::{Change, PeerConnection, Snapshot, Verdict, authorize, authorize_egress};

use super::*;
use crate::watch::Event;

fn settings() -> Settings {
    Settings {
        trust_domain: "cluster.local".parse().unwrap(),
        cluster_id: "Kubernetes".into(),
        cluster_domain: "cluster.local".into(),
        root_namespace: "culvert-system".into(),
    }
}

/// 2026-01-01T00:01:00Z
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_660)
}

/// What documents of YAML compile to. Documents with an error are skipped, as
/// a source would do it.
fn compiled(yaml: &str) -> Compiled {
    let mut world = World::default();
    for object in parse_bytes(yaml.as_bytes()).objects {
        world.apply(&Event::Upsert(Arc::new(object)), now());
    }
    compile(&world, &settings(), now())
}

/// A ready pod.
fn pod(name: &str, namespace: &str, ip: &str, labels: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}, annotations: {{culvert.dev/enrolled: 'true'}}}}\nspec: {{nodeName: n1, serviceAccountName: {name}, containers: [{{name: c, image: i, ports: [{{name: http, containerPort: 8080}}]}}]}}\nstatus: {{podIPs: [{{ip: {ip}}}], conditions: [{{type: Ready, status: 'True'}}]}}\n"
    )
}

fn policy(kind: &str, name: &str, namespace: &str, spec: &str) -> String {
    let api_version = match kind {
        "NetworkPolicy" => "networking.k8s.io/v1",
        _ => "policy.culvert.dev/v1alpha1",
    };
    format!(
        "---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

fn snapshot(compiled: &Compiled) -> Snapshot {
    let workloads = compiled.workloads.values().cloned().map(Change::Workload);
    let services = compiled.services.values().cloned().map(Change::Service);
    let policies = compiled.policies.values().cloned().map(Change::Policy);
    let egress = compiled
        .egress_policies
        .values()
        .cloned()
        .map(Change::EgressPolicy);
    Snapshot::empty().apply(workloads.chain(services).chain(policies).chain(egress))
}

/// Who connects.
#[derive(Clone, Copy)]
enum From<'a> {
    /// This pod, through a tunnel.
    Tunnel(&'a str),
    /// This address, in plaintext.
    Plain(&'a str),
}

/// The verdict at the destination pod.
fn ingress(snapshot: &Snapshot, from: From<'_>, to: &str, port: u16) -> Verdict {
    let (From::Tunnel(ip) | From::Plain(ip)) = from;
    let source_ip: IpAddr = ip.parse().unwrap();
    let source = snapshot.workload_at(source_ip).cloned();
    let identity: Option<Identity> = match from {
        From::Tunnel(_) => source.as_ref().map(|workload| workload.identity.clone()),
        From::Plain(_) => None,
    };
    let ip: IpAddr = to.parse().unwrap();
    let destination = snapshot.workload_at(ip).cloned().unwrap();
    let connection = PeerConnection {
        source_ip,
        source_identity: identity.as_ref(),
        source_workload: source.as_deref(),
        destination: SocketAddr::new(ip, port),
    };
    authorize(snapshot, &destination, &connection)
}

/// The verdict at the source pod.
fn egress(snapshot: &Snapshot, from: &str, to: &str, port: u16) -> Verdict {
    let source = snapshot
        .workload_at(from.parse().unwrap())
        .cloned()
        .unwrap();
    let ip: IpAddr = to.parse().unwrap();
    let destination = snapshot.workload_at(ip).cloned();
    authorize_egress(
        snapshot,
        &source,
        SocketAddr::new(ip, port),
        destination.as_deref(),
    )
}

fn status<'a>(compiled: &'a Compiled, kind: Kind, namespace: &str, name: &str) -> &'a ObjectStatus {
    &compiled.statuses[&key(kind, &Name::new(namespace, name))]
}

/// `type=reason` of every condition.
fn reasons(compiled: &Compiled, kind: Kind, namespace: &str, name: &str) -> Vec<String> {
    let conditions = status(compiled, kind, namespace, name).conditions();
    conditions
        .map(|c| {
            format!(
                "{}={}",
                c.kind,
                if c.holds {
                    c.reason.to_owned()
                } else {
                    format!("!{}", c.reason)
                }
            )
        })
        .collect()
}
