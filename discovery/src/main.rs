//! culvert-discovery
fn main() {}
