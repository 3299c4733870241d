//! culvert-cni
fn main() {}
