//! Our encoder against the `nft` tool, and the read-back against the kernel. Needs
//! root; `nft` is needed by this test only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;

use culvert_netns::Netns;
use culvert_nft::{
    Base, Batch, Chain, ChainKind, Change, Element, Family, Field, Hook, IpVersion, KeyType,
    MapPorts, Policy, Protocol, Reject, Rule, Set, State, Table, TableId, Value, Verdict, ensure,
    exists, probe, remove, replace, state,
};

fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let netns = Netns::create().expect("these tests make network namespaces: run them as root");
    netns.run(work).expect("enter the namespace")
}

/// What `nft` makes of a table, one trimmed line each, without our hashes.
fn listed(family: &str, name: &str) -> Vec<String> {
    let output = Command::new("nft")
        .args(["-nn", "list", "table", family, name])
        .output()
        .expect("these tests compare with nft: apt-get install nftables");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .expect("nft prints UTF-8")
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

fn base(kind: ChainKind, hook: Hook, priority: i32) -> Base {
    Base {
        kind,
        hook,
        priority,
        policy: Policy::Accept,
    }
}

fn one_rule(kind: ChainKind, hook: Hook, priority: i32, rule: Rule) -> Table {
    Table::new(Family::Inet, "t")
        .with_chain(Chain::base("c", base(kind, hook, priority)).with(rule))
}

#[track_caller]
fn check_at(kind: ChainKind, hook: Hook, priority: i32, rule: Rule, expect: &str) {
    inside(move || {
        let table = one_rule(kind, hook, priority, rule);
        replace(&table).expect("the kernel takes the rule");
        let lines = listed("inet", "t");
        let found = lines[3].split(" comment ").next().expect("a rule");
        assert_eq!(found, expect, "{lines:#?}");
        assert_eq!(state(&table).expect("readable"), State::Same);
    });
}

#[track_caller]
fn check(rule: Rule, expect: &str) {
    check_at(ChainKind::Filter, Hook::Prerouting, -150, rule, expect);
}

fn net(text: &str) -> ipnet::IpNet {
    text.parse().expect("a network")
}

#[test]
fn matches_read_as_written() {
    check(Rule::new().tcp().accept(), "meta l4proto 6 accept");
    check(
        Rule::new().protocol_not(Protocol::Udp).drop(),
        "meta l4proto != 17 drop",
    );
    check(
        Rule::new().mark(0x539, u32::MAX).accept(),
        "meta mark 0x00000539 accept",
    );
    check(
        Rule::new().mark_not(0x539, 0xfff).accept(),
        "meta mark & 0x00000fff != 0x00000539 accept",
    );
    check(
        Rule::new().interface_in("lo").accept(),
        "iifname \"lo\" accept",
    );
    check(
        Rule::new().interface_in_not("eth0").accept(),
        "iifname != \"eth0\" accept",
    );
}

#[test]
fn addresses_and_ports_read_as_written() {
    check(
        Rule::new().ip_version(IpVersion::V6).accept(),
        "meta nfproto 10 accept",
    );
    check(
        Rule::new().source(net("10.1.2.3/32")).accept(),
        "ip saddr 10.1.2.3 accept",
    );
    check(
        Rule::new().destination(net("127.0.0.0/8")).accept(),
        "ip daddr 127.0.0.0/8 accept",
    );
    check(
        Rule::new().destination_not(net("10.96.0.0/12")).accept(),
        "ip daddr != 10.96.0.0/12 accept",
    );
    check(
        Rule::new().source_not(net("::1/128")).accept(),
        "ip6 saddr != ::1 accept",
    );
    check(
        Rule::new().destination(net("fd00:10:96::/112")).accept(),
        "ip6 daddr fd00:10:96::/112 accept",
    );
    check(
        Rule::new().tcp().source_port(443).accept(),
        "tcp sport 443 accept",
    );
    check(
        Rule::new().udp().destination_port(53).accept(),
        "udp dport 53 accept",
    );
    check(
        Rule::new().tcp().destination_port_not(15008).drop(),
        "tcp dport != 15008 drop",
    );
    check(
        Rule::new().tcp().syn().counter().drop(),
        "tcp flags 0x2 / 0x1,0x2,0x4,0x10 counter packets 0 bytes 0 drop",
    );
}

#[test]
fn socket_and_connection_matches_read_as_written() {
    check(
        Rule::new().tcp().socket_wildcard().accept(),
        "meta l4proto 6 socket wildcard 1 accept",
    );
    check(
        Rule::new().tcp().socket_transparent().accept(),
        "meta l4proto 6 socket transparent 1 accept",
    );
    check(
        Rule::new().socket_mark(0x539, u32::MAX).accept(),
        "socket mark 0x00000539 accept",
    );
    check(
        Rule::new().ct_mark(0x111, u32::MAX).accept(),
        "ct mark 0x00000111 accept",
    );
}

#[test]
fn output_matches_read_as_written() {
    let check = |rule, expect| check_at(ChainKind::Route, Hook::Output, -150, rule, expect);
    check(
        Rule::new().interface_out("lo").accept(),
        "oifname \"lo\" accept",
    );
    check(
        Rule::new().interface_out_not("lo").accept(),
        "oifname != \"lo\" accept",
    );
    check(
        Rule::new().from_local_socket().accept(),
        "meta skuid >= 0 accept",
    );
    check(
        Rule::new().socket_uid(1337).accept(),
        "meta skuid 1337 accept",
    );
    check(
        Rule::new().set_mark(0x77, u32::MAX),
        "meta mark set 0x00000077",
    );
    check(
        Rule::new().set_mark(0x77, 0xfff),
        "meta mark set meta mark & 0xfffff077 | 0x00000077",
    );
}

#[test]
fn actions_read_as_written() {
    let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 15001);
    let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 15001);
    check(
        Rule::new().tcp().tproxy(v4).accept(),
        "meta l4proto 6 meta nfproto 2 tproxy ip to 127.0.0.1:15001 accept",
    );
    check(
        Rule::new().tcp().tproxy(v6).accept(),
        "meta l4proto 6 meta nfproto 10 tproxy ip6 to [::1]:15001 accept",
    );
    check(
        Rule::new().tcp().tproxy_port(15006).accept(),
        "meta l4proto 6 tproxy to :15006 accept",
    );
    let nat = |hook, priority, rule, expect| check_at(ChainKind::Nat, hook, priority, rule, expect);
    nat(
        Hook::Output,
        -100,
        Rule::new().tcp().redirect(15001),
        "meta l4proto 6 redirect to :15001",
    );
    let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    nat(
        Hook::Output,
        -100,
        Rule::new().tcp().dnat(ip, Some(8080)),
        "meta l4proto 6 meta nfproto 2 dnat ip to 10.0.0.1:8080",
    );
    nat(
        Hook::Postrouting,
        100,
        Rule::new().source(net("10.0.0.0/8")).snat(ip),
        "ip saddr 10.0.0.0/8 snat ip to 10.0.0.1",
    );
    nat(
        Hook::Postrouting,
        100,
        Rule::new().masquerade(),
        "masquerade",
    );
    check_at(
        ChainKind::Filter,
        Hook::Input,
        0,
        Rule::new().tcp().reject(Reject::TcpReset),
        "meta l4proto 6 reject with tcp reset",
    );
    check_at(
        ChainKind::Filter,
        Hook::Input,
        0,
        Rule::new().reject(Reject::PortUnreachable),
        "reject",
    );
    check_at(
        ChainKind::Filter,
        Hook::Prerouting,
        -300,
        Rule::new().tcp().no_track(),
        "meta l4proto 6 notrack",
    );
}

