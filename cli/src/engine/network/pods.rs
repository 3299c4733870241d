//! A pod's network namespace: the primary step before the CNI plugin is called.

use std::net::IpAddr;

use culvert_netns::{Netns, create_named, delete_named, write_sysctl};

use super::addresses::{
    GATEWAY_V4, GATEWAY_V6, INTERFACE, gateway_mac, node_ips, pod_link, pod_mac, pod_v4, pod_v6,
};
use super::links::{ANY_V4, ANY_V6, LinkError, Links, Peer, Route, inside};
use crate::engine::settings::{Families, Family};

/// What to make for a pod.
#[derive(Debug, Clone)]
pub(crate) struct PodNetwork {
    /// Name of its namespace.
    pub netns: String,
    /// Number of its node.
    pub node: u8,
    /// Its number on the node.
    pub number: u8,
    /// Its families.
    pub families: Families,
    /// Whether the kernel's IPv6 is off inside.
    pub disable_ipv6: bool,
}

impl PodNetwork {
    /// The pod's addresses, preferred one first.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let address = |family| match family {
            Family::V4 => IpAddr::from(pod_v4(self.node, self.number)),
            Family::V6 => pod_v6(self.node, self.number).into(),
        };
        self.families.iter().map(address).collect()
    }

    fn gateway_of(address: IpAddr) -> IpAddr {
        if address.is_ipv4() {
            GATEWAY_V4.into()
        } else {
            GATEWAY_V6.into()
        }
    }
}

/// Makes the namespace, link, addresses and routes of a pod. What an earlier try
/// left is taken away first.
pub(crate) fn attach(node: &Netns, pod: &PodNetwork) -> Result<Netns, LinkError> {
    detach(node, pod)?;
    let netns = create_named(&pod.netns)?;
    netns.run(|| settings(pod.disable_ipv6))??;
    let link = pod_link(pod.number);
    let (near, far) = (
        gateway_mac(pod.node, pod.number),
        pod_mac(pod.node, pod.number),
    );
    inside(node, |links| {
        let netns = &netns;
        async move {
            let peer = Peer {
                netns,
                name: INTERFACE,
                mac: Some(far),
            };
            links.add_pair(&link, Some(near), &peer).await?;
            node_side(&links, &link, pod).await
        }
    })?;
    inside(&netns, |links| async move { pod_side(&links, pod).await })?;
    Ok(netns)
}

/// Takes a pod's link and namespace away; what is not there is fine.
pub(crate) fn detach(node: &Netns, pod: &PodNetwork) -> Result<(), LinkError> {
    let link = pod_link(pod.number);
    inside(node, |links| async move { links.remove(&link).await })?;
    delete_named(&pod.netns)?;
    Ok(())
}

async fn node_side(links: &Links, link: &str, pod: &PodNetwork) -> Result<(), LinkError> {
    let index = links.up(link).await?;
    let [node_v4, node_v6] = node_ips(pod.node);
    for address in pod.addresses() {
        let (gateway, prefix) = match address {
            IpAddr::V4(_) => (IpAddr::from(GATEWAY_V4), 32),
            IpAddr::V6(_) => (GATEWAY_V6.into(), 64),
        };
        links.add_address(index, gateway, prefix).await?;
        links
            .add_neighbour(index, address, pod_mac(pod.node, pod.number))
            .await?;
        let (host, source) = if address.is_ipv4() {
            (32, node_v4)
        } else {
            (128, node_v6)
        };
        let route = Route {
            to: (address, host),
            via: None,
            source: Some(source),
        };
        links.add_route(index, route).await?;
    }
    Ok(())
}

async fn pod_side(links: &Links, pod: &PodNetwork) -> Result<(), LinkError> {
    links.loopback_up().await?;
    let index = links.up(INTERFACE).await?;
    for address in pod.addresses() {
        let host = if address.is_ipv4() { 32 } else { 128 };
        let any = if address.is_ipv4() { ANY_V4 } else { ANY_V6 };
        let gateway = PodNetwork::gateway_of(address);
        links.add_address(index, address, host).await?;
        links
            .add_neighbour(index, gateway, gateway_mac(pod.node, pod.number))
            .await?;
        links
            .add_route(
                index,
                Route {
                    to: (gateway, host),
                    via: None,
                    source: None,
                },
            )
            .await?;
        let route = Route {
            to: any,
            via: Some(gateway),
            source: Some(address),
        };
        links.add_route(index, route).await?;
    }
    Ok(())
}

/// Kernel settings of a pod's namespace. Runs inside it.
fn settings(disable_ipv6: bool) -> Result<(), culvert_netns::SysctlError> {
    for (name, value) in [
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        // As a container runtime sets it: any port without a privilege.
        ("net.ipv4.ip_unprivileged_port_start", "0"),
        ("net.ipv4.ping_group_range", "0 2147483647"),
    ] {
        write_sysctl(name, value)?;
    }
    if disable_ipv6 {
        write_sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
        write_sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
    } else {
        write_sysctl("net.ipv6.conf.all.accept_ra", "0")?;
        write_sysctl("net.ipv6.conf.default.accept_ra", "0")?;
        write_sysctl("net.ipv6.conf.default.accept_dad", "0")?;
    }
    Ok(())
}
