//! The redirect in real network namespaces, with a tiny node proxy in the test.
//! Needs root; `ip` sets up the interfaces.

#[path = "support/pod.rs"]
mod pod;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::mpsc;

use culvert_cni::redirect::{
    Ipv6, Older, Outcome, install, install_host, mechanism, uninstall, uninstall_host,
};
use culvert_cni::rules::{
    Mechanism, PROBE_ADDRESS_V4, PROBE_ADDRESS_V6, PROXY_MARK, PodRules, ProbeTarget, SPOOFED_MARK,
};
use culvert_netns::{Netns, original_destination};
use culvert_nft::{Capabilities, probe};
use pod::*;

#[test]
fn outbound_arrives_with_its_original_destination() {
    let net = Net::enrolled(&PodRules::default());
    let listener = proxy_listener(&net.pod, 15001);
    for (to, from) in [
        (v4(AFAR_V4, 80), IpAddr::V4(POD_V4)),
        (v6(AFAR_V6, 443), IpAddr::V6(POD_V6)),
        // A neighbour too, on any port.
        (v4(WORLD_V4, 15008), IpAddr::V4(POD_V4)),
    ] {
        let mut client = connect(&net.pod, to);
        let (mut accepted, _) = listener.accept().expect("accepted");
        assert_eq!(local(&accepted), to);
        assert_eq!(peer(&accepted), local(&client));
        assert_eq!(peer(&accepted).ip(), from);
        talk(&mut client, &mut accepted);
        // Data that the proxy sends first, and its half of the close.
        accepted.write_all(b"bye").expect("written");
        drop(accepted);
        let mut rest = String::new();
        client.read_to_string(&mut rest).expect("the end");
        assert_eq!(rest, "bye");
    }
}

#[test]
fn the_node_proxys_own_traffic_is_not_looped() {
    let net = Net::enrolled(&PodRules::default());
    let _outbound = proxy_listener(&net.pod, 15001);
    for to in [v4(WORLD_V4, 0), v6(WORLD_V6, 0)] {
        let server = listen(&net.world, to);
        let at = server.local_addr().expect("bound");
        let mut client = proxy_connect(&net.pod, at, own(PROXY_MARK, None)).expect("connected");
        let (mut accepted, _) = server.accept().expect("accepted");
        talk(&mut client, &mut accepted);
    }
}

#[test]
fn plain_inbound_arrives_at_the_proxy_and_tunnels_at_their_port() {
    let net = Net::enrolled(&PodRules::default());
    let plain = proxy_listener(&net.pod, 15006);
    let tunnel = proxy_listener(&net.pod, 15008);
    // The application is not asked, whether it listens or not.
    let _application = listen(&net.pod, v4(POD_V4, 8080));
    for to in [
        v4(POD_V4, 8080),
        v6(POD_V6, 9090),
        v4(POD_V4, 15001),
        v4(POD_V4, 15006),
    ] {
        let mut client = connect(&net.world, to);
        let (mut accepted, _) = plain.accept().expect("accepted");
        assert_eq!(local(&accepted), to);
        assert_eq!(peer(&accepted), local(&client));
        talk(&mut client, &mut accepted);
    }
    for to in [v4(POD_V4, 15008), v6(POD_V6, 15008)] {
        let mut client = connect(&net.world, to);
        let (mut accepted, _) = tunnel.accept().expect("accepted");
        talk(&mut client, &mut accepted);
    }
}

#[test]
fn an_inbound_and_an_outbound_leg_join_in_the_pod() {
    // The client's connection to the application by way of the proxy's plain port.
    let net = Net::enrolled(&PodRules::default());
    let plain = proxy_listener(&net.pod, 15006);
    for (to, from) in [
        (v4(POD_V4, 8080), IpAddr::V4(WORLD_V4)),
        (v6(POD_V6, 8080), IpAddr::V6(WORLD_V6)),
    ] {
        let application = listen(&net.pod, to);
        let mut client = connect(&net.world, to);
        let (mut accepted, _) = plain.accept().expect("accepted");
        let source = peer(&accepted).ip();
        assert_eq!(source, from);
        let spoofed = own(SPOOFED_MARK, Some(source));
        let mut leg = proxy_connect(&net.pod, to, spoofed).expect("connected");
        let (mut served, _) = application.accept().expect("accepted");
        assert_eq!(peer(&served).ip(), from, "the application sees the client");
        talk(&mut leg, &mut served);
        talk(&mut client, &mut accepted);
    }
}

