//! The nf_tables rules of the mesh as values: in a pod's network namespace, and for
//! probes in the node's.
//!
//! Redirecting takes neither address translation nor connection tracking: an
//! outbound packet gets a mark in the output hook, which routes it to the loopback
//! interface; there `tproxy` hands it, unchanged, to the node proxy's transparent
//! listener, whose accepted socket has the original destination as its own address.
//! Plain inbound packets are handed over likewise when they arrive.
//!
//! Since every packet and not only a connection's first one is looked at, a packet
//! that answers an inbound connection must be told from one that opens an outbound
//! connection. That is done by marks which sockets inherit (tcp_fwmark_accept):
//! see [`PROXY_MARK`], [`SPOOFED_MARK`] and [`BYPASS_MARK`].
//!
//! Nothing here does IO.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use culvert_nft::{
    Base, Chain, ChainKind, Element, Family, Field, Hook, KeyType, Policy, Rule, Set, Table,
    TableId,
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

mod nat;

/// Name of the table in a pod.
pub const POD_TABLE: &str = "culvert";

/// On every packet of the node proxy's own sockets.
pub const PROXY_MARK: u32 = 0x539;
/// On the node proxy's packets to the application from a foreign address. The
/// application's accepted socket inherits it, and so does a RST that the kernel sends
/// for an application that is gone (fwmark_reflect); an ip rule turns both back to
/// the loopback interface.
pub const SPOOFED_MARK: u32 = 0x111;
/// On inbound packets that are not redirected. The accepted socket inherits it, so
/// that its answers are not taken for outbound connections.
pub const BYPASS_MARK: u32 = 0x112;
/// On outbound packets of the application on their way to the node proxy.
pub const OUTBOUND_MARK: u32 = 0x77;
/// The bits of the packet mark that are ours.
pub const MARK_MASK: u32 = 0xfff;

/// Outbound connections are handed over here.
pub const OUTBOUND_PORT: u16 = 15001;
/// Plain inbound connections are handed over here.
pub const INBOUND_PORT: u16 = 15006;
/// Tunnels; never redirected.
pub const TUNNEL_PORT: u16 = 15008;
/// DNS.
pub const DNS_PORT: u16 = 15053;

/// Where a kubelet's probes come from, as the pod sees it.
pub const PROBE_ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);
/// The same for IPv6.
pub const PROBE_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(
    0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff,
);

/// iptables' names for the order of chains at a hook.
const MANGLE: i32 = -150;
const FILTER: i32 = 0;
const SRCNAT: i32 = 100;

const LOOPBACK: &str = "lo";

/// How connections get to the node proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// Mark, route and `tproxy`.
    Tproxy,
    /// Address translation, for a kernel without `tproxy`: slower, and needs
    /// connection tracking.
    Redirect,
}

/// What a pod wants redirected.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct PodRules {
    /// Inbound connections pass the node proxy.
    pub inbound: bool,
    /// DNS queries pass the node proxy.
    pub dns: bool,
    /// Interfaces whose traffic counts as outbound (virtual machines in the pod).
    pub reroute_interfaces: Vec<String>,
}

impl Default for PodRules {
    fn default() -> Self {
        Self {
            inbound: true,
            dns: true,
            reroute_interfaces: Vec::new(),
        }
    }
}

/// What this kernel and this moment call for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circumstances {
    /// How to redirect.
    pub mechanism: Mechanism,
    /// The kernel can tell whether a listener is there.
    pub socket_match: bool,
    /// Connections of the pod that are older than its enrolment and stay as they are.
    pub established: Vec<Connection>,
}

/// A TCP connection as the pod's socket has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Connection {
    /// The pod's end.
    pub local: SocketAddr,
    /// The other end, of the same family.
    pub remote: SocketAddr,
}

/// Name and family of the pod's table.
#[must_use]
pub fn pod_table_id() -> TableId {
    TableId::new(Family::Inet, POD_TABLE)
}

/// All rules of a pod.
#[must_use]
pub fn pod_table(rules: &PodRules, circumstances: &Circumstances) -> Table {
    match circumstances.mechanism {
        Mechanism::Tproxy => tproxy_table(rules, circumstances),
        Mechanism::Redirect => nat::redirect_table(rules, circumstances),
    }
}

fn tproxy_table(rules: &PodRules, circumstances: &Circumstances) -> Table {
    let mut table = Table::new(Family::Inet, POD_TABLE);
    for set in established_sets(&circumstances.established) {
        table = table.with_set(set);
    }
    table = table
        .with_chain(output(circumstances))
        .with_chain(prerouting())
        .with_chain(outbound(rules))
        .with_chain(inbound(rules))
        .with_chain(leak_guard());
    if circumstances.socket_match {
        table = table
            .with_chain(input(&[TUNNEL_PORT], rules.dns))
            .with_chain(listener_guard());
    }
    if rules.dns {
        table = table.with_chain(nat::dns_output());
        // The rule above turns connection tracking on for the whole namespace.
        if rules.inbound {
            for chain in nat::untracked() {
                table = table.with_chain(chain);
            }
        }
    }
    table
}

