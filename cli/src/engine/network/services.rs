//! Service addresses on a node, as nf_tables maps: pods that are not in the mesh,
//! and everything that is not TCP, reach Services through these.
//!
//! The table is a function of the world; it is written when it differs from the
//! one written before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use culvert_nft::{
    Base, Chain, ChainKind, Element, Family as TableFamily, Field, Hook, IpVersion, KeyType,
    MapPorts, Policy, Protocol, Reject, Rule, Set, Table, Value as NftValue, Verdict,
};
use serde_json::Value;

use super::addresses::{node_ips, node_number};
use crate::engine::controllers::services::{addresses, is_headless};
use crate::engine::object::{labels, list, name, namespace, pod_ips, text};
use crate::engine::settings::Family;
use crate::engine::world::World;

/// Name of the table in every node's namespace.
pub(crate) const TABLE: &str = "culvert-services";
/// `ct status dnat`.
const CT_DNAT: u32 = 0x20;

/// One address and port of a service, and who answers there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frontend {
    address: IpAddr,
    port: u16,
    protocol: Protocol,
    endpoints: Vec<(IpAddr, u16)>,
    comment: String,
}

/// The table for a node.
pub(crate) fn table(world: &World, node: &str) -> Table {
    let frontends = frontends(world);
    let mut table = Table::new(TableFamily::Inet, TABLE);
    let mut translate = Chain::new("translate");
    let mut refuse = Chain::new("refuse");
    let mut hairpin = Chain::base("hairpin", base(ChainKind::Nat, Hook::Postrouting, 100));
    for version in [IpVersion::V4, IpVersion::V6] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let kind = Kind { version, protocol };
            let here: Vec<_> = frontends.iter().filter(|one| kind.holds(one)).collect();
            for set in kind.sets(&here) {
                table = table.with_set(set);
            }
            for chain in kind.endpoint_chains(&here) {
                table = table.with_chain(chain);
            }
            for set in kind.endpoint_maps(&here) {
                table = table.with_set(set);
            }
            translate = translate.with(kind.translate_rule());
            refuse = refuse.with(kind.refuse_rule());
        }
        let local = local_pods(world, node, version);
        table = table.with_set(hairpin_set(version, &local));
        if let Some(source) = node_address(node, version) {
            hairpin = hairpin.with(
                Rule::new()
                    .ct_status(CT_DNAT, CT_DNAT)
                    .in_set(&source_and_destination(version), hairpin_name(version))
                    .snat(source),
            );
        }
    }
    let jump = |name: &str, hook| {
        Chain::base(name, base(ChainKind::Nat, hook, -100)).with(Rule::new().jump("translate"))
    };
    let reject = |name: &str, hook| {
        Chain::base(name, base(ChainKind::Filter, hook, 0)).with(Rule::new().jump("refuse"))
    };
    table
        .with_chain(translate)
        .with_chain(refuse)
        .with_chain(jump("prerouting", Hook::Prerouting))
        .with_chain(jump("output", Hook::Output))
        .with_chain(reject("forward", Hook::Forward))
        .with_chain(reject("output-refuse", Hook::Output))
        .with_chain(hairpin)
}

fn base(kind: ChainKind, hook: Hook, priority: i32) -> Base {
    Base {
        kind,
        hook,
        priority,
        policy: Policy::Accept,
    }
}

fn node_address(node: &str, version: IpVersion) -> Option<IpAddr> {
    node_ips(node_number(node)?)
        .into_iter()
        .find(|address| IpVersion::of(*address) == version)
}

fn hairpin_name(version: IpVersion) -> &'static str {
    match version {
        IpVersion::V4 => "hairpin4",
        IpVersion::V6 => "hairpin6",
    }
}

fn source_and_destination(version: IpVersion) -> [Field; 2] {
    match version {
        IpVersion::V4 => [Field::Source4, Field::Destination4],
        IpVersion::V6 => [Field::Source6, Field::Destination6],
    }
}

fn address_type(version: IpVersion) -> KeyType {
    match version {
        IpVersion::V4 => KeyType::Ipv4,
        IpVersion::V6 => KeyType::Ipv6,
    }
}

/// Pods of the node: a connection that comes back to the pod it left needs another
/// source, or the pod would answer itself directly.
fn hairpin_set(version: IpVersion, pods: &BTreeSet<IpAddr>) -> Set {
    let kind = address_type(version);
    let pair =
        |address: &IpAddr| Element::new([NftValue::from(*address), NftValue::from(*address)]);
    Set::new(hairpin_name(version), &[kind, kind]).with(pods.iter().map(pair))
}

