//! What the tests of every level are built from: a mesh brought up through the
//! `culvert` program, commands in its pods, captures on its links, peers with
//! certificates of every fault, and the small programs that run in pods.
//!
//! Test code only: nothing that ships depends on it.

pub mod bench;
pub mod harness;
pub mod kit;
pub mod rules;
