//! culvert-node-proxy
fn main() {}
