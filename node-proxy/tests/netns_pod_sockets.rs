//! The sockets of a pod by address family. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN: run
//! as root.

use std::net::TcpStream;

use culvert_netns::{Netns, loopback_up, read_sysctl, write_sysctl};
use culvert_node_proxy::pods::sockets::{Dns, open};

fn fresh() -> Netns {
    Netns::create().expect("run as root")
}

#[test]
fn a_pod_without_ipv6_is_served_with_ipv4() {
    let netns = fresh();
    netns.run(loopback_up).expect("enter").expect("loopback");
    let off = || write_sysctl("net.ipv6.conf.all.disable_ipv6", "1");
    netns.run(off).expect("enter").expect("setting");
    let sockets = open(&netns, Dns::On, Vec::new()).expect("sockets");
    assert_eq!((sockets.dns.udp.len(), sockets.dns.tcp.len()), (1, 1));
    for port in [15001, 15006, 15008, 15053] {
        let connect = || TcpStream::connect(("127.0.0.1", port));
        netns.run(connect).expect("enter").expect("a listener");
    }
}

#[test]
fn both_families_are_served_and_all_sockets_can_be_kept() {
    let netns = fresh();
    netns.run(loopback_up).expect("enter").expect("loopback");
    let sockets = open(&netns, Dns::On, Vec::new()).expect("sockets");
    let kept = sockets.duplicates().expect("duplicates");
    let mut kinds: Vec<_> = kept
        .iter()
        .map(|s| (s.kind.port, s.kind.udp, s.kind.ipv6))
        .collect();
    kinds.sort_unstable();
    let expect = [
        (15001, false, true),
        (15006, false, true),
        (15008, false, true),
        (15053, false, false),
        (15053, false, true),
        (15053, true, false),
        (15053, true, true),
    ];
    assert_eq!(kinds, expect);
    let migrate = netns
        .run(|| read_sysctl("net.ipv4.tcp_migrate_req"))
        .expect("enter");
    assert_eq!(migrate.expect("setting"), "1");
    // A connection that waits at the old sockets is found at the inherited ones.
    let connect = || TcpStream::connect(("::1", 15008)).expect("connect");
    let client = netns.run(connect).expect("enter");
    drop(sockets);
    let again = open(&netns, Dns::On, kept).expect("inherited");
    let (_, peer) = again.listeners.tunnel.accept().expect("it has waited");
    assert_eq!(peer.port(), client.local_addr().expect("address").port());
}
