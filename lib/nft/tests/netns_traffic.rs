//! What the rules do to real connections. Needs root.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use culvert_netns::Netns;
use culvert_nft::{
    Base, Chain, ChainKind, Element, Family, Field, Hook, IpVersion, KeyType, MapPorts, Policy,
    Protocol, Reject, Rule, Set, Table, Value, Verdict, replace,
};

fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let netns = Netns::create().expect("these tests make network namespaces: run them as root");
    netns.run(work).expect("enter the namespace")
}

fn ip(args: &str) {
    let output = Command::new("ip")
        .args(args.split_whitespace())
        .output()
        .expect("these tests set up interfaces with ip: apt-get install iproute2");
    assert!(output.status.success(), "ip {args}: {output:?}");
}

fn base(kind: ChainKind, hook: Hook, priority: i32) -> Base {
    Base {
        kind,
        hook,
        priority,
        policy: Policy::Accept,
    }
}

/// Answers one connection with the listener's address and gives the peer's.
fn serve(listener: &TcpListener) -> SocketAddr {
    let (mut connection, peer) = listener.accept().expect("a connection");
    let own = listener.local_addr().expect("bound").to_string();
    connection.write_all(own.as_bytes()).expect("written");
    peer
}

fn ask(to: SocketAddr) -> String {
    let mut answer = String::new();
    TcpStream::connect(to)
        .expect("connect")
        .read_to_string(&mut answer)
        .expect("an answer");
    answer
}

fn service(vip: IpAddr, endpoints: &[SocketAddr]) -> Table {
    let version = IpVersion::of(vip);
    let (address, destination) = match version {
        IpVersion::V4 => (KeyType::Ipv4, Field::Destination4),
        IpVersion::V6 => (KeyType::Ipv6, Field::Destination6),
    };
    let tcp = Value::Protocol(Protocol::Tcp);
    let count = u32::try_from(endpoints.len()).expect("few");
    let fields = [destination, Field::Protocol, Field::DestinationPort];
    let jump = Verdict::Goto("endpoints".to_owned());
    Table::new(Family::Inet, "services")
        .with_set(
            Set::verdict_map("vips", &[address, KeyType::Protocol, KeyType::Port])
                .with([Element::verdict([vip.into(), tcp, 80_u16.into()], jump)]),
        )
        .with_set(
            Set::map("backends", &[KeyType::Number], &[address, KeyType::Port]).with(
                (0..).zip(endpoints).map(|(index, to): (u32, _)| {
                    Element::values([index.into()], [to.ip().into(), to.port().into()])
                }),
            ),
        )
        .with_chain(
            Chain::base("out", base(ChainKind::Nat, Hook::Output, -100))
                .with(Rule::new().verdict_map(&fields, "vips")),
        )
        .with_chain(Chain::new("endpoints").with(Rule::new().tcp().dnat_map(
            version,
            &[Field::RoundRobin(count)],
            "backends",
            MapPorts::FromMap,
        )))
}

fn check_service(vip: IpAddr, first: IpAddr, second: IpAddr) {
    inside(move || {
        ip("link set lo up");
        for address in [first, second] {
            ip(&format!("addr add {address} dev lo"));
        }
        let family = if vip.is_ipv4() { "-4" } else { "-6" };
        ip(&format!("{family} route add default dev lo"));
        let listeners: Vec<TcpListener> = [first, second]
            .iter()
            .map(|address| TcpListener::bind((*address, 0)).expect("bind"))
            .collect();
        let endpoints: Vec<SocketAddr> = listeners
            .iter()
            .map(|listener| listener.local_addr().expect("bound"))
            .collect();
        replace(&service(vip, &endpoints)).expect("the kernel takes the table");
        let answers: BTreeSet<String> = std::thread::scope(|scope| {
            for listener in &listeners {
                scope.spawn(|| serve(listener));
            }
            (0..2).map(|_| ask(SocketAddr::new(vip, 80))).collect()
        });
        let expect = endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(answers, expect);
    });
}

#[test]
fn a_service_map_spreads_connections_over_both_families() {
    let v4 = |last| IpAddr::V4(Ipv4Addr::new(10, 244, 1, last));
    check_service(Ipv4Addr::new(10, 96, 0, 7).into(), v4(1), v4(2));
    let v6 = |last| IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 0, last));
    let vip = Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 7);
    check_service(vip.into(), v6(1), v6(2));
}

#[test]
fn snat_only_for_elements_of_the_set_and_local_sockets() {
    inside(|| {
        ip("link set lo up");
        let pod = Ipv4Addr::new(10, 244, 1, 9);
        let probe = Ipv4Addr::new(169, 254, 7, 127);
        ip(&format!("addr add {pod}/32 dev lo"));
        ip(&format!("addr add {probe}/32 dev lo"));
        let probed = TcpListener::bind((pod, 0)).expect("bind");
        let other = TcpListener::bind((pod, 0)).expect("bind");
        let at = probed.local_addr().expect("bound");
        let fields = [Field::Destination4, Field::DestinationPort];
        let table = Table::new(Family::Inet, "probes")
            .with_set(
                Set::new("probes4", &[KeyType::Ipv4, KeyType::Port])
                    .with([Element::new([pod.into(), at.port().into()])]),
            )
            .with_chain(
                Chain::base("post", base(ChainKind::Nat, Hook::Postrouting, 100)).with(
                    Rule::new()
                        .tcp()
                        .from_local_socket()
                        .in_set(&fields, "probes4")
                        .snat(probe.into()),
                ),
            );
        replace(&table).expect("the kernel takes the table");
        for (listener, expect) in [(&probed, probe), (&other, pod)] {
            let peer = std::thread::scope(|scope| {
                let peer = scope.spawn(|| serve(listener));
                ask(listener.local_addr().expect("bound"));
                peer.join().expect("served")
            });
            assert_eq!(peer.ip(), IpAddr::V4(expect));
        }
    });
}

#[test]
fn reject_is_seen_at_once() {
    inside(|| {
        ip("link set lo up");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let at = listener.local_addr().expect("bound");
        let table = Table::new(Family::Inet, "refuse").with_chain(
            Chain::base("in", base(ChainKind::Filter, Hook::Input, 0)).with(
                Rule::new()
                    .tcp()
                    .destination_port(at.port())
                    .reject(Reject::TcpReset),
            ),
        );
        replace(&table).expect("the kernel takes the table");
        let error = TcpStream::connect(at).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}
