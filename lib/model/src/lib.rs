//! culvert-model
