//! A pod of this node, as the CNI agent described it, and its sockets.

use std::fmt;
use std::net::{TcpListener, UdpSocket};
use std::sync::{Arc, OnceLock};

use culvert_identity::Identity;
use culvert_model::WorkloadUid;
use culvert_netns::{Netns, SocketDiag};

/// Outbound connections of the pod's programs are redirected here.
pub const OUTBOUND_PORT: u16 = 15001;
/// Plain inbound connections are redirected here.
pub const INBOUND_PORT: u16 = 15006;
/// Tunnels of peers arrive here.
pub const TUNNEL_PORT: u16 = 15008;
/// DNS queries of the pod's programs are redirected here.
pub const DNS_PORT: u16 = 15053;
/// Carried by every packet of the proxy, so that the pod's rules let it pass.
pub const PROXY_MARK: u32 = 0x539;

/// A pod of this node: its own facts, which hold whatever discovery says.
#[derive(Clone)]
pub struct Pod {
    /// The Kubernetes UID, the key in ZDS.
    pub uid: Arc<str>,
    /// The pod's name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Who it is: our trust domain, its namespace and its service account.
    pub identity: Identity,
    /// Where discovery's record of it is found in a snapshot. The record counts
    /// only if its identity is this pod's: a namesake may have come before.
    pub workload: WorkloadUid,
    /// The pod's network namespace.
    pub netns: Netns,
    /// Where its programs' sockets are asked for.
    pub diag: PodDiag,
}

/// The channel through which the sockets of a pod's programs are asked for,
/// opened when it is needed first; none where the kernel has none.
#[derive(Debug, Clone, Default)]
pub struct PodDiag(Arc<OnceLock<Option<SocketDiag>>>);

impl PodDiag {
    /// The channel, or what `open` gives for it the first time.
    pub(crate) fn get_or_open(
        &self,
        open: impl FnOnce() -> Option<SocketDiag>,
    ) -> Option<&SocketDiag> {
        self.0.get_or_init(open).as_ref()
    }
}

impl fmt::Debug for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

/// The listening sockets of a pod that carry TCP connections, non-blocking, opened
/// in its namespace and marked with [`PROXY_MARK`].
#[derive(Debug)]
pub struct PodListeners {
    /// On [`OUTBOUND_PORT`], transparent.
    pub outbound: TcpListener,
    /// On [`INBOUND_PORT`], transparent.
    pub inbound: TcpListener,
    /// On [`TUNNEL_PORT`].
    pub tunnel: TcpListener,
}

/// The sockets of a pod on [`DNS_PORT`], one of each kind for each address family
/// that its namespace has; non-blocking.
#[derive(Debug, Default)]
pub struct DnsSockets {
    /// TCP, transparent.
    pub tcp: Vec<TcpListener>,
    /// UDP, on loopback.
    pub udp: Vec<UdpSocket>,
}