#[test]
fn a_spoofed_connection_to_a_closed_port_is_refused_at_once() {
    let net = Net::enrolled(&PodRules::default());
    for (to, source) in [
        (v4(POD_V4, 81), IpAddr::V4(AFAR_V4)),
        (v6(POD_V6, 81), IpAddr::V6(AFAR_V6)),
    ] {
        let error = proxy_connect(&net.pod, to, own(SPOOFED_MARK, Some(source)))
            .expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
    }
}

#[test]
fn a_pod_reaches_itself_directly() {
    let net = Net::enrolled(&PodRules::default());
    let _outbound = proxy_listener(&net.pod, 15001);
    let _inbound = proxy_listener(&net.pod, 15006);
    let loopback = (v4(Ipv4Addr::LOCALHOST, 0), v6(Ipv6Addr::LOCALHOST, 0));
    for at in [v4(POD_V4, 0), v6(POD_V6, 0), loopback.0, loopback.1] {
        let application = listen(&net.pod, at);
        let to = application.local_addr().expect("bound");
        let mut client = connect(&net.pod, to);
        let (mut served, _) = application.accept().expect("accepted");
        assert_eq!(peer(&served), local(&client));
        talk(&mut client, &mut served);
    }
}

#[test]
fn probes_reach_the_application_and_only_on_their_port() {
    let net = Net::enrolled(&PodRules::default());
    let plain = proxy_listener(&net.pod, 15006);
    let targets: Vec<ProbeTarget> = [IpAddr::V4(POD_V4), IpAddr::V6(POD_V6)]
        .into_iter()
        .map(|ip| ProbeTarget {
            ip,
            port: 8080,
            uid: "uid-1".to_owned(),
        })
        .collect();
    let set =
        |targets: &[ProbeTarget]| inside(&net.world, || install_host(targets)).expect("installed");
    assert_eq!(set(&targets), Outcome::Changed);
    assert_eq!(set(&targets), Outcome::Unchanged);
    for (to, other, source) in [
        (
            v4(POD_V4, 8080),
            v4(POD_V4, 8081),
            IpAddr::V4(PROBE_ADDRESS_V4),
        ),
        (
            v6(POD_V6, 8080),
            v6(POD_V6, 8081),
            IpAddr::V6(PROBE_ADDRESS_V6),
        ),
    ] {
        let application = listen(&net.pod, to);
        let mut client = connect(&net.world, to);
        let (mut served, _) = application.accept().expect("accepted");
        assert_eq!(peer(&served).ip(), source);
        talk(&mut client, &mut served);
        let _closed = listen(&net.pod, other);
        let _client = connect(&net.world, other);
        let (accepted, _) = plain.accept().expect("redirected");
        assert_eq!(local(&accepted), other);
    }
    // Without the elements the same port is redirected.
    assert_eq!(set(&[]), Outcome::Changed);
    let _client = connect(&net.world, v4(POD_V4, 8080));
    let (accepted, _) = plain.accept().expect("redirected");
    assert_eq!(local(&accepted), v4(POD_V4, 8080));
    inside(&net.world, uninstall_host).expect("removed");
    assert_eq!(run(&net.world, "nft", "list ruleset"), "");
}

#[test]
fn bypass_inbound_reaches_the_application_and_outbound_stays_redirected() {
    let net = Net::enrolled(&PodRules {
        inbound: false,
        ..PodRules::default()
    });
    let _plain = proxy_listener(&net.pod, 15006);
    let outbound = proxy_listener(&net.pod, 15001);
    for to in [v4(POD_V4, 8080), v6(POD_V6, 8080)] {
        let application = listen(&net.pod, to);
        let mut client = connect(&net.world, to);
        let (mut served, _) = application.accept().expect("accepted");
        talk(&mut client, &mut served);
        drop(application);
        let error = connect_within(&net.world, to, PATIENCE).expect_err("closed port");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    let _client = connect(&net.pod, v4(AFAR_V4, 80));
    let (accepted, _) = outbound.accept().expect("accepted");
    assert_eq!(local(&accepted), v4(AFAR_V4, 80));
}

#[test]
fn a_first_packet_without_a_listener_waits_for_it() {
    let net = Net::enrolled(&PodRules::default());
    for (from, to, port) in [
        (&net.pod, v4(AFAR_V4, 80), 15001),
        (&net.pod, v6(AFAR_V6, 81), 15001),
        (&net.world, v4(POD_V4, 8080), 15006),
        (&net.world, v6(POD_V6, 8081), 15006),
        (&net.world, v4(POD_V4, 15008), 15008),
        (&net.world, v6(POD_V6, 15008), 15008),
    ] {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| connect(from, to));
            wait_for_syn_sent(from, to.port());
            let listener = proxy_listener(&net.pod, port);
            let mut client = waiting.join().expect("connected after all");
            let (mut accepted, _) = listener.accept().expect("accepted");
            assert_eq!(local(&accepted), to);
            talk(&mut client, &mut accepted);
        });
    }
}

