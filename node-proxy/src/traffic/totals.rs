//! Counters of the data path that have no workload in them.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use culvert_model::Reject;
use culvert_tls::Fault;

use super::Reporter;

/// Why a connection was not taken at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shed {
    /// The process is out of descriptors.
    Descriptors,
    /// The worker holds as many connections as it may.
    Connections,
}

impl Shed {
    pub(crate) const ALL: [Self; 2] = [Self::Descriptors, Self::Connections];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Descriptors => "descriptors",
            Self::Connections => "connections",
        }
    }
}

/// One number for each member of a closed set.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(super) handshakes: [[AtomicU64; Fault::ALL.len()]; 2],
    pub(super) rejects: [AtomicU64; Reject::ALL.len()],
    pub(super) shed: [AtomicU64; Shed::ALL.len()],
    pub(super) sockets: [AtomicI64; 2],
    pub(super) tunnels: [AtomicI64; 2],
    pub(super) ejections: AtomicU64,
    pub(super) unspoofed: AtomicU64,
    pub(super) panics: AtomicU64,
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Counts one thing for as long as it lives.
#[derive(Debug)]
pub(crate) struct Gauge<'a>(&'a AtomicI64);

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Totals {
    pub(crate) fn handshake_failed(&self, side: Reporter, fault: Fault) {
        let index = Fault::ALL.iter().position(|one| *one == fault);
        if let Some(index) = index {
            bump(&self.handshakes[side as usize][index]);
        }
    }

    pub(crate) fn rejected(&self, reject: Reject) {
        if let Some(index) = Reject::ALL.iter().position(|one| *one == reject) {
            bump(&self.rejects[index]);
        }
    }

    pub(crate) fn shed(&self, why: Shed) {
        bump(&self.shed[why as usize]);
    }

    pub(crate) fn ejected(&self) {
        bump(&self.ejections);
    }

    pub(crate) fn unspoofed(&self) {
        bump(&self.unspoofed);
    }

    pub(crate) fn panicked(&self) {
        bump(&self.panics);
    }

    pub(crate) fn socket_opened(&self, side: Reporter) {
        self.sockets[side as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn socket_closed(&self, side: Reporter) {
        self.sockets[side as usize].fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a tunnel until the answer is dropped.
    pub(crate) fn tunnel(&self, side: Reporter) -> Gauge<'_> {
        let gauge = &self.tunnels[side as usize];
        gauge.fetch_add(1, Ordering::Relaxed);
        Gauge(gauge)
    }
}
