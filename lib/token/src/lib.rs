//! culvert-token
