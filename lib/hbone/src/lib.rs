//! culvert-hbone
