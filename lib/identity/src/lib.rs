//! culvert-identity
