//! culvert-netns
