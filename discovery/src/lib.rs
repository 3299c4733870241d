//! culvert-discovery: Kubernetes objects in, what every node proxy needs out.
//!
//! ```text
//! watch ──events──▶ index ──world──▶ compile ──▶ publish ──▶ serve ──xDS──▶ node proxies
//!                                        └──────▶ status
//! ```
//!
//! It holds no state but a cache of its source, and no signing key. Losing it
//! stops changes, never traffic.

pub mod admin;
pub mod app;
pub mod compile;
pub mod config;
pub mod engine;
pub mod index;
pub mod metrics;
pub mod publish;
pub mod serve;
pub mod status;
pub mod watch;