/// A name server of either family, where the node proxy takes its queries, and whence
/// the pod asks.
fn name_servers() -> [(SocketAddr, IpAddr, SocketAddr); 2] {
    [
        (v4(AFAR_V4, 53), Ipv4Addr::LOCALHOST.into(), v4(POD_V4, 0)),
        (v6(AFAR_V6, 53), Ipv6Addr::LOCALHOST.into(), v6(POD_V6, 0)),
    ]
}

/// The resolver asks again then; an error would make it give up.
#[test]
fn a_query_without_a_listener_is_dropped_and_not_refused() {
    let net = Net::enrolled(&PodRules::default());
    for (server, loopback, client) in name_servers() {
        let client = inside(&net.pod, || UdpSocket::bind(client)).expect("bound");
        client.connect(server).expect("connected");
        client.send(b"lost").expect("sent");
        let dns = dns_socket(&net.pod, loopback);
        // A refusal would be the error of this call.
        client.send(b"again").expect("not refused");
        let mut buffer = [0; 16];
        let (length, _) = dns.recv_from(&mut buffer).expect("the query");
        assert_eq!(&buffer[..length], b"again");
    }
}

#[test]
fn dns_goes_to_the_proxy_and_answers_come_from_the_server() {
    let net = Net::enrolled(&PodRules::default());
    let tcp = proxy_listener(&net.pod, 15053);
    for (server, loopback, client) in name_servers() {
        let dns = dns_socket(&net.pod, loopback);
        let client = inside(&net.pod, || UdpSocket::bind(client)).expect("bound");
        client.set_read_timeout(Some(PATIENCE)).expect("timeout");
        client.connect(server).expect("connected");
        client.send(b"query").expect("sent");
        let mut buffer = [0; 16];
        let (length, from) = dns.recv_from(&mut buffer).expect("the query");
        assert_eq!(&buffer[..length], b"query");
        dns.send_to(b"answer", from).expect("sent");
        // A connected socket takes answers of its server only.
        let length = client.recv(&mut buffer).expect("the answer");
        assert_eq!(&buffer[..length], b"answer");

        let mut stream = connect(&net.pod, server);
        let (mut accepted, _) = tcp.accept().expect("accepted");
        assert_eq!(local(&accepted), server);
        talk(&mut stream, &mut accepted);
    }
}

#[test]
fn dns_opt_out_leaves_udp_alone_and_tcp_to_the_outbound_port() {
    let net = Net::enrolled(&PodRules {
        dns: false,
        ..PodRules::default()
    });
    let outbound = proxy_listener(&net.pod, 15001);
    let server = inside(&net.world, || UdpSocket::bind(v4(WORLD_V4, 53))).expect("bound");
    server.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let client = inside(&net.pod, || UdpSocket::bind(v4(POD_V4, 0))).expect("bound");
    client.send_to(b"query", v4(WORLD_V4, 53)).expect("sent");
    let mut buffer = [0; 16];
    let (length, from) = server.recv_from(&mut buffer).expect("the query");
    assert_eq!(
        (&buffer[..length], from.ip()),
        (&b"query"[..], IpAddr::V4(POD_V4))
    );
    let _client = connect(&net.pod, v4(WORLD_V4, 53));
    let (accepted, _) = outbound.accept().expect("accepted");
    assert_eq!(local(&accepted), v4(WORLD_V4, 53));
}

