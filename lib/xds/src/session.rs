//! Both ends of a delta stream as state machines: messages in, messages out, no
//! IO and no time.

mod client;
mod order;
mod rejection;
mod server;
#[cfg(test)]
mod tests;

pub use client::{ClientSession, Node, Received};
pub use order::next_response;
pub use rejection::Rejection;
pub use server::{Event, Removals, ServerSession, SessionError};

/// A subscription to everything.
const WILDCARD: &str = "*";