pub(crate) fn base(kind: ChainKind, hook: Hook, priority: i32) -> Base {
    Base {
        kind,
        hook,
        priority,
        policy: Policy::Accept,
    }
}

fn output(circumstances: &Circumstances) -> Chain {
    let mut chain = Chain::base("output", base(ChainKind::Route, Hook::Output, MANGLE)).with(
        Rule::new()
            .protocol_not(culvert_nft::Protocol::Tcp)
            .accept()
            .comment("TCP only"),
    );
    for rule in exempt_output(circumstances) {
        chain = chain.with(rule);
    }
    chain.with(
        Rule::new()
            .set_mark(OUTBOUND_MARK, MARK_MASK)
            .comment("the rest to the node proxy"),
    )
}

/// Outbound TCP that stays as it is, whatever the mechanism.
pub(crate) fn exempt_output(circumstances: &Circumstances) -> Vec<Rule> {
    let mut rules = vec![
        Rule::new()
            .interface_out(LOOPBACK)
            .accept()
            .comment("loopback, own addresses, answers to the node proxy"),
        Rule::new()
            .mark(PROXY_MARK, MARK_MASK)
            .accept()
            .comment("the node proxy"),
        Rule::new()
            .mark(BYPASS_MARK, MARK_MASK)
            .accept()
            .comment("answers of inbound connections"),
        Rule::new()
            .destination(IpNet::from(IpAddr::V4(PROBE_ADDRESS_V4)))
            .accept()
            .comment("answers to probes"),
        Rule::new()
            .destination(IpNet::from(IpAddr::V6(PROBE_ADDRESS_V6)))
            .accept()
            .comment("answers to probes"),
    ];
    for (set, source, destination) in [
        (ESTABLISHED_V4, Field::Source4, Field::Destination4),
        (ESTABLISHED_V6, Field::Source6, Field::Destination6),
    ] {
        let wanted = circumstances
            .established
            .iter()
            .any(|connection| connection.local.is_ipv4() == (set == ESTABLISHED_V4));
        if wanted {
            let key = [
                source,
                Field::SourcePort,
                destination,
                Field::DestinationPort,
            ];
            let rule = Rule::new().tcp().syn_not().in_set(&key, set).accept();
            rules.push(rule.comment("older than the enrolment"));
        }
    }
    rules
}

const ESTABLISHED_V4: &str = "established4";
const ESTABLISHED_V6: &str = "established6";

pub(crate) fn established_sets(established: &[Connection]) -> Vec<Set> {
    [
        (ESTABLISHED_V4, KeyType::Ipv4),
        (ESTABLISHED_V6, KeyType::Ipv6),
    ]
    .into_iter()
    .filter_map(|(name, address)| {
        let elements: Vec<Element> = established
            .iter()
            .filter(|connection| connection.local.is_ipv4() == (address == KeyType::Ipv4))
            .map(|connection| {
                Element::new([
                    connection.local.ip().into(),
                    connection.local.port().into(),
                    connection.remote.ip().into(),
                    connection.remote.port().into(),
                ])
            })
            .collect();
        let key = [address, KeyType::Port, address, KeyType::Port];
        (!elements.is_empty()).then(|| Set::new(name, &key).with(elements))
    })
    .collect()
}

fn prerouting() -> Chain {
    Chain::base(
        "prerouting",
        base(ChainKind::Filter, Hook::Prerouting, MANGLE),
    )
    .with(
        Rule::new()
            .protocol_not(culvert_nft::Protocol::Tcp)
            .accept()
            .comment("TCP only"),
    )
    .with(Rule::new().interface_in_not(LOOPBACK).goto("inbound"))
    .with(Rule::new().mark(OUTBOUND_MARK, MARK_MASK).goto("outbound"))
    .with(
        Rule::new()
            .mark(PROXY_MARK, MARK_MASK)
            .set_mark(SPOOFED_MARK, MARK_MASK)
            .comment("a RST for it goes back to the node proxy"),
    )
}

fn outbound(rules: &PodRules) -> Chain {
    let mut chain = Chain::new("outbound");
    if rules.dns {
        for listener in listeners(DNS_PORT) {
            let rule = Rule::new().tcp().destination_port(53);
            chain = chain.with(rule.tproxy(listener).accept());
        }
        chain = chain.with(
            Rule::new()
                .tcp()
                .destination_port(53)
                .syn()
                .drop()
                .comment("wait for the listener"),
        );
    }
    for listener in listeners(OUTBOUND_PORT) {
        chain = chain.with(Rule::new().tcp().tproxy(listener).accept());
    }
    chain.with(
        Rule::new()
            .tcp()
            .syn()
            .drop()
            .comment("wait for the listener"),
    )
}

