//! culvert-tests
