//! The rules that do translate addresses: DNS over UDP, whose answer must come from
//! the server that was asked, and the whole redirect where the kernel lacks `tproxy`.

use std::net::IpAddr;

use culvert_nft::{Chain, ChainKind, Family, Hook, Protocol, Rule, Table};
use ipnet::IpNet;

use super::{
    Circumstances, DNS_PORT, INBOUND_PORT, LOOPBACK, MARK_MASK, OUTBOUND_PORT, POD_TABLE,
    PROBE_ADDRESS_V4, PROBE_ADDRESS_V6, PROXY_MARK, PodRules, TUNNEL_PORT, base, established_sets,
    exempt_output, input, listener_guard,
};

const RAW: i32 = -300;
const DSTNAT: i32 = -100;

/// Sends DNS queries over UDP to the listener on loopback.
pub(super) fn dns_output() -> Chain {
    Chain::base("dns", base(ChainKind::Nat, Hook::Output, DSTNAT)).with(dns_rule(Protocol::Udp))
}

fn dns_rule(protocol: Protocol) -> Rule {
    Rule::new()
        .protocol(protocol)
        .destination_port(53)
        .interface_out_not(LOOPBACK)
        .mark_not(PROXY_MARK, MARK_MASK)
        .redirect(DNS_PORT)
        .comment("DNS")
}

/// Keeps TCP out of the connection tracking that [`dns_output`] turned on.
pub(super) fn untracked() -> [Chain; 2] {
    [
        ("raw-output", Hook::Output),
        ("raw-prerouting", Hook::Prerouting),
    ]
    .map(|(name, hook)| {
        Chain::base(name, base(ChainKind::Filter, hook, RAW))
            .with(Rule::new().tcp().no_track().comment("no TCP state needed"))
    })
}

/// The redirect by address translation alone.
pub(super) fn redirect_table(rules: &PodRules, circumstances: &Circumstances) -> Table {
    let mut table = Table::new(Family::Inet, POD_TABLE);
    for set in established_sets(&circumstances.established) {
        table = table.with_set(set);
    }
    let mut out = Chain::base("output", base(ChainKind::Nat, Hook::Output, DSTNAT));
    for rule in exempt_output(circumstances) {
        out = out.with(rule);
    }
    if rules.dns {
        out = out
            .with(dns_rule(Protocol::Udp))
            .with(dns_rule(Protocol::Tcp));
    }
    out = out.with(
        Rule::new()
            .tcp()
            .redirect(OUTBOUND_PORT)
            .comment("outbound"),
    );
    let pre = prerouting(rules);
    table = table.with_chain(out).with_chain(pre);
    if circumstances.socket_match {
        table = table
            .with_chain(input(
                &[OUTBOUND_PORT, INBOUND_PORT, TUNNEL_PORT],
                rules.dns,
            ))
            .with_chain(listener_guard());
    }
    table
}

fn prerouting(rules: &PodRules) -> Chain {
    let hook = base(ChainKind::Nat, Hook::Prerouting, DSTNAT);
    let mut chain =
        Chain::base("prerouting", hook).with(Rule::new().interface_in(LOOPBACK).accept());
    for interface in &rules.reroute_interfaces {
        let rule = Rule::new().interface_in(interface).tcp();
        chain = chain.with(rule.redirect(OUTBOUND_PORT).comment("outbound"));
    }
    if !rules.inbound {
        return chain;
    }
    for probe in [IpAddr::V4(PROBE_ADDRESS_V4), IpAddr::V6(PROBE_ADDRESS_V6)] {
        let rule = Rule::new().source(IpNet::from(probe)).accept();
        chain = chain.with(rule.comment("probes"));
    }
    chain
        .with(Rule::new().tcp().destination_port(TUNNEL_PORT).accept())
        .with(Rule::new().tcp().redirect(INBOUND_PORT).comment("inbound"))
}
