//! The one-machine engine behind `culvert up`: a small API server, scheduler,
//! controller manager and kubelet in one background process.

pub(crate) mod controllers;
pub(crate) mod network;
pub(crate) mod object;
pub(crate) mod scheduler;
pub(crate) mod selector;
pub(crate) mod settings;
pub(crate) mod world;
pub(crate) mod kubelet;
