//! The `culvert` command: a mesh on one machine (`up`, `down`), and the questions
//! people ask a mesh (`get`, `status`, `config`, `certs`, `metrics`, `check`).
//!
//! The mesh never needs this program to run, except on one machine, where its
//! engine stands in for Kubernetes.

mod admin;
mod app;
pub mod args;
mod client;
mod commands;
mod dns;
pub mod engine;
mod output;
mod processes;
mod run;
pub mod state;
mod teardown;
mod testserver;

pub use app::{Environment, main};