#[test]
fn traffic_of_a_virtual_interface_counts_as_outbound() {
    let net = Net::enrolled(&PodRules {
        reroute_interfaces: vec!["vnet0".to_owned()],
        ..PodRules::default()
    });
    let machine = bare();
    veth((&net.pod, "vnet0"), (&machine, "eth0"));
    ip(&net.pod, "addr add 172.16.0.1/24 dev vnet0");
    ip(&machine, "addr add 172.16.0.2/24 dev eth0");
    ip(&machine, "route add default via 172.16.0.1");
    let outbound = proxy_listener(&net.pod, 15001);
    let mut client = connect(&machine, v4(AFAR_V4, 80));
    let (mut accepted, _) = outbound.accept().expect("accepted");
    assert_eq!(local(&accepted), v4(AFAR_V4, 80));
    assert_eq!(peer(&accepted), local(&client));
    talk(&mut client, &mut accepted);
}

#[test]
fn connections_older_than_the_enrolment_live_on() {
    let net = Net::new();
    let mut pairs = Vec::new();
    for (server, at, from) in [
        (&net.world, v4(WORLD_V4, 0), &net.pod),
        (&net.world, v6(WORLD_V6, 0), &net.pod),
        (&net.pod, v4(POD_V4, 0), &net.world),
        (&net.pod, v6(POD_V6, 0), &net.world),
    ] {
        let listener = listen(server, at);
        let client = connect(from, listener.local_addr().expect("bound"));
        let (accepted, _) = listener.accept().expect("accepted");
        pairs.push((client, accepted));
    }
    let rules = PodRules::default();
    let (installed, kept) = net.install_as(&rules, &Older::KeepOpen);
    assert_eq!(installed.established, 4);
    for (client, accepted) in &mut pairs {
        talk(client, accepted);
    }
    let again = Older::Keep(kept.clone());
    assert_eq!(net.install_as(&rules, &again).0.outcome, Outcome::Unchanged);
    // New ones are redirected.
    let outbound = proxy_listener(&net.pod, 15001);
    let _client = connect(&net.pod, v4(WORLD_V4, 80));
    let (accepted, _) = outbound.accept().expect("accepted");
    assert_eq!(local(&accepted), v4(WORLD_V4, 80));
    // What has ended is forgotten.
    let (client, accepted) = pairs.remove(0);
    let gone = local(&client);
    drop((client, accepted));
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (_, kept) = net.install_as(&rules, &again);
        let locals: BTreeSet<SocketAddr> = kept.iter().map(|one| one.local).collect();
        if !locals.contains(&gone) {
            assert_eq!(locals.len(), 3);
            return;
        }
        assert!(tokio::time::Instant::now() < end, "{kept:?}");
    }
}

#[test]
fn installing_again_changes_nothing_and_removal_leaves_nothing() {
    let net = Net::new();
    let rules = PodRules::default();
    let traces = |pod: &Netns| {
        [
            run(pod, "nft", "list ruleset"),
            run(pod, "ip", "rule"),
            run(pod, "ip", "-6 rule"),
            run(pod, "ip", "route show table all"),
            run(pod, "ip", "-6 route show table all"),
            run(pod, "cat", "/proc/sys/net/ipv4/tcp_fwmark_accept"),
            run(pod, "cat", "/proc/sys/net/ipv4/fwmark_reflect"),
            run(pod, "cat", "/proc/sys/net/ipv6/fwmark_reflect"),
        ]
    };
    let before = traces(&net.pod);
    inside(&net.pod, uninstall).expect("nothing to remove");
    assert_eq!(traces(&net.pod), before);
    assert_eq!(net.install(&rules).outcome, Outcome::Changed);
    let with = traces(&net.pod);
    for _ in 0..2 {
        assert_eq!(net.install(&rules).outcome, Outcome::Unchanged);
    }
    assert_eq!(traces(&net.pod), with);
    for damage in [
        "ip rule del priority 32763",
        "ip -6 rule del priority 32764",
        "ip route flush table 1337",
        "ip -6 route flush table 1337",
        "nft delete chain inet culvert dns",
        "nft flush chain inet culvert output",
        "nft delete table inet culvert",
    ] {
        let (program, args) = damage.split_once(' ').expect("a command");
        run(&net.pod, program, args);
        assert_eq!(net.install(&rules).outcome, Outcome::Changed, "{damage}");
        let now = traces(&net.pod);
        assert_eq!(now[1..], with[1..], "{damage}");
        assert_eq!(net.install(&rules).outcome, Outcome::Unchanged, "{damage}");
    }
    inside(&net.pod, uninstall).expect("removed");
    assert_eq!(traces(&net.pod), before);
}

