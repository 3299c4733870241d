//! The node proxy: carries the TCP connections of every enrolled pod of a node in
//! mutually authenticated tunnels, under policy.
//!
//! Control side: `app` wires, `pods` learns pods from the CNI agent, `state` learns
//! the mesh from discovery, `certs` gets certificates, `dns` answers names.
//! Data path: `workers` and what they run.

pub mod certs;
pub mod channel;
pub mod dns;
pub mod document;
pub mod fixed;
pub mod pods;
pub mod state;
pub mod token;
