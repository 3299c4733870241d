//! A DNS message of a pod.

#![no_main]

use libfuzzer_sys::fuzz_target;

use culvert_model::Snapshot;
use culvert_node_proxy::dns::answer::{self, Outcome, Transport};
use culvert_node_proxy::dns::names::NameScope;

fuzz_target!(|bytes: &[u8]| {
    let snapshot = Snapshot::empty();
    let scope = NameScope { namespace: "shop", domain: "cluster.local", search: &[] };
    for transport in [Transport::Udp, Transport::Tcp] {
        // An empty snapshot knows no name: nothing may be made up.
        let outcome = answer::answer(bytes, &snapshot, &scope, transport);
        assert!(!matches!(outcome, Outcome::Reply(_)), "an answer from nothing");
    }
    let _ = answer::server_failure(bytes);
});
