//! The CNI plugin and its agent: a pod is enrolled before its first packet, by rules
//! in its network namespace and by handing that namespace to the node proxy.
//!
//! The plugin is a thin client of the agent. The agent is one single-writer state
//! machine; everything else here carries out what it decides. Neither ever sees a
//! private key, and neither runs another program.
//!
//! In reading order: [`plugin`] asks over [`wire`], [`server`] passes it on to the
//! [`agent`]'s loop, [`state`] decides with what [`objects`] says of [`pods`],
//! [`jobs`] bring the [`rules`] into a namespace ([`redirect`]), [`zds`] hands it to
//! the node proxy, whose sockets the [`keeper`] keeps, and [`disk`] remembers.

pub mod admin;
pub mod agent;
pub mod app;
pub mod config;
pub mod disk;
pub mod jobs;
pub mod keeper;
pub mod metrics;
pub mod objects;
pub mod packet;
pub mod plugin;
pub mod pods;
pub mod redirect;
pub mod rules;
pub mod server;
pub mod state;
pub mod wire;
pub mod zds;
