//! The bridge's namespace and the nodes' namespaces.

use std::net::IpAddr;

use culvert_netns::{Netns, create_named, write_sysctl};

use super::addresses::{
    BRIDGE, CONTROL_V4, CONTROL_V6, INTERFACE, Names, node_ips, pod_range_v4, pod_range_v6,
};
use super::links::{ANY_V4, ANY_V6, LinkError, Links, Peer, Route, inside};

/// Prefix lengths of the nodes' network.
const NODE_PREFIX: [u8; 2] = [16, 64];

/// Makes the namespace of the bridge and control plane, with routes to every
/// node's pods.
pub(crate) fn make_net(names: &Names, nodes: u8) -> Result<Netns, LinkError> {
    let netns = create_named(&names.net())?;
    netns.run(forwarding)??;
    inside(&netns, |links| async move {
        links.loopback_up().await?;
        links.add_bridge(BRIDGE).await?;
        let index = links.up(BRIDGE).await?;
        for (address, prefix) in [IpAddr::from(CONTROL_V4), CONTROL_V6.into()]
            .into_iter()
            .zip(NODE_PREFIX)
        {
            links.add_address(index, address, prefix).await?;
        }
        // A service port that no node translates must not leave by the way out.
        links.add_unreachable([10, 96, 0, 0].into(), 16).await?;
        links
            .add_unreachable([0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0].into(), 112)
            .await?;
        for node in 1..=nodes {
            pod_routes(&links, index, node).await?;
        }
        Ok(())
    })?;
    Ok(netns)
}

/// Makes a node's namespace, joined to the bridge.
pub(crate) fn make_node(
    names: &Names,
    net: &Netns,
    node: u8,
    nodes: u8,
) -> Result<Netns, LinkError> {
    let netns = create_named(&names.node(&format!("node-{node}")))?;
    netns.run(forwarding)??;
    let port = format!("n{node}");
    inside(net, |links| {
        let netns = &netns;
        async move {
            let peer = Peer {
                netns,
                name: INTERFACE,
                mac: None,
            };
            links.add_pair(&port, None, &peer).await?;
            links.plug(&port, BRIDGE).await
        }
    })?;
    inside(&netns, |links| async move {
        links.loopback_up().await?;
        let index = links.up(INTERFACE).await?;
        for (address, prefix) in node_ips(node).into_iter().zip(NODE_PREFIX) {
            links.add_address(index, address, prefix).await?;
        }
        for other in (1..=nodes).filter(|other| *other != node) {
            pod_routes(&links, index, other).await?;
        }
        for (to, via) in [
            (ANY_V4, IpAddr::from(CONTROL_V4)),
            (ANY_V6, CONTROL_V6.into()),
        ] {
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
    Ok(netns)
}

/// Routes to the pods of a node.
async fn pod_routes(links: &Links, index: u32, node: u8) -> Result<(), LinkError> {
    let [v4, v6] = node_ips(node);
    let (range, prefix) = pod_range_v4(node);
    let route = Route {
        to: (range.into(), prefix),
        via: Some(v4),
        source: None,
    };
    links.add_route(index, route).await?;
    let (range, prefix) = pod_range_v6(node);
    let route = Route {
        to: (range.into(), prefix),
        via: Some(v6),
        source: None,
    };
    links.add_route(index, route).await
}

/// Kernel settings of a namespace that forwards. Runs inside it.
fn forwarding() -> Result<(), culvert_netns::SysctlError> {
    for (name, value) in [
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv6.conf.all.forwarding", "1"),
        ("net.ipv6.conf.default.forwarding", "1"),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        ("net.ipv6.conf.all.accept_ra", "0"),
        ("net.ipv6.conf.default.accept_ra", "0"),
        ("net.ipv6.conf.default.accept_dad", "0"),
        ("net.ipv4.conf.all.send_redirects", "0"),
        ("net.ipv4.conf.default.send_redirects", "0"),
    ] {
        write_sysctl(name, value)?;
    }
    Ok(())
}