fn inbound(rules: &PodRules) -> Chain {
    let mut chain = Chain::new("inbound");
    for interface in &rules.reroute_interfaces {
        // The mark is there before routing, so it decides where the packet goes.
        let rule = Rule::new().interface_in(interface);
        chain = chain.with(rule.set_mark(OUTBOUND_MARK, MARK_MASK).goto("outbound"));
    }
    chain = chain
        .with(
            Rule::new()
                .source(IpNet::from(IpAddr::V4(PROBE_ADDRESS_V4)))
                .accept()
                .comment("probes"),
        )
        .with(
            Rule::new()
                .source(IpNet::from(IpAddr::V6(PROBE_ADDRESS_V6)))
                .accept()
                .comment("probes"),
        )
        .with(
            Rule::new()
                .tcp()
                .destination_port(TUNNEL_PORT)
                .accept()
                .comment("tunnels"),
        );
    if !rules.inbound {
        return chain.with(
            Rule::new()
                .set_mark(BYPASS_MARK, MARK_MASK)
                .accept()
                .comment("inbound opted out"),
        );
    }
    for listener in listeners(INBOUND_PORT) {
        // A socket that is there already (an answer to the pod's own connection) is
        // found first and is no transparent one: the packet just goes on.
        chain = chain.with(Rule::new().tcp().tproxy(listener).accept());
    }
    chain.with(
        Rule::new()
            .tcp()
            .syn()
            .drop()
            .comment("wait for the listener"),
    )
}

/// The listener's addresses for `tproxy`; a listener on the unspecified address is
/// found under them too.
fn listeners(port: u16) -> [SocketAddr; 2] {
    [
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
        SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), port),
    ]
}

/// If the ip rule is missing, marked packets would leave the pod in plain text.
fn leak_guard() -> Chain {
    Chain::base(
        "postrouting",
        base(ChainKind::Filter, Hook::Postrouting, FILTER),
    )
    .with(
        Rule::new()
            .interface_out_not(LOOPBACK)
            .mark(OUTBOUND_MARK, MARK_MASK)
            .drop()
            .comment("never past the node proxy"),
    )
}

/// First packets to these ports, and with `dns` every query over UDP, must find a
/// listener.
pub(crate) fn input(ports: &[u16], dns: bool) -> Chain {
    let chain = Chain::base("input", base(ChainKind::Filter, Hook::Input, FILTER));
    let mut chain = ports.iter().fold(chain, |chain, port| {
        let rule = Rule::new().tcp().destination_port(*port).syn();
        chain.with(rule.goto("listener"))
    });
    if dns {
        let rule = Rule::new().udp().destination_port(DNS_PORT);
        chain = chain.with(rule.goto("listener"));
    }
    chain
}

/// Drops a connection's first packet and a DNS query where nobody listens, so that
/// the client sends it again while the node proxy starts, in place of being refused.
pub(crate) fn listener_guard() -> Chain {
    Chain::new("listener")
        // Also a half-open or dying connection of the same client.
        .with(Rule::new().tcp().socket_transparent().accept())
        .with(Rule::new().tcp().socket_wildcard().accept())
        // Names are asked for on loopback alone, where the socket is no wildcard.
        .with(
            Rule::new()
                .udp()
                .socket_mark(PROXY_MARK, MARK_MASK)
                .accept(),
        )
        .with(Rule::new().drop().comment("wait for the listener"))
}

/// One port that the node's kubelet probes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProbeTarget {
    /// The pod's address.
    pub ip: IpAddr,
    /// The probed port.
    pub port: u16,
    /// The pod's UID.
    pub uid: String,
}

/// Name and family of the node's table. Several meshes on one machine have nodes in
/// namespaces of their own, so one name is enough.
#[must_use]
pub fn host_table_id() -> TableId {
    TableId::new(Family::Inet, "culvert-probes")
}

/// The node's rules: what a local socket sends to a probed port of an enrolled pod
/// comes from the probe address. Forwarded traffic has no local socket, and another
/// port of the same pod is not exempt.
#[must_use]
pub fn host_table(targets: &[ProbeTarget]) -> Table {
    let mut table = Table::new(Family::Inet, "culvert-probes");
    let mut chain = Chain::base(
        "postrouting",
        // Before masquerading rules, which would decide first.
        base(ChainKind::Nat, Hook::Postrouting, SRCNAT - 5),
    );
    for (name, address, field, probe) in [
        (
            "probes4",
            KeyType::Ipv4,
            Field::Destination4,
            IpAddr::V4(PROBE_ADDRESS_V4),
        ),
        (
            "probes6",
            KeyType::Ipv6,
            Field::Destination6,
            IpAddr::V6(PROBE_ADDRESS_V6),
        ),
    ] {
        let elements = targets
            .iter()
            .filter(|target| target.ip.is_ipv4() == probe.is_ipv4())
            .map(|target| {
                Element::new([target.ip.into(), target.port.into()]).comment(&target.uid)
            });
        table = table.with_set(Set::new(name, &[address, KeyType::Port]).with(elements));
        chain = chain.with(
            Rule::new()
                .tcp()
                .from_local_socket()
                .in_set(&[field, Field::DestinationPort], name)
                .snat(probe)
                .comment("probes"),
        );
    }
    table.with_chain(chain)
}
