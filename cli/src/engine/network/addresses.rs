//! Names and addresses of everything in the cluster's network. All are functions
//! of the mesh's name, a node's number and a pod's number on it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Name of the bridge.
pub(crate) const BRIDGE: &str = "br0";
/// Interface of a node and of a pod.
pub(crate) const INTERFACE: &str = "eth0";
/// Where the control plane and DNS listen.
pub(crate) const CONTROL_V4: Ipv4Addr = Ipv4Addr::new(172, 30, 255, 254);
/// Where the control plane and DNS listen.
pub(crate) const CONTROL_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0xff, 0xfe);
/// Every pod's way out.
pub(crate) const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// Every pod's way out.
pub(crate) const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Longest name that the file system takes.
const FILE_NAME_MAX: usize = 255;

/// Names of the network namespaces of a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// Names of a mesh.
    pub(crate) fn new(mesh: &str) -> Self {
        Self {
            prefix: format!("cv-{mesh}-"),
        }
    }

    /// What all names of the mesh begin with. A mesh's name has no hyphen, so no
    /// other mesh's names do.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The namespace with the bridge and the control plane.
    pub(crate) fn net(&self) -> String {
        format!("{}net", self.prefix)
    }

    /// A node's namespace.
    pub(crate) fn node(&self, node: &str) -> String {
        format!("{}{node}", self.prefix)
    }

    /// A pod's namespace. Names that would be too long for a file are cut and end
    /// in the pod's unique id.
    pub(crate) fn pod(&self, namespace: &str, pod: &str, uid: &str) -> String {
        let full = format!("{}{namespace}-{pod}", self.prefix);
        if full.len() <= FILE_NAME_MAX {
            return full;
        }
        let cut: String = full.chars().take(FILE_NAME_MAX - uid.len() - 1).collect();
        format!("{cut}-{uid}")
    }
}

/// Number of a node from its name.
pub(crate) fn node_number(node: &str) -> Option<u8> {
    node.strip_prefix("node-")?.parse().ok()
}

/// Address of a node.
pub(crate) fn node_v4(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 30, 0, node)
}

/// Address of a node.
pub(crate) fn node_v6(node: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, u16::from(node))
}

/// Addresses of a node.
pub(crate) fn node_ips(node: u8) -> [IpAddr; 2] {
    [node_v4(node).into(), node_v6(node).into()]
}

/// Network of a node's pods and its prefix length.
pub(crate) fn pod_range_v4(node: u8) -> (Ipv4Addr, u8) {
    (Ipv4Addr::new(10, 244, node, 0), 24)
}

/// Network of a node's pods and its prefix length.
pub(crate) fn pod_range_v6(node: u8) -> (Ipv6Addr, u8) {
    (
        Ipv6Addr::new(0xfd00, 0x10, 0x244, u16::from(node), 0, 0, 0, 0),
        64,
    )
}

/// Address of a pod by its number on the node.
pub(crate) fn pod_v4(node: u8, pod: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node, pod)
}

/// Address of a pod by its number on the node.
pub(crate) fn pod_v6(node: u8, pod: u8) -> Ipv6Addr {
    Ipv6Addr::new(
        0xfd00,
        0x10,
        0x244,
        u16::from(node),
        0,
        0,
        0,
        u16::from(pod),
    )
}

/// Link-layer address of a pod's interface: locally administered, from its number.
pub(crate) fn pod_mac(node: u8, pod: u8) -> [u8; 6] {
    [0x0a, 0x58, 10, 244, node, pod]
}

/// Link-layer address of the node's end of a pod's link.
pub(crate) fn gateway_mac(node: u8, pod: u8) -> [u8; 6] {
    [0x0a, 0x57, 10, 244, node, pod]
}

/// Name of the node's end of a pod's link.
pub(crate) fn pod_link(pod: u8) -> String {
    format!("pod{pod}")
}

/// A link-layer address as people write it.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_file_system() {
        let names = Names::new("default");
        assert_eq!(names.pod("shop", "web-0", "u"), "cv-default-shop-web-0");
        let long = names.pod(&"n".repeat(63), &"p".repeat(253), "0123");
        assert_eq!(long.len(), FILE_NAME_MAX);
        assert!(long.ends_with("-0123"));
    }

    #[test]
    fn addresses_follow_the_numbers() {
        assert_eq!(pod_v4(2, 7).to_string(), "10.244.2.7");
        assert_eq!(pod_v6(2, 7).to_string(), "fd00:10:244:2::7");
        assert_eq!(node_v6(3).to_string(), "fd00:172:30::3");
        assert_eq!(CONTROL_V6.to_string(), "fd00:172:30::ff:fe");
        assert_eq!(node_number("node-12"), Some(12));
        assert_eq!(node_number("worker"), None);
    }
}
