//! culvert-tls
