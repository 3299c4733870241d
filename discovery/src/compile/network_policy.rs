//! Kubernetes NetworkPolicy as DENY policies, never ALLOW: a user's ALLOW must
//! not open what a NetworkPolicy closes.
//!
//! A connection is refused if every allowing rule fails, and a rule fails if
//! the peer is not among its peers or the port not among its ports. That is one
//! group; each allowing rule is one AND-ed `Rules` of it, with "not peer" and
//! "not port" as its OR-ed matches. All NetworkPolicies that select a pod speak
//! together, so pods that are selected by the same ones share a policy.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use culvert_kubeyaml::Kind;
use culvert_model::{Action, Group, Match, Origin, Policy, PolicyName, PortRange, Rules, Scope};
use ipnet::IpNet;

use super::{
    Attached, Compiled, Context,
    cidr::subtract,
    conditions::{Condition, ObjectStatus, StatusShape, invalid},
    key,
    matches::any,
    members::{ClusterDns, cluster_dns},
    peer_sets::{PeerSets, shortened},
    pods::LivePods,
};
use crate::index::{
    Direction, Name, NetworkPolicy, Peer, PeerSelector, Pod, PortMatch, TrafficRule, World,
};

/// Where probes of the node seem to come from. The node could always reach its
/// pods, whatever a NetworkPolicy says.
const PROBE_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 7, 127)),
    IpAddr::V6(Ipv6Addr::new(
        0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff,
    )),
];

/// Compiles every policy, attaches it to pods and writes its status. Gives the
/// sets that the policies refer to.
pub(super) fn compile<'a>(
    context: Context<'a, '_>,
    compiled: &mut Compiled,
    attached: &mut Attached<'a>,
) -> PeerSets {
    let Context { world, pods, .. } = context;
    let dns = &cluster_dns(world, pods);
    let mut compiler = Compiler {
        world,
        pods,
        dns,
        sets: PeerSets::default(),
        known: HashMap::new(),
    };
    let policies = by_namespace(world);
    let mut selected: HashMap<&Name, usize> = HashMap::new();
    for (namespace, policies) in &policies {
        for (pod_name, pod) in pods.of_namespace(namespace) {
            // What has the node's network is beyond NetworkPolicies.
            if pod.host_network {
                continue;
            }
            let selecting = policies
                .iter()
                .filter(|(_, policy)| policy.selects(&pod.labels));
            let selecting: Vec<_> = selecting.copied().collect();
            for (name, _) in &selecting {
                *selected.entry(*name).or_default() += 1;
            }
            for direction in [Direction::Ingress, Direction::Egress] {
                let Some(policy) = compiler.policy(direction, namespace, &selecting, pod) else {
                    continue;
                };
                let (lists, all) = match direction {
                    Direction::Ingress => (&mut attached.ingress, &mut compiled.policies),
                    Direction::Egress => (&mut attached.egress, &mut compiled.egress_policies),
                };
                lists
                    .entry(*pod_name)
                    .or_default()
                    .push(policy.name.clone());
                all.entry(policy.name.clone()).or_insert(policy);
            }
        }
    }
    statuses(world, &selected, compiled);
    compiler.sets
}

type Selecting<'a> = (&'a Name, &'a NetworkPolicy);

fn by_namespace(world: &World) -> BTreeMap<&Arc<str>, Vec<Selecting<'_>>> {
    let mut result: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, entry) in &world.network_policies {
        if let Some(good) = &entry.good {
            result
                .entry(&name.namespace)
                .or_default()
                .push((name, &good.spec));
        }
    }
    result
}

struct Compiler<'a, 'w> {
    world: &'w World,
    pods: &'w LivePods<'a>,
    dns: &'w ClusterDns,
    sets: PeerSets,
    known: HashMap<(Direction, PolicyName), Option<Policy>>,
}

/// What one rule allows: any of these peers on any of these ports.
struct Allowance {
    peers: Option<Peers>,
    /// And of those only the members of this set.
    within: Option<Arc<str>>,
    ports: Option<Vec<(u16, u16)>>,
}

#[derive(Default)]
struct Peers {
    sets: Vec<Arc<str>>,
    ranges: Vec<IpNet>,
}

