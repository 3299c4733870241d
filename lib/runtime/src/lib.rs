//! culvert-runtime
