//! The pods of this node: learnt from the CNI agent, listeners opened, handed to
//! the workers.
//!
//! `packet` reads what the agent sends, `session` decides (no IO), `client` carries
//! messages and does the work, `sockets` opens or inherits a pod's listeners,
//! `keeper` gives duplicates of them to the agent.

pub mod client;
mod host;
pub mod keeper;
mod metrics;
pub mod packet;
mod pod;
pub mod session;
pub mod sockets;
mod view;

pub use host::{DataPath, NodeConfig, NodeHost};
pub use metrics::PodMetrics;
pub use pod::{
    DNS_PORT, DnsSockets, INBOUND_PORT, OUTBOUND_PORT, PROXY_MARK, Pod, PodDiag, PodListeners,
    TUNNEL_PORT,
};
pub use view::PodView;
