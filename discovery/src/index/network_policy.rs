//! Kubernetes network policies, TCP only: nothing else goes through the mesh.

use culvert_kubeyaml::selector::Labels;
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1 as networking,
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

/// Which side of a connection a rule speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Connections to the selected pods.
    Ingress,
    /// Connections from the selected pods.
    Egress,
}

/// Chooses peers among pods.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerSelector {
    /// Namespaces; the policy's own without it.
    pub namespaces: Option<LabelSelector>,
    /// Pods; all without it.
    pub pods: Option<LabelSelector>,
}

/// A peer of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Peer {
    /// Pods.
    Pods(PeerSelector),
    /// Addresses: a range without some parts of it.
    Addresses {
        /// The range.
        range: IpNet,
        /// What does not belong to it.
        except: Vec<IpNet>,
    },
}

/// Ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortMatch {
    /// A range, ends included.
    Range(u16, u16),
    /// The port of that name, which may differ between pods.
    Named(String),
}

/// One allowing rule.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficRule {
    /// The peers; none means all.
    pub peers: Option<Vec<Peer>>,
    /// The TCP ports; none means all, an empty list means no TCP at all.
    pub ports: Option<Vec<PortMatch>>,
}

/// What the mesh needs of a network policy.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkPolicy {
    /// The pods that it isolates.
    pub pods: LabelSelector,
    /// What may connect to them; `None` if that is not restricted.
    pub ingress: Option<Vec<TrafficRule>>,
    /// What they may connect to; `None` if that is not restricted.
    pub egress: Option<Vec<TrafficRule>>,
}

impl NetworkPolicy {
    /// The rules of a direction; `None` if it is not restricted.
    pub fn rules(&self, direction: Direction) -> Option<&[TrafficRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// Whether it isolates a pod with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        culvert_kubeyaml::selector::selects(&self.pods, labels)
    }
}

impl From<&networking::NetworkPolicy> for NetworkPolicy {
    fn from(policy: &networking::NetworkPolicy) -> Self {
        let default = networking::NetworkPolicySpec::default();
        let spec = policy.spec.as_ref().unwrap_or(&default);
        let types = spec.policy_types.as_deref().unwrap_or_default();
        let listed = |kind: &str| types.iter().any(|other| other == kind);
        let egress_rules = spec.egress.as_deref().unwrap_or_default();
        let ingress = types.is_empty() || listed("Ingress");
        let egress = listed("Egress") || (types.is_empty() && !egress_rules.is_empty());
        let ingress_rules = spec.ingress.as_deref().unwrap_or_default();
        Self {
            pods: spec.pod_selector.clone().unwrap_or_default(),
            ingress: ingress.then(|| {
                let rules = ingress_rules.iter();
                rules
                    .map(|r| rule(r.from.as_deref(), r.ports.as_deref()))
                    .collect()
            }),
            egress: egress.then(|| {
                let rules = egress_rules.iter();
                rules
                    .map(|r| rule(r.to.as_deref(), r.ports.as_deref()))
                    .collect()
            }),
        }
    }
}

fn rule(
    peers: Option<&[networking::NetworkPolicyPeer]>,
    ports: Option<&[networking::NetworkPolicyPort]>,
) -> TrafficRule {
    // An empty list means the same as none.
    let peers = peers.filter(|peers| !peers.is_empty());
    let ports = ports.filter(|ports| !ports.is_empty());
    TrafficRule {
        peers: peers.map(|peers| peers.iter().filter_map(peer).collect()),
        ports: ports.map(|ports| ports.iter().filter_map(port).collect()),
    }
}

/// A peer that the validation of objects would refuse allows nothing.
fn peer(peer: &networking::NetworkPolicyPeer) -> Option<Peer> {
    match &peer.ip_block {
        None if peer.pod_selector.is_none() && peer.namespace_selector.is_none() => None,
        None => Some(Peer::Pods(PeerSelector {
            namespaces: peer.namespace_selector.clone(),
            pods: peer.pod_selector.clone(),
        })),
        Some(block) => {
            let except = block.except.iter().flatten().map(|range| range.parse());
            Some(Peer::Addresses {
                range: block.cidr.parse::<IpNet>().ok()?.trunc(),
                except: except.collect::<Result<_, _>>().ok()?,
            })
        }
    }
}

fn port(port: &networking::NetworkPolicyPort) -> Option<PortMatch> {
    if port
        .protocol
        .as_deref()
        .is_some_and(|protocol| protocol != "TCP")
    {
        return None;
    }
    match &port.port {
        None => Some(PortMatch::Range(1, u16::MAX)),
        Some(IntOrString::String(name)) => Some(PortMatch::Named(name.clone())),
        Some(IntOrString::Int(first)) => {
            let first = u16::try_from(*first).ok()?;
            let last = port
                .end_port
                .map_or(Some(first), |end| u16::try_from(end).ok())?;
            Some(PortMatch::Range(first, last))
        }
    }
}
