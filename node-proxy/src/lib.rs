//! culvert-node-proxy
