//! What node proxies see: encoded once, shared between them, and cut down to
//! what a node needs. Every node gets all addresses, since its pods may connect
//! to anything; of the policies it gets those that can concern its own pods.

mod resources;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use culvert_model::{PolicyName, Scope};
use culvert_token::Caller;
use culvert_xds::{
    ClientView, Resource, ResourceSet, encode,
    server::{ClientNode, Publisher},
    session::Rejection,
};
use tokio::{sync::watch, time::Instant};
use tonic::Status;

use crate::{compile::Compiled, metrics::DiscoveryMetrics};
use resources::{Encoded, reuse};

/// A service account that may act for its node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The policies of one node.
#[derive(Clone, Debug, Default, PartialEq)]
struct NodeView {
    authorizations: Arc<ResourceSet>,
    egress_authorizations: Arc<ResourceSet>,
}

/// One published state of the mesh.
#[derive(Debug, Default)]
struct Published {
    addresses: Arc<ResourceSet>,
    nodes: HashMap<Arc<str>, NodeView>,
    /// What a node without pods gets.
    empty_node: NodeView,
    at: Option<Instant>,
}

/// A connected node proxy.
#[derive(Clone, Debug)]
struct Connected {
    node: String,
    since: Instant,
    /// Two while one process takes over from another.
    streams: usize,
}

/// Publishes compiled states to node proxies.
#[derive(Debug)]
pub struct ViewPublisher {
    accounts: BTreeSet<Account>,
    encoded: Mutex<Encoded>,
    published: arc_swap::ArcSwap<Published>,
    changes: watch::Sender<u64>,
    connected: Mutex<HashMap<String, Connected>>,
    rejections: Mutex<BTreeMap<(String, String), String>>,
    metrics: DiscoveryMetrics,
}

/// Rejections that are remembered for the admin page.
const REJECTIONS_MAX: usize = 1000;

impl ViewPublisher {
    /// Publishes to node proxies that run under one of `accounts`.
    pub fn new(accounts: BTreeSet<Account>, metrics: DiscoveryMetrics) -> Self {
        Self {
            accounts,
            encoded: Mutex::default(),
            published: arc_swap::ArcSwap::default(),
            changes: watch::Sender::new(0),
            connected: Mutex::default(),
            rejections: Mutex::default(),
            metrics,
        }
    }

    /// Replaces what is published. What did not change stays the same object,
    /// so that streams have nothing to compare. Gives the number of resources
    /// that changed.
    pub fn publish(&self, compiled: &Compiled) -> usize {
        let mut encoded = lock(&self.encoded);
        let before = self.published.load();
        let mut changed = 0;
        let Encoded {
            workloads,
            services,
            policies,
            egress_policies,
        } = &mut *encoded;
        changed += workloads.replace(&compiled.workloads, encode::workload_resource);
        changed += services.replace(&compiled.services, encode::service_resource);
        changed += policies.replace(&compiled.policies, encode::policy_resource);
        changed += egress_policies.replace(&compiled.egress_policies, encode::policy_resource);
        let addresses = workloads.resources().chain(services.resources());
        let next = Published {
            addresses: reuse(&before.addresses, addresses),
            nodes: node_views(compiled, &encoded, &before),
            empty_node: node_view(&Needs::default(), compiled, &encoded, &before.empty_node),
            at: Some(Instant::now()),
        };
        let same = changed == 0
            && Arc::ptr_eq(&next.addresses, &before.addresses)
            && next.nodes == before.nodes
            && before.at.is_some();
        if !same {
            self.published.store(Arc::new(next));
            self.changes.send_modify(|count| *count += 1);
        }
        changed
    }

    /// Node proxies that are connected: id and node.
    pub fn connected_nodes(&self) -> Vec<(String, String)> {
        let connected = lock(&self.connected);
        let mut nodes: Vec<_> = connected
            .iter()
            .map(|(id, connected)| (id.clone(), connected.node.clone()))
            .collect();
        nodes.sort_unstable();
        nodes
    }

