//! A certificate request as the CA receives it.

#![no_main]

use libfuzzer_sys::fuzz_target;

use culvert_tls::ca;

fuzz_target!(|bytes: &[u8]| {
    let _ = ca::public_key_from_csr(bytes);
});