/// A service map as the one-machine engine writes it.
fn services() -> Table {
    let vip = Ipv4Addr::new(10, 96, 0, 7);
    let vip6: Ipv6Addr = "fd00:10:96::7".parse().expect("an address");
    let tcp = Value::Protocol(Protocol::Tcp);
    let key = [KeyType::Ipv4, KeyType::Protocol, KeyType::Port];
    let key6 = [KeyType::Ipv6, KeyType::Protocol, KeyType::Port];
    let to = |chain: &str| Verdict::Goto(chain.to_owned());
    let fields4 = [Field::Destination4, Field::Protocol, Field::DestinationPort];
    let fields6 = [Field::Destination6, Field::Protocol, Field::DestinationPort];
    let endpoint = |n: u8| {
        let ip = Value::Ipv4(Ipv4Addr::new(10, 244, 1, n));
        Element::values([Value::Number(u32::from(n))], [ip, Value::Port(8080)])
    };
    let endpoint6 = |n: u8| {
        let ip = Value::Ipv6(Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 0, n.into()));
        Element::values([Value::Number(u32::from(n))], [ip, Value::Port(8080)])
    };
    Table::new(Family::Inet, "services")
        .with_set(Set::verdict_map("vips4", &key).with([Element::verdict(
            [vip.into(), tcp.clone(), 80_u16.into()],
            to("s4"),
        )]))
        .with_set(Set::verdict_map("vips6", &key6).with([Element::verdict(
            [vip6.into(), tcp, 80_u16.into()],
            to("s6"),
        )]))
        .with_set(
            Set::map("e4", &[KeyType::Number], &[KeyType::Ipv4, KeyType::Port])
                .with([endpoint(0), endpoint(1)]),
        )
        .with_set(
            Set::map("e6", &[KeyType::Number], &[KeyType::Ipv6, KeyType::Port])
                .with([endpoint6(0)]),
        )
        .with_set(
            Set::new("probes", &[KeyType::Ipv4, KeyType::Port]).with([Element::new([
                vip.into(),
                80_u16.into(),
            ])
            .comment("uid-1")]),
        )
        .with_chain(
            Chain::base("out", base(ChainKind::Nat, Hook::Output, -100))
                .with(Rule::new().verdict_map(&fields4, "vips4"))
                .with(Rule::new().verdict_map(&fields6, "vips6")),
        )
        .with_chain(Chain::new("s4").with(Rule::new().tcp().dnat_map(
            IpVersion::V4,
            &[Field::Random(2)],
            "e4",
            MapPorts::FromMap,
        )))
        .with_chain(Chain::new("s6").with(Rule::new().tcp().dnat_map(
            IpVersion::V6,
            &[Field::RoundRobin(1)],
            "e6",
            MapPorts::FromMap,
        )))
        .with_chain(
            Chain::base("post", base(ChainKind::Nat, Hook::Postrouting, 100)).with(
                Rule::new()
                    .tcp()
                    .in_set(&[Field::Destination4, Field::DestinationPort], "probes")
                    .masquerade()
                    .comment("hairpin"),
            ),
        )
}

