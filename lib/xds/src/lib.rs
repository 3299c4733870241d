//! Delta xDS: how the view of the mesh gets from discovery to its proxies.
//!
//! ```text
//! discovery::publish → encode → server (session::server) → wire
//!     → client (session::client) → decode → model::Snapshot → readers
//! ```
//!
//! The two halves of [`session`] are pure state machines: what to send, what was
//! acknowledged, what a reconnect has to carry. [`client`] and [`server`] only
//! move messages. Types of the wire end here: nothing else sees them.
//!
//! One resource that cannot be read is refused by its name; everything that
//! came with it applies. Where the refused one is a policy that was not known
//! before, its scope is closed until it can be read.

mod chain;
pub mod client;
pub mod decode;
pub mod encode;
#[cfg(test)]
mod fixture;
mod kind;
mod resource;
pub mod server;
pub mod session;

pub use kind::ResourceType;
pub use resource::{ClientView, Resource, ResourceSet};
