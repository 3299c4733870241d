//! An encoded policy of discovery.

#![no_main]

use libfuzzer_sys::fuzz_target;

use culvert_model::{Change, Snapshot};
use culvert_xds::decode;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(policy) = decode::authorization_bytes(bytes) {
        let _ = Snapshot::empty().apply([Change::Policy(policy)]);
    }
});
