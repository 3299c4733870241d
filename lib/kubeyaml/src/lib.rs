//! culvert-kubeyaml
