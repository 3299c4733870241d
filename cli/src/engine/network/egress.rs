//! The way out for pods, only when asked for: a link from the bridge's namespace to
//! the machine's own network, with address translation at both ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use culvert_netns::{Netns, read_sysctl, write_sysctl};
use culvert_nft::{Base, Chain, ChainKind, Family, Hook, Policy, Rule, Table, TableId};

use super::links::{ANY_V4, ANY_V6, LinkError, Peer, Route, inside};

/// Name of the way out in the bridge's namespace.
const INNER: &str = "out0";
/// Addresses of the link, inner end first. The range is one of the shared address
/// space for carriers, which nobody's machine or office uses.
const V4: [Ipv4Addr; 2] = [
    Ipv4Addr::new(100, 126, 255, 254),
    Ipv4Addr::new(100, 126, 255, 253),
];
const V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0x172, 0x31, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0xfd00, 0x172, 0x31, 0, 0, 0, 0, 1),
];
/// The settings that have to be on for the machine to forward.
const FORWARDING: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];

/// Name of the machine's end of the link, and of the machine's table.
pub(crate) fn host_link(mesh: &str) -> String {
    // An interface name has at most 15 bytes; a mesh's name at most 12.
    format!("cv-{mesh}")
}

/// What was changed on the machine, to be put back.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Changed {
    /// Settings with their values before.
    pub settings: Vec<(String, String)>,
}

/// What the machine's settings are before [`open`] changes them.
pub(crate) fn before() -> Changed {
    let settings = FORWARDING
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), read_sysctl(name).ok()?)))
        .filter(|(_, value)| value != "1");
    Changed {
        settings: settings.collect(),
    }
}

/// Opens the way out.
pub(crate) fn open(mesh: &str, net: &Netns) -> Result<(), LinkError> {
    let host = Netns::current()?;
    let link = host_link(mesh);
    inside(&host, |links| {
        let link = link.clone();
        async move {
            links.remove(&link).await?;
            let peer = Peer {
                netns: net,
                name: INNER,
                mac: None,
            };
            links.add_pair(&link, None, &peer).await?;
            let index = links.up(&link).await?;
            links.add_address(index, V4[1].into(), 30).await?;
            // A machine without IPv6 gives a way out for IPv4 only.
            let _ = links.add_address(index, V6[1].into(), 64).await;
            Ok(())
        }
    })?;
    inside(net, |links| async move {
        let index = links.up(INNER).await?;
        links.add_address(index, V4[0].into(), 30).await?;
        links.add_address(index, V6[0].into(), 64).await?;
        for (to, via) in [(ANY_V4, IpAddr::from(V4[1])), (ANY_V6, V6[1].into())] {
            links
                .add_route(
                    index,
                    Route {
                        to,
                        via: Some(via),
                        source: None,
                    },
                )
                .await?;
        }
        Ok(())
    })?;
    net.run(|| culvert_nft::replace(&masquerade("culvert-out", INNER)))??;
    culvert_nft::replace(&masquerade_from(&link))?;
    for name in FORWARDING {
        write_sysctl(name, "1")?;
    }
    Ok(())
}

/// Closes the way out and puts the machine's settings back. Answers with what was
/// there to remove.
pub(crate) fn close(mesh: &str, changed: &Changed) -> Result<Vec<String>, LinkError> {
    let host = Netns::current()?;
    let link = host_link(mesh);
    let mut removed = Vec::new();
    let there = inside(&host, |links| {
        let link = link.clone();
        async move {
            let there = links.index(&link).await.is_ok();
            links.remove(&link).await?;
            Ok(there)
        }
    })?;
    if there {
        removed.push(format!("link {link}"));
    }
    let id = TableId::new(Family::Inet, &link);
    if culvert_nft::exists(&id)? {
        culvert_nft::remove(&id)?;
        removed.push(id.to_string());
    }
    for (name, value) in &changed.settings {
        write_sysctl(name, value)?;
        removed.push(format!("setting {name}=1"));
    }
    Ok(removed)
}

fn postrouting() -> Base {
    Base {
        kind: ChainKind::Nat,
        hook: Hook::Postrouting,
        priority: 100,
        policy: Policy::Accept,
    }
}

/// Everything that leaves by the link gets the link's address.
fn masquerade(table: &str, link: &str) -> Table {
    let rule = Rule::new().interface_out(link).masquerade();
    Table::new(Family::Inet, table).with_chain(Chain::base("postrouting", postrouting()).with(rule))
}

/// Everything that came by the link gets the machine's address.
fn masquerade_from(link: &str) -> Table {
    let mut chain = Chain::base("postrouting", postrouting());
    let nets = [(IpAddr::from(V4[0]), 30), (V6[0].into(), 64)];
    for (address, prefix) in nets {
        if let Ok(net) = ipnet::IpNet::new(address, prefix) {
            chain = chain.with(
                Rule::new()
                    .source(net.trunc())
                    .interface_out_not(link)
                    .masquerade(),
            );
        }
    }
    Table::new(Family::Inet, link).with_chain(chain)
}
