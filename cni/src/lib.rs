//! culvert-cni