    /// What node proxies refused and still refuse, by node and resource.
    pub fn rejections(&self) -> BTreeMap<(String, String), String> {
        lock(&self.rejections).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the pods of a node need.
#[derive(Debug, Default)]
struct Needs<'a> {
    namespaces: BTreeSet<&'a str>,
    policies: BTreeSet<&'a PolicyName>,
    egress_policies: BTreeSet<&'a PolicyName>,
}

fn node_views(
    compiled: &Compiled,
    encoded: &Encoded,
    before: &Published,
) -> HashMap<Arc<str>, NodeView> {
    let mut needs: HashMap<&Arc<str>, Needs<'_>> = HashMap::new();
    for workload in compiled.workloads.values() {
        if workload.node.is_empty() {
            continue;
        }
        let needs = needs.entry(&workload.node).or_default();
        needs.namespaces.insert(&workload.namespace);
        needs.policies.extend(&workload.authorization_policies);
        needs.egress_policies.extend(&workload.egress_policies);
    }
    let none = NodeView::default();
    let views = needs.into_iter().map(|(node, needs)| {
        let before = before.nodes.get(node).unwrap_or(&none);
        (node.clone(), node_view(&needs, compiled, encoded, before))
    });
    views.collect()
}

fn node_view(
    needs: &Needs<'_>,
    compiled: &Compiled,
    encoded: &Encoded,
    before: &NodeView,
) -> NodeView {
    let concerns = compiled
        .policies
        .values()
        .filter(|policy| match policy.scope {
            Scope::Global => true,
            Scope::Namespace => needs.namespaces.contains(&*policy.name.namespace),
            Scope::WorkloadSelector => needs.policies.contains(&policy.name),
        });
    let authorizations = concerns.filter_map(|policy| encoded.policies.get(&policy.name));
    let egress = needs.egress_policies.iter();
    let egress = egress.filter_map(|name| encoded.egress_policies.get(name));
    NodeView {
        authorizations: reuse(&before.authorizations, authorizations),
        egress_authorizations: reuse(&before.egress_authorizations, egress),
    }
}

impl Publisher for ViewPublisher {
    type Caller = Caller;

    /// A caller sees what concerns the node that its token is bound to, and
    /// nothing else: not what it says in its metadata.
    fn admit(&self, client: &ClientNode<Caller>) -> Result<(), Status> {
        let refused = |why: String| {
            self.metrics.refused("not_permitted");
            tracing::warn!(client = client.id, why, "node proxy refused");
            Err(Status::permission_denied(why))
        };
        let caller = &client.caller;
        let account = Account {
            namespace: caller.namespace.clone(),
            name: caller.service_account.clone(),
        };
        if !self.accounts.contains(&account) {
            let Account { namespace, name } = account;
            return refused(format!(
                "service account {namespace}/{name} is no node proxy's"
            ));
        }
        let Some(node) = &caller.node else {
            return refused("the token is not bound to a node".to_owned());
        };
        let said = client.node_name();
        if said != node.name {
            return refused(format!(
                "the token is bound to node {}, not {said:?}",
                node.name
            ));
        }
        if !client.namespace().is_empty() && client.namespace() != caller.namespace {
            let said = client.namespace();
            return refused(format!(
                "the token is of namespace {}, not {said:?}",
                caller.namespace
            ));
        }
        Ok(())
    }

    fn view(&self, client: &ClientNode<Caller>) -> ClientView {
        let published = self.published.load();
        let node = client
            .caller
            .node
            .as_ref()
            .map_or("", |node| node.name.as_str());
        let view = published.nodes.get(node).unwrap_or(&published.empty_node);
        ClientView {
            addresses: published.addresses.clone(),
            authorizations: view.authorizations.clone(),
            egress_authorizations: view.egress_authorizations.clone(),
        }
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn connected(&self, client: &ClientNode<Caller>) {
        let node = client.node_name().to_owned();
        tracing::info!(client = client.id, node, "node proxy connected");
        let mut all = lock(&self.connected);
        let connected = all.entry(client.id.clone()).or_insert_with(|| Connected {
            node,
            since: Instant::now(),
            streams: 0,
        });
        connected.streams += 1;
        connected.since = Instant::now();
        self.metrics.connected(all.len());
    }

    fn disconnected(&self, client: &ClientNode<Caller>) {
        let node = client.node_name();
        tracing::info!(client = client.id, node, "node proxy disconnected");
        let mut all = lock(&self.connected);
        if let Some(connected) = all.get_mut(&client.id) {
            connected.streams = connected.streams.saturating_sub(1);
            if connected.streams > 0 {
                return;
            }
        }
        all.remove(&client.id);
        self.metrics.connected(all.len());
        lock(&self.rejections).retain(|(other, _), _| other != node);
    }

    fn pushed(&self, client: &ClientNode<Caller>, type_url: &str, resources: usize) {
        self.metrics.pushed(type_url, resources);
        let since = lock(&self.connected)
            .get(&client.id)
            .map(|client| client.since);
        let at = self.published.load().at;
        // A first full answer is no measure of how long a change takes.
        if let (Some(since), Some(at)) = (since, at)
            && since < at
        {
            self.metrics.push_took(at.elapsed());
        }
    }

    fn rejected(&self, client: &ClientNode<Caller>, type_url: &str, rejection: &Rejection) {
        self.metrics.rejected(type_url);
        tracing::error!(
            node = client.node_name(),
            type_url,
            resource = rejection.resource,
            reason = rejection.reason,
            "node proxy refused a resource"
        );
        let mut rejections = lock(&self.rejections);
        if rejections.len() < REJECTIONS_MAX {
            let key = (client.node_name().to_owned(), rejection.resource.clone());
            rejections.insert(key, rejection.reason.clone());
        }
    }
}

/// A resource that several views hold.
type Shared = Arc<Resource>;

#[cfg(test)]
mod tests;
