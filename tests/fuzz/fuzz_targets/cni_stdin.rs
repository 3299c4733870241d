//! What a container runtime writes to the plugin's standard input.

#![no_main]

use culvert_cni::plugin::NetworkConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(configuration) = NetworkConfig::parse(bytes) {
        let _ = configuration.addresses();
    }
});
