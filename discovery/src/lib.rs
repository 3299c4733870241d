//! culvert-discovery
