//! The pods of this node: learnt from the CNI agent, listeners opened, handed to
//! the workers.

pub mod packet;
mod pod;
pub mod session;

pub use pod::{
    DNS_PORT, DnsSockets, INBOUND_PORT, OUTBOUND_PORT, PROXY_MARK, Pod, PodListeners, TUNNEL_PORT,
};
