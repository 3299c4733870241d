//! Sets of pods that policies speak of. A workload carries the names of the
//! sets that it is in, so that a policy does not change when a pod comes or goes.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    hash::{DefaultHasher, Hasher},
    sync::Arc,
};

use culvert_kubeyaml::selector::selects;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::pods::LivePods;
use crate::index::{Name, PeerSelector, Pod, World};

/// A longer name is cut and ends with a hash: every member carries it.
const NAME_BYTES_MAX: usize = 120;

/// Which pods are in a set.
#[derive(Clone, Debug)]
struct Definition {
    /// The one namespace, unless `peers` chooses namespaces.
    namespace: Option<Arc<str>>,
    peers: PeerSelector,
    /// Only pods whose port of that name has that number.
    port: Option<(String, u16)>,
}

/// The sets that policies refer to.
#[derive(Debug, Default)]
pub(super) struct PeerSets {
    sets: BTreeMap<Arc<str>, Definition>,
}

impl PeerSets {
    /// The name of the set of these peers, as a policy of `namespace` sees them.
    pub(super) fn name(
        &mut self,
        namespace: &Arc<str>,
        peers: &PeerSelector,
        port: Option<(&str, u16)>,
    ) -> Arc<str> {
        let definition = Definition {
            namespace: peers.namespaces.is_none().then(|| namespace.clone()),
            peers: peers.clone(),
            port: port.map(|(name, number)| (name.to_owned(), number)),
        };
        let name: Arc<str> = definition.name().into();
        self.sets.entry(name.clone()).or_insert(definition);
        name
    }

    /// The sets of each pod that is in any.
    pub(super) fn members<'a>(
        &self,
        world: &World,
        pods: &LivePods<'a>,
    ) -> HashMap<&'a Name, Vec<Arc<str>>> {
        let mut members: HashMap<_, Vec<_>> = HashMap::new();
        for (set, definition) in &self.sets {
            for (namespace, pods) in pods.namespaces() {
                if !definition.has_namespace(namespace, world) {
                    continue;
                }
                let chosen = pods.iter().filter(|(_, pod)| definition.has_pod(pod));
                for (name, _) in chosen {
                    members.entry(*name).or_default().push(set.clone());
                }
            }
        }
        members
    }

    /// The numbers that a port name stands for among these peers.
    pub(super) fn port_numbers(
        namespace: &Arc<str>,
        peers: &PeerSelector,
        port: &str,
        world: &World,
        pods: &LivePods<'_>,
    ) -> Vec<u16> {
        let definition = Definition {
            namespace: peers.namespaces.is_none().then(|| namespace.clone()),
            peers: peers.clone(),
            port: None,
        };
        let namespaces = pods
            .namespaces()
            .filter(|(ns, _)| definition.has_namespace(ns, world));
        let chosen = namespaces
            .flat_map(|(_, pods)| pods)
            .filter(|(_, pod)| definition.has_pod(pod));
        let mut numbers: Vec<_> = chosen.filter_map(|(_, pod)| pod.port(port)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

impl Definition {
    fn has_namespace(&self, namespace: &Arc<str>, world: &World) -> bool {
        match (&self.namespace, &self.peers.namespaces) {
            (Some(own), _) => own == namespace,
            (None, Some(selector)) => selects(selector, &world.namespace_labels(namespace)),
            (None, None) => false,
        }
    }

    /// A pod in its node's network cannot be told from the node.
    fn has_pod(&self, pod: &Pod) -> bool {
        let port = self.port.as_ref();
        !pod.host_network
            && self
                .peers
                .pods
                .as_ref()
                .is_none_or(|selector| selects(selector, &pod.labels))
            && port.is_none_or(|(name, number)| pod.port(name) == Some(*number))
    }

    /// Equal definitions have equal names, on every replica and after a restart.
    fn name(&self) -> String {
        let mut name = match (&self.namespace, &self.peers.namespaces) {
            (Some(namespace), _) => format!("namespace {namespace}"),
            (None, selector) => format!("namespaces {{{}}}", text(selector.as_ref())),
        };
        if self
            .peers
            .pods
            .as_ref()
            .is_some_and(|selector| !is_empty(selector))
        {
            let _ = write!(name, " pods {{{}}}", text(self.peers.pods.as_ref()));
        }
        if let Some((port, number)) = &self.port {
            let _ = write!(name, " port {port}={number}");
        }
        shortened(name)
    }
}

/// The name itself, or its beginning and a hash of all of it.
pub(super) fn shortened(name: String) -> String {
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    let mut end = NAME_BYTES_MAX - 18;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…{:016x}", &name[..end], hasher.finish())
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector
        .match_labels
        .as_ref()
        .is_none_or(BTreeMap::is_empty)
        && selector
            .match_expressions
            .as_ref()
            .is_none_or(Vec::is_empty)
}

fn text(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else {
        return String::new();
    };
    let labels = selector.match_labels.iter().flatten();
    let mut parts: Vec<String> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    for requirement in selector.match_expressions.iter().flatten() {
        let mut values = requirement.values.clone().unwrap_or_default();
        values.sort_unstable();
        let (key, operator) = (&requirement.key, &requirement.operator);
        parts.push(format!("{key} {operator} ({})", values.join(",")));
    }
    parts.sort_unstable();
    parts.join(", ")
}
