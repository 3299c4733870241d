//! nf_tables over netlink, without the `nft` binary: a table is a value, and the
//! kernel is brought to it in one atomic batch.
//!
//! A caller builds a [`Table`] of chains, rules and sets and calls [`ensure`], which
//! writes only what differs. Everything works in the network namespace of the
//! calling thread. This crate knows nothing of the mesh, and touches no table but
//! the one it is given.

mod batch;
mod dump;
mod expr;
mod field;
mod fingerprint;
mod nla;
mod probe;
mod rule;
mod table;
mod transport;

pub use batch::{ApplyError, Batch};
pub use dump::{
    Change, EnsureError, ReadError, SetDifference, State, ensure, exists, remove, replace, state,
};
pub use field::{Field, IpVersion, KeyType, Protocol, Value};
pub use probe::{Capabilities, ProbeError, probe};
pub use rule::{MapPorts, Reject, Rule, Verdict};
pub use table::{
    Base, Chain, ChainKind, Element, ElementData, Family, Hook, MapData, Policy, Set, Table,
    TableId,
};
pub use transport::TransportError;
