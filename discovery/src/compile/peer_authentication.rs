//! `PeerAuthentication`: STRICT becomes a DENY of peers without an identity,
//! named after the object that asked for it.

use std::sync::Arc;

use culvert_api::policy::{MutualTlsMode, PeerAuthenticationSpec, PortValue};
use culvert_kubeyaml::{Kind, selector::contains};
use culvert_model::{Action, Group, Match, Origin, Policy, PolicyName, Scope};

use super::{
    Attached, Compiled, Context,
    conditions::{
        AncestorConditions, Condition, ObjectStatus, StatusShape, invalid, namespace_ancestor,
    },
    key,
    matches::{any, unauthenticated},
    pods::{LivePods, Named},
};
use crate::index::{Name, PolicyEntry, World};

type Entry<'a> = (
    &'a Name,
    &'a PolicyEntry<PeerAuthenticationSpec>,
    &'a PeerAuthenticationSpec,
);

/// Compiles every object, attaches it to pods and writes its status.
pub(super) fn compile<'a>(
    context: Context<'a, '_>,
    compiled: &mut Compiled,
    attached: &mut Attached<'a>,
) {
    let Context {
        world,
        settings,
        pods,
        ..
    } = context;
    let entries = in_order(world);
    let mesh = default_of(&entries, &settings.root_namespace);
    for (namespace, pods) in pods.namespaces() {
        let own = default_of(&entries, namespace).filter(|_| *namespace != settings.root_namespace);
        let default = Default::of([own, mesh]);
        let selecting: Vec<_> = entries
            .iter()
            .filter(|(name, _, spec)| name.namespace == *namespace && selects_pods(spec))
            .collect();
        for (name, pod) in pods {
            // Oldest first: the first that selects the pod decides.
            let mut chosen = selecting
                .iter()
                .filter(|(_, _, spec)| selects(spec, (name, pod)));
            let policy = match chosen.next() {
                Some(entry) => of_workload(entry, &default),
                None => default.policy(),
            };
            if let Some(policy) = policy {
                attached
                    .ingress
                    .entry(name)
                    .or_default()
                    .push(policy.name.clone());
                compiled
                    .policies
                    .entry(policy.name.clone())
                    .or_insert(policy);
            }
        }
    }
    for (name, entry) in &world.peer_authentications {
        let status = status(name, entry, &entries, pods);
        compiled
            .statuses
            .insert(key(Kind::PeerAuthentication, name), status);
    }
}

/// All good objects, oldest first.
fn in_order(world: &World) -> Vec<Entry<'_>> {
    let all = world.peer_authentications.iter();
    let mut entries: Vec<Entry<'_>> = all
        .filter_map(|(name, entry)| Some((name, entry, &entry.good.as_ref()?.spec)))
        .collect();
    // One without a time was not created by an API server: names decide.
    entries.sort_by_key(|(name, entry, _)| (entry.created, *name));
    entries
}

fn selects_pods(spec: &PeerAuthenticationSpec) -> bool {
    spec.selector
        .as_ref()
        .is_some_and(|selector| !selector.match_labels.is_empty())
}

fn selects(spec: &PeerAuthenticationSpec, (_, pod): Named<'_>) -> bool {
    let selector = spec.selector.as_ref();
    selector.is_some_and(|selector| contains(&pod.labels, &selector.match_labels))
}

fn default_of<'a>(entries: &[Entry<'a>], namespace: &Arc<str>) -> Option<Entry<'a>> {
    let mut of_namespace = entries.iter();
    of_namespace
        .find(|(name, _, spec)| name.namespace == *namespace && !selects_pods(spec))
        .copied()
}

/// What holds for a pod that no object selects.
struct Default<'a> {
    strict: bool,
    from: Option<&'a Name>,
}

