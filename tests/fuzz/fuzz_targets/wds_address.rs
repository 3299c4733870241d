//! An encoded workload or service of discovery.

#![no_main]

use libfuzzer_sys::fuzz_target;

use culvert_model::Snapshot;
use culvert_xds::decode;

fuzz_target!(|bytes: &[u8]| {
    // What is accepted can be put into a snapshot.
    if let Ok(change) = decode::address_bytes(bytes) {
        let _ = Snapshot::empty().apply([change]);
    }
});