impl Compiler<'_, '_> {
    /// The policy for a pod that these select; none if all is allowed.
    fn policy(
        &mut self,
        direction: Direction,
        namespace: &Arc<str>,
        selecting: &[Selecting<'_>],
        pod: &Pod,
    ) -> Option<Policy> {
        let isolating = selecting
            .iter()
            .filter(|(_, policy)| policy.rules(direction).is_some());
        let isolating: Vec<_> = isolating.copied().collect();
        if isolating.is_empty() {
            return None;
        }
        let rules: Vec<_> = isolating
            .iter()
            .flat_map(|(_, policy)| policy.rules(direction).unwrap_or_default())
            .collect();
        let names: Vec<&str> = isolating.iter().map(|(name, _)| &*name.name).collect();
        let name = PolicyName::new(
            namespace.clone(),
            policy_name(direction, &names, &rules, pod),
        );
        let known = (direction, name.clone());
        if let Some(policy) = self.known.get(&known) {
            return policy.clone();
        }
        let group = self.group(direction, namespace, &rules, pod);
        let policy = group.map(|group| Policy {
            origin: Some(Origin {
                kind: Kind::NetworkPolicy.name().into(),
                namespace: namespace.clone(),
                name: shortened(names.join("+")).into(),
                audit: false,
            }),
            ..Policy::new(name, Scope::WorkloadSelector, Action::Deny, vec![group])
        });
        self.known.insert(known, policy.clone());
        policy
    }

    /// The group that matches what no rule allows; none if all is allowed.
    fn group(
        &mut self,
        direction: Direction,
        namespace: &Arc<str>,
        rules: &[&TrafficRule],
        pod: &Pod,
    ) -> Option<Group> {
        let mut group = Group {
            rules: self.always_allowed(direction),
        };
        for rule in rules {
            let allowances = match direction {
                Direction::Ingress => self.ingress(namespace, rule, pod),
                Direction::Egress => self.egress(namespace, rule),
            };
            for allowance in allowances {
                if allowance.peers.is_none() && allowance.ports.is_none() {
                    return None;
                }
                group.rules.push(fails(direction, allowance));
            }
        }
        Some(group)
    }

    fn always_allowed(&self, direction: Direction) -> Vec<Rules> {
        match direction {
            Direction::Ingress => {
                let not_probe = Match {
                    not_source_ips: PROBE_ADDRESSES.map(IpNet::from).to_vec(),
                    ..Match::default()
                };
                vec![any(vec![not_probe])]
            }
            Direction::Egress if self.dns.addresses.is_empty() => Vec::new(),
            Direction::Egress => {
                let elsewhere = Match {
                    not_destination_ips: self.dns.addresses.clone(),
                    ..Match::default()
                };
                let other_port = Match {
                    not_destination_ports: self.dns.ports.clone(),
                    ..Match::default()
                };
                vec![any(vec![elsewhere, other_port])]
            }
        }
    }

    fn ingress(&mut self, namespace: &Arc<str>, rule: &TrafficRule, pod: &Pod) -> Vec<Allowance> {
        let ports = rule.ports.as_ref().map(|ports| {
            let ports = ports.iter();
            let numbers = ports.filter_map(|port| match port {
                PortMatch::Range(first, last) => Some((*first, *last)),
                PortMatch::Named(name) => pod.port(name).map(|port| (port, port)),
            });
            merged(numbers.collect())
        });
        let peers = rule
            .peers
            .as_ref()
            .map(|peers| self.peers(namespace, peers));
        allowance(peers, ports).into_iter().collect()
    }

    /// Named ports are those of the peer: each number that the name stands for
    /// is a rule of its own, for the peers that mean this number.
    fn egress(&mut self, namespace: &Arc<str>, rule: &TrafficRule) -> Vec<Allowance> {
        let Some(ports) = &rule.ports else {
            let peers = rule
                .peers
                .as_ref()
                .map(|peers| self.peers(namespace, peers));
            return allowance(peers, None).into_iter().collect();
        };
        let numbers = ports.iter().filter_map(|port| match port {
            PortMatch::Range(first, last) => Some((*first, *last)),
            PortMatch::Named(_) => None,
        });
        let peers = rule
            .peers
            .as_ref()
            .map(|peers| self.peers(namespace, peers));
        let ranges = peers
            .as_ref()
            .map_or(&[][..], |peers| &peers.ranges)
            .to_vec();
        let numbered = allowance(peers, Some(merged(numbers.collect())));
        let mut allowances: Vec<_> = numbered.into_iter().collect();
        let everyone = [PeerSelector {
            namespaces: Some(
                k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector::default(),
            ),
            pods: None,
        }];
        for port in ports {
            let PortMatch::Named(port) = port else {
                continue;
            };
            let chosen: Vec<&PeerSelector> = match &rule.peers {
                None => everyone.iter().collect(),
                Some(peers) => peers.iter().filter_map(selector_of).collect(),
            };
            // Of a range of addresses the pods are meant that have such a port.
            let in_ranges = everyone.iter().filter(|_| !ranges.is_empty());
            let chosen = chosen.into_iter().map(|peers| (peers, false));
            for (peers, is_range) in chosen.chain(in_ranges.map(|peers| (peers, true))) {
                let numbers = PeerSets::port_numbers(namespace, peers, port, self.world, self.pods);
                for number in numbers {
                    let set = self
                        .sets
                        .name(namespace, peers, Some((port.as_str(), number)));
                    let (peers, within) = if is_range {
                        let ranges = ranges.clone();
                        (
                            Peers {
                                sets: Vec::new(),
                                ranges,
                            },
                            Some(set),
                        )
                    } else {
                        (
                            Peers {
                                sets: vec![set],
                                ranges: Vec::new(),
                            },
                            None,
                        )
                    };
                    allowances.push(Allowance {
                        peers: Some(peers),
                        within,
                        ports: Some(vec![(number, number)]),
                    });
                }
            }
        }
        allowances
    }

    fn peers(&mut self, namespace: &Arc<str>, peers: &[Peer]) -> Peers {
        let mut result = Peers::default();
        for peer in peers {
            match peer {
                Peer::Pods(selector) => {
                    let set = self.sets.name(namespace, selector, None);
                    if !result.sets.contains(&set) {
                        result.sets.push(set);
                    }
                }
                Peer::Addresses { range, except } => result.ranges.extend(subtract(*range, except)),
            }
        }
        result
    }
}

fn selector_of(peer: &Peer) -> Option<&PeerSelector> {
    match peer {
        Peer::Pods(selector) => Some(selector),
        Peer::Addresses { .. } => None,
    }
}

/// Nothing is allowed by a rule whose peers or ports came to nothing.
fn allowance(peers: Option<Peers>, ports: Option<Vec<(u16, u16)>>) -> Option<Allowance> {
    let no_peer = |peers: &Peers| peers.sets.is_empty() && peers.ranges.is_empty();
    if peers.as_ref().is_some_and(no_peer) || ports.as_ref().is_some_and(Vec::is_empty) {
        return None;
    }
    // Every port is no condition. A range of all addresses is one still: it
    // holds for its family only.
    let ports = ports.filter(|ports| {
        !ports
            .iter()
            .any(|(first, last)| (*first, *last) == (1, u16::MAX))
    });
    Some(Allowance {
        peers,
        within: None,
        ports,
    })
}

/// The `Rules` that hold where the allowance does not.
fn fails(direction: Direction, allowance: Allowance) -> Rules {
    let mut matches = Vec::new();
    if let Some(peers) = allowance.peers {
        let mut not_peer = Match {
            not_peer_sets: peers.sets,
            ..Match::default()
        };
        match direction {
            Direction::Ingress => not_peer.not_source_ips = peers.ranges,
            Direction::Egress => not_peer.not_destination_ips = peers.ranges,
        }
        matches.push(not_peer);
    }
    if let Some(set) = allowance.within {
        matches.push(Match {
            not_peer_sets: vec![set],
            ..Match::default()
        });
    }
    if let Some(ports) = allowance.ports {
        let single = |(first, last): &&(u16, u16)| first == last;
        let ranges = ports.iter().filter(|range| !single(range));
        matches.push(Match {
            not_destination_ports: ports.iter().filter(single).map(|(port, _)| *port).collect(),
            not_destination_port_ranges: ranges
                .map(|(first, last)| PortRange {
                    first: *first,
                    last: *last,
                })
                .collect(),
            ..Match::default()
        });
    }
    any(matches)
}

/// Overlapping and adjacent ranges become one.
fn merged(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut result: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match result.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => result.push((first, last)),
        }
    }
    result
}

