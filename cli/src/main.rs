//! culvert
fn main() {}
