//! culvert-ca
fn main() {}
