//! The programs of `culvert-testkit`: they run in pods and know nothing of the
//! mesh. Each prints its result as one JSON line, so that a test can judge it.

pub mod conversation;
pub mod grpc;
pub mod half_close;
pub mod hold;
pub mod load;
pub mod rate;
pub mod sha1;
pub mod socket;
pub mod statistics;
pub mod websocket;