impl<'a> Default<'a> {
    fn of(narrowest_first: [Option<Entry<'a>>; 2]) -> Self {
        for (name, _, spec) in narrowest_first.into_iter().flatten() {
            if let Some(strict) = strict(spec.mtls.map(|mtls| mtls.mode)) {
                return Self {
                    strict,
                    from: Some(name),
                };
            }
        }
        Self {
            strict: false,
            from: None,
        }
    }

    fn policy(&self) -> Option<Policy> {
        let from = self.from.filter(|_| self.strict)?;
        Some(policy(from, vec![unauthenticated()]))
    }
}

/// Whether a mode refuses plaintext; `None` if it leaves that to the next
/// wider scope.
fn strict(mode: Option<MutualTlsMode>) -> Option<bool> {
    match mode {
        None | Some(MutualTlsMode::Unset) => None,
        Some(MutualTlsMode::Strict) => Some(true),
        Some(MutualTlsMode::Permissive | MutualTlsMode::Disable) => Some(false),
    }
}

fn of_workload((name, _, spec): &Entry<'_>, default: &Default<'_>) -> Option<Policy> {
    let own = strict(spec.mtls.map(|mtls| mtls.mode));
    let of_all = own.unwrap_or(default.strict);
    let mut exceptions: Vec<u16> = spec
        .port_level_mtls
        .iter()
        .filter(|(_, mtls)| strict(Some(mtls.mode)).is_some_and(|mode| mode != of_all))
        .filter_map(|(port, _)| PortValue::Text(port.clone()).port())
        .collect();
    exceptions.sort_unstable();
    match (of_all, exceptions.is_empty()) {
        (false, true) => None,
        // The same for all ports, and decided elsewhere: say by whom.
        (true, true) if own.is_none() => default.policy(),
        (true, _) => {
            let except = Match {
                not_destination_ports: exceptions,
                ..unauthenticated()
            };
            Some(policy(name, vec![except]))
        }
        (false, false) => {
            let only = Match {
                destination_ports: exceptions,
                ..unauthenticated()
            };
            Some(policy(name, vec![only]))
        }
    }
}

fn policy(from: &Name, matches: Vec<Match>) -> Policy {
    // ':' cannot be in the name of an object: nobody's policy has this name.
    let name = format!("peerauthentication:{}", from.name);
    let name = PolicyName::new(from.namespace.clone(), name);
    let group = Group {
        rules: vec![any(matches)],
    };
    Policy {
        origin: Some(Origin {
            kind: Kind::PeerAuthentication.name().into(),
            namespace: from.namespace.clone(),
            name: from.name.clone(),
            audit: false,
        }),
        ..Policy::new(name, Scope::WorkloadSelector, Action::Deny, vec![group])
    }
}

fn status(
    name: &Name,
    entry: &PolicyEntry<PeerAuthenticationSpec>,
    entries: &[Entry<'_>],
    pods: &LivePods<'_>,
) -> ObjectStatus {
    let mut conditions = Vec::new();
    let good = entry.good.as_ref().map(|good| &good.spec);
    let older = good.and_then(|spec| older_twin(name, spec, entries));
    if let Some(fault) = &entry.fault {
        conditions.push(Condition::refused(
            "Invalid",
            invalid(fault, good.is_some()),
        ));
    } else if let Some(older) = older {
        let message =
            format!("PeerAuthentication {older} is older and speaks for the same workloads");
        conditions.push(Condition::refused("Conflicted", message));
    } else {
        conditions.push(Condition::accepted());
    }
    conditions.push(match good {
        None => Condition::enforced(false, "NotEnforced", "nothing is enforced"),
        Some(_) if older.is_some() => {
            Condition::enforced(false, "NotEnforced", "the older one counts")
        }
        Some(spec)
            if selects_pods(spec) && {
                let mut pods = pods.of_namespace(&name.namespace).iter();
                !pods.any(|pod| selects(spec, *pod))
            } =>
        {
            Condition::enforced(false, "NoWorkload", "no workload is selected at present")
        }
        Some(_) => Condition::enforced(true, "Enforced", ""),
    });
    ObjectStatus {
        generation: entry.generation,
        shape: StatusShape::Ancestors(vec![AncestorConditions {
            ancestor: namespace_ancestor(&name.namespace),
            conditions,
        }]),
    }
}

/// An older object that speaks for all that this one does.
fn older_twin<'a>(
    name: &Name,
    spec: &PeerAuthenticationSpec,
    entries: &[Entry<'a>],
) -> Option<&'a Name> {
    let older = entries.iter().take_while(|(other, _, _)| *other != name);
    let mut twins = older.filter(|(other, _, theirs)| {
        other.namespace == name.namespace
            && match (selects_pods(spec), selects_pods(theirs)) {
                (false, false) => true,
                (true, true) => spec.selector == theirs.selector,
                _ => false,
            }
    });
    twins.next().map(|(name, _, _)| *name)
}