fn local_pods(world: &World, node: &str, version: IpVersion) -> BTreeSet<IpAddr> {
    world
        .of_kind("Pod")
        .filter(|pod| text(pod, "/spec/nodeName") == Some(node))
        .flat_map(|pod| pod_ips(pod))
        .filter(|address| IpVersion::of(*address) == version)
        .collect()
}

/// One family and protocol: each has maps of its own, because a key's parts have
/// one type.
#[derive(Debug, Clone, Copy)]
struct Kind {
    version: IpVersion,
    protocol: Protocol,
}

impl Kind {
    fn holds(self, frontend: &Frontend) -> bool {
        IpVersion::of(frontend.address) == self.version && frontend.protocol == self.protocol
    }

    fn tag(self) -> String {
        let version = if self.version == IpVersion::V4 { 4 } else { 6 };
        let protocol = if self.protocol == Protocol::Tcp {
            "tcp"
        } else {
            "udp"
        };
        format!("{protocol}{version}")
    }

    fn key(self) -> [Field; 2] {
        match self.version {
            IpVersion::V4 => [Field::Destination4, Field::DestinationPort],
            IpVersion::V6 => [Field::Destination6, Field::DestinationPort],
        }
    }

    fn chain_name(self, frontend: &Frontend) -> String {
        format!(
            "{}-{}-{}",
            self.tag(),
            frontend.address.to_string().replace([':', '.'], "_"),
            frontend.port
        )
    }

    /// The map of frontends to their chains and the set of those nobody answers.
    fn sets(self, frontends: &[&Frontend]) -> [Set; 2] {
        let key = [address_type(self.version), KeyType::Port];
        let place = |one: &Frontend| [NftValue::from(one.address), NftValue::from(one.port)];
        let (alive, dead): (Vec<_>, Vec<_>) =
            frontends.iter().partition(|one| !one.endpoints.is_empty());
        let goto = |one: &&Frontend| {
            Element::verdict(place(one), Verdict::Goto(self.chain_name(one))).comment(&one.comment)
        };
        [
            Set::verdict_map(&format!("services-{}", self.tag()), &key)
                .with(alive.iter().map(goto)),
            Set::new(&format!("dead-{}", self.tag()), &key).with(
                dead.iter()
                    .map(|one| Element::new(place(one)).comment(&one.comment)),
            ),
        ]
    }

    fn translate_rule(self) -> Rule {
        Rule::new()
            .protocol(self.protocol)
            .verdict_map(&self.key(), &format!("services-{}", self.tag()))
    }

    fn refuse_rule(self) -> Rule {
        let how = match self.protocol {
            Protocol::Tcp => Reject::TcpReset,
            _ => Reject::PortUnreachable,
        };
        Rule::new()
            .protocol(self.protocol)
            .in_set(&self.key(), &format!("dead-{}", self.tag()))
            .reject(how)
    }

    fn endpoint_chains(self, frontends: &[&Frontend]) -> Vec<Chain> {
        let alive = frontends.iter().filter(|one| !one.endpoints.is_empty());
        let rule = |one: &Frontend| {
            let rule = Rule::new().protocol(self.protocol);
            if let [(address, port)] = one.endpoints[..] {
                return rule.dnat(address, Some(port));
            }
            let count = u32::try_from(one.endpoints.len()).unwrap_or(u32::MAX);
            let draw = [Field::Random(count)];
            rule.dnat_map(
                self.version,
                &draw,
                &map_name(&self.chain_name(one)),
                MapPorts::FromMap,
            )
        };
        alive
            .map(|one| Chain::new(&self.chain_name(one)).with(rule(one)))
            .collect()
    }

    fn endpoint_maps(self, frontends: &[&Frontend]) -> Vec<Set> {
        let several = frontends.iter().filter(|one| one.endpoints.len() > 1);
        let data = [address_type(self.version), KeyType::Port];
        several
            .map(|one| {
                let elements = one
                    .endpoints
                    .iter()
                    .zip(0u32..)
                    .map(|((address, port), draw)| {
                        let place = [NftValue::from(*address), NftValue::from(*port)];
                        Element::values([NftValue::Number(draw)], place)
                    });
                Set::map(&map_name(&self.chain_name(one)), &[KeyType::Number], &data).with(elements)
            })
            .collect()
    }
}

fn map_name(chain: &str) -> String {
    format!("ends-{chain}")
}

fn frontends(world: &World) -> Vec<Frontend> {
    let mut slices: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    for slice in world.of_kind("EndpointSlice") {
        if let Some(service) = labels(slice).get("kubernetes.io/service-name") {
            slices
                .entry((namespace(slice), *service))
                .or_default()
                .push(slice);
        }
    }
    let mut frontends = Vec::new();
    for service in world
        .of_kind("Service")
        .filter(|service| !is_headless(service))
    {
        let slices = slices
            .get(&(namespace(service), name(service)))
            .map_or(&[][..], Vec::as_slice);
        for address in addresses(service) {
            for port in list(service, "/spec/ports") {
                frontends.extend(frontend(service, port, address, slices));
            }
        }
    }
    frontends
}

