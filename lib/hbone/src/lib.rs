//! The tunnel of the mesh (HBONE): one HTTP/2 CONNECT stream for each
//! application connection, over any byte stream.
//!
//! In the flow of a connection this crate sits between the proxies' decision
//! and TLS: it writes and reads the CONNECT head, keeps tunnels alive and
//! pooled, and carries bytes, half-closes and resets both ways. It knows no TLS
//! and no policy, spawns no task, and never turns an abort into a clean end.
//!
//! Everything here is single-threaded by design: a connection, its tunnel and
//! its pool live on one worker, so that nothing is locked and nothing wakes
//! another thread.

pub mod authority;
pub mod client;
mod coalesce;
mod fault;
pub mod head;
pub mod headers;
mod liveness;
pub mod pool;
mod read_ahead;
pub mod relay;
mod scratch;
pub mod server;
mod settings;
mod stream;
mod windows;

pub use authority::Authority;
pub use fault::{OpenError, TunnelError};
pub use head::ConnectHead;
pub use read_ahead::ReadAhead;
pub use scratch::read_chunk;
pub use settings::Settings;
pub use stream::TunnelStream;
pub use windows::Windows;
