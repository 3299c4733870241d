//! Network namespaces and the sockets that a mesh needs in them: opening and
//! entering namespaces, passing descriptors between processes, transparent
//! listeners, connections from a foreign source address, original destinations.
//!
//! Every line of unsafe code of the project is in this crate. Nothing here knows
//! what a workload or a tunnel is, and nothing here starts a task.

mod connect;
mod diag;
mod exec;
mod ioctl;
mod limits;
mod listen;
mod namespace;
mod seqpacket;
mod sockopt;
mod sysctl;

pub use connect::{ConnectError, ConnectOptions, tcp_socket, udp_socket};
pub use diag::{DiagError, SocketDiag};
pub use exec::{ExecError, ExecPlan, FileBind, exec};
pub use ioctl::{InterfaceError, loopback_up};
pub use limits::{LimitError, raise_open_files};
pub use listen::{Family, ListenError, ListenOptions, listen_tcp, listen_udp};
pub use namespace::{
    Netns, NetnsError, NetnsThreadError, create_named, delete_named, list_named, named_path,
};
pub use seqpacket::{
    AsyncSeqPacket, AsyncSeqPacketListener, FDS_MAX, Packet, PeerCredentials, SeqPacket,
    SeqPacketError, SeqPacketListener,
};
pub use sockopt::{
    Keepalive, SockoptError, abort_on_close, canonical, keepalive, mark, original_destination,
    set_keepalive, set_mark, set_user_timeout,
};
pub use sysctl::{SysctlError, read_sysctl, write_sysctl};
