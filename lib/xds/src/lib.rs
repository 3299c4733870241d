//! culvert-xds