#[test]
fn service_map_reads_as_written() {
    inside(|| {
        let table = services();
        replace(&table).expect("the kernel takes the table");
        let lines = listed("inet", "services");
        for expect in [
            "type ipv4_addr . inet_proto . inet_service : verdict",
            "elements = { 10.96.0.7 . 6 . 80 : goto s4 }",
            "elements = { fd00:10:96::7 . 6 . 80 : goto s6 }",
            "type mark : ipv4_addr . inet_service",
            "elements = { 0x00000000 : 10.244.1.0 . 8080, 0x00000001 : 10.244.1.1 . 8080 }",
            "elements = { 0x00000000 : fd00:10:244:1:: . 8080 }",
            "elements = { 10.96.0.7 . 80 comment \"uid-1\" }",
            "type nat hook output priority -100; policy accept;",
        ] {
            assert!(
                lines.iter().any(|line| line == expect),
                "{expect}\n{lines:#?}"
            );
        }
        for expect in [
            "ip daddr . meta l4proto . th dport vmap @vips4",
            "ip6 daddr . meta l4proto . th dport vmap @vips6",
            "dnat ip to numgen random mod 2 map @e4",
            "dnat ip6 to numgen inc mod 1 map @e6",
            "ip daddr . tcp dport @probes masquerade comment \"hairpin #",
        ] {
            assert!(
                lines.iter().any(|line| line.contains(expect)),
                "{expect}\n{lines:#?}"
            );
        }
        assert_eq!(state(&table).expect("readable"), State::Same);
    });
}

