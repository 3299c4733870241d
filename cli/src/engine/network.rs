//! The network of the one-machine cluster: a bridge in a namespace of its own, one
//! namespace for each node and each pod, routes between them, and service
//! addresses. Nothing of it is in the machine's own network, unless the person
//! asked for a way out.

pub(crate) mod addresses;
pub(crate) mod egress;
pub(crate) mod links;
pub(crate) mod pods;
pub(crate) mod services;
pub(crate) mod topology;
