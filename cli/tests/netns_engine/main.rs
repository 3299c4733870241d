//! The one-machine engine on real namespaces, with real programs in pods. Needs
//! root and curl. Every test has a mesh of its own, so they run side by side.

mod families;
mod harness;
mod lifecycle;
mod services;
mod teardown;