fn frontend(service: &Value, port: &Value, address: IpAddr, slices: &[&Value]) -> Option<Frontend> {
    let number = u16::try_from(port.get("port")?.as_u64()?).ok()?;
    let protocol = match text(port, "/protocol").unwrap_or("TCP") {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        _ => return None,
    };
    let port_name = text(port, "/name").unwrap_or_default();
    let family = Family::of(address);
    let of_condition = |wanted: &str| -> Vec<(IpAddr, u16)> {
        let in_family = slices
            .iter()
            .filter(|slice| text(slice, "/addressType") == Some(family.name()));
        in_family
            .flat_map(|slice| endpoints(slice, port_name, wanted))
            .collect()
    };
    let mut endpoints = of_condition("ready");
    if endpoints.is_empty() {
        // Better one that is about to go than none.
        endpoints = of_condition("serving");
    }
    endpoints.sort_unstable();
    endpoints.dedup();
    let comment = format!("{}/{}:{port_name}", namespace(service), name(service));
    Some(Frontend {
        address,
        port: number,
        protocol,
        endpoints,
        comment,
    })
}

fn endpoints(slice: &Value, port_name: &str, condition: &str) -> Vec<(IpAddr, u16)> {
    let port = list(slice, "/ports")
        .iter()
        .find(|port| text(port, "/name").unwrap_or_default() == port_name)
        .and_then(|port| u16::try_from(port.get("port")?.as_u64()?).ok());
    let Some(port) = port else { return Vec::new() };
    let holds = |endpoint: &&Value| {
        // An unset condition means yes, as the API says.
        endpoint
            .pointer(&format!("/conditions/{condition}"))
            .and_then(Value::as_bool)
            .unwrap_or(true)
    };
    list(slice, "/endpoints")
        .iter()
        .filter(holds)
        .flat_map(|endpoint| list(endpoint, "/addresses"))
        .filter_map(|address| Some((address.as_str()?.parse().ok()?, port)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::controllers::testing::Cluster;
    use crate::engine::controllers::{endpoints, services};

    fn cluster(ready: &[bool]) -> Cluster {
        let mut cluster = Cluster::with_nodes(2);
        cluster.put(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.1.1", "selector": {"app": "web"},
                     "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}));
        cluster.settle(services::desired);
        for (index, ready) in ready.iter().enumerate() {
            let held = if *ready { "True" } else { "False" };
            cluster.put(json!({"kind": "Pod",
                "metadata": {"name": format!("p{index}"), "namespace": "shop", "labels": {"app": "web"}},
                "spec": {"nodeName": "node-1", "containers": []},
                "status": {"phase": "Running", "podIPs": [{"ip": format!("10.244.1.{}", index + 2)}],
                           "conditions": [{"type": "Ready", "status": held}]}}));
        }
        cluster.settle(endpoints::desired);
        cluster
    }

    fn only(cluster: &Cluster) -> Frontend {
        let mut all = frontends(cluster.world());
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn only_ready_endpoints_answer() {
        let frontend = only(&cluster(&[true, false, true]));
        let ips: Vec<_> = frontend
            .endpoints
            .iter()
            .map(|(ip, port)| format!("{ip}:{port}"))
            .collect();
        assert_eq!(ips, ["10.244.1.2:8080", "10.244.1.4:8080"]);
        assert_eq!((frontend.port, frontend.protocol), (80, Protocol::Tcp));
    }

    #[test]
    fn nobody_there_is_a_refusal() {
        let cluster = cluster(&[false]);
        assert!(only(&cluster).endpoints.is_empty());
        let table = table(cluster.world(), "node-1");
        let dead = table
            .sets
            .iter()
            .find(|set| set.name == "dead-tcp4")
            .expect("the set");
        assert_eq!(dead.elements.len(), 1);
    }

    #[test]
    fn several_endpoints_share_a_random_draw() {
        let cluster = cluster(&[true, true, true]);
        let table = table(cluster.world(), "node-1");
        let chain = "tcp4-10_96_1_1-80";
        let map = table
            .sets
            .iter()
            .find(|set| set.name == map_name(chain))
            .expect("the map");
        assert_eq!(map.elements.len(), 3);
        assert!(table.chains.iter().any(|one| one.name == chain));
        let local = table
            .sets
            .iter()
            .find(|set| set.name == "hairpin4")
            .expect("the set");
        assert_eq!(local.elements.len(), 3, "the pods of this node");
    }
}
