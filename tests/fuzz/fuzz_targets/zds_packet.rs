//! A packet of the CNI agent to the node proxy.

#![no_main]

use libfuzzer_sys::fuzz_target;

use culvert_node_proxy::pods::packet;

fuzz_target!(|bytes: &[u8]| {
    let _ = packet::decode(bytes);
});
