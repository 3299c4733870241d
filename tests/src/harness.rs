//! A mesh under test, and what tests do with it.

pub mod authority;
pub mod binaries;
pub mod capture;
pub mod certificates;
pub mod command;
pub mod envoy;
pub mod files;
pub mod mesh;
pub mod peer;
pub mod processes;
pub mod runner;
pub mod wait;
