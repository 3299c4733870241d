//! The certificate service: it checks who asks, and for what, and signs
//! short-lived certificates.
//!
//! ```text
//! request → authenticate (whose token) → authorize (which identity) → issue (sign) → answer
//! clock, admin → rotate (what is due) → store (commit) → bundle file, signing certificate
//! ```
//!
//! It must never know about routes or policies, and never tell a caller why it
//! was refused: the reason is in the log and in the metrics.

pub mod admin;
pub mod app;
pub mod authenticate;
pub mod authorize;
pub mod config;
pub mod issue;
pub mod metrics;
pub mod pods;
pub mod rotate;
pub mod serve;
pub mod service;
pub mod store;