#[test]
fn ensure_writes_only_what_differs() {
    inside(|| {
        let mut table = services();
        let change = || Change::Replaced("it was not there".to_owned());
        assert_eq!(ensure(&table).expect("written"), change());
        assert_eq!(ensure(&table).expect("read"), Change::Unchanged);

        let ip = Ipv4Addr::new(10, 244, 9, 9);
        let set = &mut table.sets[4];
        set.elements = vec![
            Element::new([ip.into(), 1_u16.into()]),
            Element::new([ip.into(), 2_u16.into()]),
        ];
        // Other data for a key that is there.
        table.sets[2].elements[0] =
            Element::values([Value::Number(0)], [ip.into(), Value::Port(9090)]);
        assert_eq!(ensure(&table).expect("written"), Change::Elements);
        assert_eq!(ensure(&table).expect("read"), Change::Unchanged);

        nft(&["insert", "rule", "inet", "services", "out", "accept"]);
        let why = Change::Replaced("the rules of chain out differ".to_owned());
        assert_eq!(ensure(&table).expect("written"), why);
        nft(&["add", "chain", "inet", "services", "stray"]);
        let why = Change::Replaced("its chains differ".to_owned());
        assert_eq!(ensure(&table).expect("written"), why);
        nft(&["add", "set", "inet", "services", "stray", "{ type mark; }"]);
        let why = Change::Replaced("its sets differ".to_owned());
        assert_eq!(ensure(&table).expect("written"), why);
        nft(&["flush", "table", "inet", "services"]);
        let why = Change::Replaced("the rules of chain out differ".to_owned());
        assert_eq!(ensure(&table).expect("written"), why);
        assert_eq!(ensure(&table).expect("read"), Change::Unchanged);
    });
}

fn nft(args: &[&str]) {
    let output = Command::new("nft").args(args).output().expect("nft");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn removal_leaves_nothing_and_touches_nothing_else() {
    inside(|| {
        nft(&["add", "table", "inet", "other"]);
        let id = TableId::new(Family::Inet, "services");
        remove(&id).expect("removing what is not there");
        assert!(!exists(&id).expect("readable"));
        replace(&services()).expect("written");
        assert!(exists(&id).expect("readable"));
        remove(&id).expect("removed");
        assert!(!exists(&id).expect("readable"));
        assert_eq!(state(&services()).expect("readable"), State::Absent);
        assert!(exists(&TableId::new(Family::Inet, "other")).expect("readable"));
    });
}

#[test]
fn a_refused_batch_names_the_rule_and_changes_nothing() {
    inside(|| {
        let good = services();
        replace(&good).expect("written");
        let mut bad = good.clone();
        bad.chains[3]
            .rules
            .push(Rule::new().comment("to nowhere").jump("missing"));
        let error = replace(&bad).expect_err("the chain is missing");
        let text = error.to_string();
        let object = "table inet services chain post rule 2 (to nowhere)";
        assert!(text.contains(object), "{text}");
        assert_eq!(error.errno(), Some(2), "{text}");
        assert_eq!(state(&good).expect("readable"), State::Same);

        let mut wrong = good.clone();
        wrong.sets[4].elements.push(Element::new([Value::Port(1)]));
        let text = replace(&wrong).expect_err("wrong types").to_string();
        assert!(text.contains("probes"), "{text}");
        assert_eq!(state(&good).expect("readable"), State::Same);
    });
}

#[test]
fn elements_come_and_go_by_thousands() {
    inside(|| {
        let port = |n: u32| Value::Port(u16::try_from(n % 60_000).expect("small"));
        let element = |n: u32| Element::new([Ipv4Addr::from(0x0a00_0000 + n).into(), port(n)]);
        let set = Set::new("many", &[KeyType::Ipv4, KeyType::Port]).with((0..20_000).map(element));
        let mut table = Table::new(Family::Inet, "t").with_set(set);
        replace(&table).expect("written");
        assert_eq!(state(&table).expect("readable"), State::Same);
        let id = table.id();
        let mut batch = Batch::new();
        let gone: Vec<Element> = (0..10_000).map(element).collect();
        batch.delete_elements(&id, &table.sets[0], &gone);
        batch.add_elements(&id, &table.sets[0], &[element(50_000)]);
        batch.commit().expect("changed");
        table.sets[0].elements = (10_000..20_000).chain([50_000]).map(element).collect();
        assert_eq!(state(&table).expect("readable"), State::Same);
        let mut batch = Batch::new();
        batch.flush_set(&id, "many");
        batch.commit().expect("flushed");
        table.sets[0].elements.clear();
        assert_eq!(state(&table).expect("readable"), State::Same);
    });
}

#[test]
fn probing_finds_what_this_kernel_has_and_leaves_no_trace() {
    inside(|| {
        let found = probe().expect("nf_tables");
        assert!(
            found.tproxy && found.socket && found.route_chain,
            "{found:?}"
        );
        assert!(found.redirect && found.snat, "{found:?}");
        let id = TableId::new(Family::Inet, "culvert-probe");
        assert!(!exists(&id).expect("readable"));
    });
}
