//! Kubernetes objects from files: typed, checked, and with the file, line,
//! object and field in every fault. One broken document never keeps another
//! from being loaded. Reads files and nothing else; changes nothing.

mod decode;
mod fault;
mod files;
mod kind;
mod object;
mod path;
pub mod policy;
mod policy_object;
pub mod selector;
mod split;
mod tree;
mod unknown;
mod validate;
mod words;

pub use decode::{Loaded, UnknownObject};
pub use fault::{Fault, FaultReason, Location, ObjectRef, Severity};
pub use files::{
    Limits, drop_duplicates, is_object_file, list_files, load_dir, load_dir_within, load_file,
    load_file_within, parse, parse_bytes,
};
pub use kind::{AuthorizationPolicy, Body, Kind, PeerAuthentication};
pub use object::Object;
pub use path::{FieldPath, Segment};
pub use policy_object::{PolicyObject, PolicySpec};

#[cfg(test)]
mod tests;
