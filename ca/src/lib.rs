//! culvert-ca