#[test]
fn a_missing_ip_rule_stops_traffic_and_lets_none_out_in_plain_text() {
    let net = Net::enrolled(&PodRules::default());
    let _outbound = proxy_listener(&net.pod, 15001);
    for (to, damage) in [
        (v4(WORLD_V4, 80), "rule del priority 32763"),
        (v6(WORLD_V6, 80), "-6 rule del priority 32763"),
    ] {
        let server = listen(&net.world, to);
        ip(&net.pod, damage);
        let error = connect_within(&net.pod, to, MOMENT).expect_err("nothing gets out");
        assert_ne!(error.kind(), ErrorKind::ConnectionRefused);
        server.set_nonblocking(true).expect("non-blocking");
        let none = server.accept().expect_err("nobody came");
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn a_pod_without_ipv6_is_enrolled_for_ipv4() {
    let net = Net::new();
    for interface in ["all", "default"] {
        let setting = format!("net.ipv6.conf.{interface}.disable_ipv6");
        inside(&net.pod, || culvert_netns::write_sysctl(&setting, "1")).expect("off");
    }
    let rules = PodRules::default();
    assert_eq!(net.install(&rules).ipv6, Ipv6::Absent);
    assert_eq!(net.install(&rules).outcome, Outcome::Unchanged);
    let outbound = proxy_listener(&net.pod, 15001);
    let _client = connect(&net.pod, v4(AFAR_V4, 80));
    let (accepted, _) = outbound.accept().expect("accepted");
    assert_eq!(local(&accepted), v4(AFAR_V4, 80));
    // IPv6 that comes later is redirected by the next round.
    for interface in ["all", "eth0"] {
        let setting = format!("net.ipv6.conf.{interface}.disable_ipv6");
        inside(&net.pod, || culvert_netns::write_sysctl(&setting, "0")).expect("on");
    }
    ip(&net.pod, &format!("addr add {POD_V6}/64 dev eth0 nodad"));
    assert_eq!(net.install(&rules).ipv6, Ipv6::Redirected);
}

#[test]
fn without_tproxy_connections_are_redirected_by_nat() {
    let net = Net::new();
    let rules = PodRules::default();
    let kernel = Capabilities {
        tproxy: false,
        ..inside(&net.pod, probe).expect("nf_tables")
    };
    assert_eq!(mechanism(kernel), Mechanism::Redirect);
    let installed = inside(&net.pod, || install(&rules, kernel, &Older::KeepOpen));
    assert_eq!(installed.expect("installed").0.outcome, Outcome::Changed);
    // The guard: the first packet waits for the listener here too.
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(&net.pod, v4(AFAR_V4, 80)));
        wait_for_syn_sent(&net.pod, 80);
        let outbound = proxy_listener(&net.pod, 15001);
        (waiting.join().expect("connected"), outbound)
    });
    let (mut client, outbound) = waiting;
    let (mut accepted, _) = outbound.accept().expect("accepted");
    let original = original_destination(&accepted).expect("readable");
    assert_eq!(original, Some(v4(AFAR_V4, 80)));
    talk(&mut client, &mut accepted);
    let _client6 = connect(&net.pod, v6(AFAR_V6, 80));
    let (accepted, _) = outbound.accept().expect("accepted");
    let original = original_destination(&accepted).expect("readable");
    assert_eq!(original, Some(v6(AFAR_V6, 80)));

    let plain = proxy_listener(&net.pod, 15006);
    let _client = connect(&net.world, v4(POD_V4, 8080));
    let (accepted, _) = plain.accept().expect("accepted");
    let original = original_destination(&accepted).expect("readable");
    assert_eq!(original, Some(v4(POD_V4, 8080)));
    let application = listen(&net.pod, v4(POD_V4, 8080));
    let spoofed = own(SPOOFED_MARK, Some(IpAddr::V4(WORLD_V4)));
    let mut leg = proxy_connect(&net.pod, v4(POD_V4, 8080), spoofed).expect("connected");
    let (mut served, _) = application.accept().expect("accepted");
    assert_eq!(peer(&served).ip(), IpAddr::V4(WORLD_V4));
    talk(&mut leg, &mut served);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        let world = listen(&net.world, v4(WORLD_V4, 9000));
        scope.spawn(move || sender.send(world.accept().map(|_| ())));
        proxy_connect(&net.pod, v4(WORLD_V4, 9000), own(PROXY_MARK, None)).expect("connected");
        let accepted = receiver.recv_timeout(PATIENCE).expect("in time");
        accepted.expect("not looped");
    });
}
