//! The head of a CONNECT, as text: request line and headers.

#![no_main]

use libfuzzer_sys::fuzz_target;

use culvert_hbone::head;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((authority, _headers)) = head::parse(bytes) {
        // What is accepted can be written and read again, and means the same.
        let text = authority.to_string();
        let again = culvert_hbone::authority::parse(&text).expect("an accepted authority");
        assert_eq!(again, authority, "{text}");
    }
});
