//! The CNI plugin and its agent: a pod is enrolled before its first packet, by rules
//! in its network namespace and by handing that namespace to the node proxy.
//!
//! The plugin is a thin client of the agent. The agent is one single-writer state
//! machine; everything else here carries out what it decides. Neither ever sees a
//! private key, and neither runs another program.

pub mod pods;
pub mod redirect;
pub mod rules;
pub mod state;