/// Says which NetworkPolicies speak, and, where they name ports of the pod,
/// what these names stand for in it.
fn policy_name(direction: Direction, names: &[&str], rules: &[&TrafficRule], pod: &Pod) -> String {
    let mut name = format!("networkpolicy:{}", names.join("+"));
    if direction == Direction::Ingress {
        let ports = rules.iter().flat_map(|rule| rule.ports.iter().flatten());
        let mut resolved: Vec<_> = ports
            .filter_map(|port| match port {
                PortMatch::Named(port) => Some((port.as_str(), pod.port(port).unwrap_or(0))),
                PortMatch::Range(..) => None,
            })
            .collect();
        resolved.sort_unstable();
        resolved.dedup();
        for (port, number) in resolved {
            name += &format!(":{port}={number}");
        }
    }
    shortened(name)
}

fn statuses(world: &World, selected: &HashMap<&Name, usize>, compiled: &mut Compiled) {
    for (name, entry) in &world.network_policies {
        let good = entry.good.is_some();
        let accepted = match &entry.fault {
            Some(fault) => Condition::refused("Invalid", invalid(fault, good)),
            None => Condition::accepted(),
        };
        let enforced = match (good, selected.get(name)) {
            (false, _) => Condition::enforced(false, "NotEnforced", "nothing is enforced"),
            (true, None) => {
                Condition::enforced(false, "NoWorkload", "no workload is selected at present")
            }
            (true, Some(_)) => Condition::enforced(true, "Enforced", ""),
        };
        let status = ObjectStatus {
            generation: entry.generation,
            shape: StatusShape::Plain(vec![accepted, enforced]),
        };
        compiled
            .statuses
            .insert(key(Kind::NetworkPolicy, name), status);
    }
}
