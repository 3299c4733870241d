//! Kubernetes objects as a user writes them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = culvert_kubeyaml::parse_bytes(bytes);
});
