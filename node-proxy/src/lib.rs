//! The node proxy: carries the TCP connections of every enrolled pod of a node in
//! mutually authenticated tunnels, under policy.
//!
//! Control side: `app` wires, `pods` learns pods from the CNI agent, `state` learns
//! the mesh from discovery, `certs` gets certificates, `dns` answers names.
//! Data path: `workers` and what they run.

pub mod access_log;
pub mod admin;
pub mod app;
mod baggage;
pub mod certs;
pub mod channel;
pub mod config;
mod connections;
pub mod dns;
pub mod document;
mod endpoints;
mod fault;
pub mod fixed;
mod inbound;
mod keepalive;
mod local;
mod outbound;
pub mod pods;
mod redirect;
mod refusal;
mod socket;
pub mod state;
pub mod token;
pub mod traffic;
mod tunnels;
pub mod workers;

pub use connections::ConnectionView;
