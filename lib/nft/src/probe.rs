//! Whether this kernel can do what the rules need, found out before the first rule
//! is written and without leaving a trace.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::batch::{ApplyError, Batch};
use crate::rule::Rule;
use crate::table::{Base, Chain, ChainKind, Family, Hook, Policy, Table};

/// What the kernel offers in the calling thread's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Packets can be handed to transparent listeners.
    pub tproxy: bool,
    /// Rules can look at the socket that would take a packet.
    pub socket: bool,
    /// A packet whose mark changes is routed again.
    pub route_chain: bool,
    /// Connections can be redirected by address translation.
    pub redirect: bool,
    /// Source addresses can be translated.
    pub snat: bool,
}

/// nf_tables itself cannot be used: trying again will not help.
#[derive(Debug, thiserror::Error)]
#[error(
    "nf_tables is not usable here: a kernel with CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET (or the \
     module nf_tables) and CAP_NET_ADMIN are needed"
)]
pub struct ProbeError(#[source] ApplyError);

/// Tries one rule of each kind; none takes effect.
///
/// # Errors
/// When not even an empty base chain is accepted.
pub fn probe() -> Result<Capabilities, ProbeError> {
    let filter = |hook| (ChainKind::Filter, hook, -150);
    try_rule(filter(Hook::Prerouting), Rule::new().accept()).map_err(ProbeError)?;
    let works = |base, rule| try_rule(base, rule).is_ok();
    let listener = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 15001);
    let elsewhere = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Ok(Capabilities {
        tproxy: works(
            filter(Hook::Prerouting),
            Rule::new().tcp().tproxy(listener).accept(),
        ),
        socket: works(
            filter(Hook::Input),
            Rule::new().tcp().socket_wildcard().accept(),
        ),
        route_chain: works(
            (ChainKind::Route, Hook::Output, -150),
            Rule::new().set_mark(1, u32::MAX),
        ),
        redirect: works(
            (ChainKind::Nat, Hook::Output, -100),
            Rule::new().tcp().redirect(15001),
        ),
        snat: works(
            (ChainKind::Nat, Hook::Postrouting, 100),
            Rule::new().tcp().snat(elsewhere),
        ),
    })
}

fn try_rule((kind, hook, priority): (ChainKind, Hook, i32), rule: Rule) -> Result<(), ApplyError> {
    let base = Base {
        kind,
        hook,
        priority,
        policy: Policy::Accept,
    };
    let table =
        Table::new(Family::Inet, "culvert-probe").with_chain(Chain::base("probe", base).with(rule));
    let mut batch = Batch::new();
    batch.replace_table(&table);
    batch.check()
}
