//! culvert
