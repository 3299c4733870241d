use std::collections::BTreeSet;

use culvert_identity::{Identity, TrustDomain};
use culvert_model::{
    Change, IpFamilies, NetworkAddress, Service, ServiceName, Workload, WorkloadUid,
};
use hickory_proto::op::Query;
use proptest::prelude::*;

use super::*;

const SCOPE: NameScope<'_> = NameScope {
    namespace: "shop",
    domain: "cluster.local",
    search: &[],
};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn service(namespace: &str, name: &str, addresses: &[&str]) -> Service {
    let host = format!("{name}.{namespace}.svc.cluster.local");
    let mut service = Service::new(ServiceName::new(namespace, host), name);
    service.addresses = addresses
        .iter()
        .map(|a| NetworkAddress::host("", ip(a)))
        .collect();
    service
}

fn workload(name: &str, addresses: &[&str], host: &str) -> Workload {
    let domain: TrustDomain = "cluster.local".parse().expect("trust domain");
    let identity = Identity::new(&domain, "shop", "db").expect("identity");
    let uid = WorkloadUid::new(format!("Kubernetes//Pod/shop/{name}"));
    let mut workload = Workload::new(uid, name, identity);
    workload.addresses = addresses.iter().map(|a| ip(a)).collect();
    workload
        .services
        .insert(ServiceName::new("shop", host), Vec::new());
    workload
}

fn snapshot() -> Snapshot {
    let db = "db.shop.svc.cluster.local";
    let mut unready = workload("db-1", &["10.1.0.2"], db);
    unready.health = Health::Unhealthy;
    let mut v4 = service("shop", "v4", &["10.96.0.9", "fd00:96::9"]);
    v4.ip_families = IpFamilies::Ipv4Only;
    let mut elsewhere = service("shop", "elsewhere", &[]);
    elsewhere.addresses = vec![NetworkAddress::host("other", ip("10.96.0.99"))];
    let mut external = Service::new(ServiceName::new("shop", "www.example.com"), "www");
    external.addresses = vec![NetworkAddress::host("", ip("240.240.0.1"))];
    let mut wild = Service::new(ServiceName::new("shop", "*.wild.example.com"), "wild");
    wild.addresses = vec![NetworkAddress::host("", ip("240.240.0.2"))];
    let outside = Service::new(ServiceName::new("shop", "api.example.com"), "api");
    let mut all = service("shop", "all", &[]);
    all.load_balancing.health_policy = HealthPolicy::AllowAll;
    let mut starting = workload("boot-0", &["10.1.0.7"], "all.shop.svc.cluster.local");
    starting.health = Health::Unhealthy;
    Snapshot::empty().apply([
        Change::Service(service("shop", "cart", &["10.96.0.7", "fd00:96::7"])),
        Change::Service(service("other", "cart", &["10.96.0.8"])),
        Change::Service(v4),
        Change::Service(elsewhere),
        Change::Service(external),
        Change::Service(wild),
        Change::Service(outside),
        Change::Service(all),
        Change::Service(service("shop", "db", &[])),
        Change::Service(service("shop", "nobody", &[])),
        Change::Workload(workload("db-0", &["10.1.0.1", "fd00:1::1"], db)),
        Change::Workload(unready),
        Change::Workload(workload("db-2", &["10.1.0.3"], db)),
        Change::Workload(starting),
        Change::Workload(workload(
            "cart-0",
            &["10.1.0.9"],
            "cart.shop.svc.cluster.local",
        )),
    ])
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let mut name = Name::from_ascii(name).expect("name");
    name.set_fqdn(true);
    message.add_query(Query::query(name, kind));
    message
}

fn ask(message: &Message) -> Outcome {
    let bytes = message.to_vec().expect("encodes");
    answer(&bytes, &snapshot(), &SCOPE, Transport::Udp)
}

/// The addresses of the answer; none when it is not ours.
fn addresses(name: &str, kind: RecordType) -> Option<BTreeSet<IpAddr>> {
    match ask(&query(name, kind)) {
        Outcome::Reply(bytes) => {
            let reply = Message::from_vec(&bytes).expect("readable");
            assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
            assert!(reply.answers.iter().all(|record| record.ttl == 30));
            Some(
                reply
                    .answers
                    .iter()
                    .filter_map(|record| record.data.ip_addr())
                    .collect(),
            )
        }
        Outcome::Forward => None,
        Outcome::Drop => panic!("a query"),
    }
}

fn check(name: &str, expect: Option<&[&str]>) {
    let expect = expect.map(|list| list.iter().map(|a| ip(a)).collect::<BTreeSet<_>>());
    assert_eq!(addresses(name, RecordType::A), expect, "{name}");
}

#[test]
fn what_is_not_of_the_mesh_is_sent_on() {
    for name in [
        "example.org",
        "cart.nowhere.svc.cluster.local",
        "api.example.com",
        ".",
        "local",
    ] {
        check(name, None);
    }
    for kind in [
        RecordType::SRV,
        RecordType::TXT,
        RecordType::ANY,
        RecordType::CNAME,
    ] {
        assert_eq!(addresses("cart.shop.svc.cluster.local", kind), None);
    }
    let mut two = query("cart", RecordType::A);
    two.add_query(Query::query(Name::root(), RecordType::A));
    assert_eq!(ask(&two), Outcome::Forward);
    // A headless service without ready endpoints: the cluster's DNS knows the code.
    check("nobody.shop.svc.cluster.local", None);
    check("db-9.db.shop.svc.cluster.local", None);
    check("db-1.db.shop.svc.cluster.local", None);
    // A service of another network only.
    check("elsewhere.shop.svc.cluster.local", None);
    // Pods of a service with an address have no names of their own.
    check("cart-0.cart.shop.svc.cluster.local", None);
}

#[test]
fn what_is_no_query_is_dropped() {
    let response = Message::response(7, OpCode::Query)
        .to_vec()
        .expect("encodes");
    for bytes in [&b""[..], &[0; 11], &response] {
        assert_eq!(
            answer(bytes, &snapshot(), &SCOPE, Transport::Udp),
            Outcome::Drop
        );
    }
    let mut cut = query("cart", RecordType::A).to_vec().expect("encodes");
    cut.truncate(14);
    assert_eq!(
        answer(&cut, &snapshot(), &SCOPE, Transport::Udp),
        Outcome::Forward
    );
}

#[test]
fn services_are_answered_with_their_addresses() {
    check("cart.shop.svc.cluster.local", Some(&["10.96.0.7"]));
    check("CART.Shop.svc.cluster.LOCAL", Some(&["10.96.0.7"]));
    check("cart", Some(&["10.96.0.7"]));
    check("cart.other", Some(&["10.96.0.8"]));
    check("cart.other.svc", Some(&["10.96.0.8"]));
    check("www.example.com", Some(&["240.240.0.1"]));
    check("a.b.wild.example.com", Some(&["240.240.0.2"]));
    assert_eq!(
        addresses("cart", RecordType::AAAA),
        Some([ip("fd00:96::7")].into())
    );
}

#[test]
fn headless_services_and_their_pods_are_answered_with_pod_addresses() {
    check("db.shop.svc.cluster.local", Some(&["10.1.0.1", "10.1.0.3"]));
    check("db-0.db.shop.svc.cluster.local", Some(&["10.1.0.1"]));
    check("db-2.db", Some(&["10.1.0.3"]));
    check("db-2.db.shop", Some(&["10.1.0.3"]));
    check("boot-0.all.shop.svc.cluster.local", Some(&["10.1.0.7"]));
}

#[test]
fn a_family_that_is_not_there_is_an_empty_answer() {
    for name in [
        "cart.other.svc.cluster.local",
        "v4.shop.svc.cluster.local",
        "db-2.db",
    ] {
        assert_eq!(
            addresses(name, RecordType::AAAA),
            Some(BTreeSet::new()),
            "{name}"
        );
    }
}

#[test]
fn a_search_domain_is_taken_off_with_an_alias() {
    let name = "www.example.com.shop.svc.cluster.local";
    let Outcome::Reply(bytes) = ask(&query(name, RecordType::A)) else {
        panic!("ours")
    };
    let reply = Message::from_vec(&bytes).expect("readable");
    let [alias, address] = &reply.answers[..] else {
        panic!("two records: {reply:?}")
    };
    assert_eq!(alias.name.to_ascii(), format!("{name}."));
    assert_eq!(alias.data.to_string(), "www.example.com.");
    assert_eq!(address.name.to_ascii(), "www.example.com.");
}

#[test]
fn the_answer_repeats_the_question_as_it_came() {
    let mut message = query("CaRt.shop.svc.cluster.local", RecordType::A);
    message.set_edns(Edns::new());
    let Outcome::Reply(bytes) = ask(&message) else {
        panic!("ours")
    };
    let reply = Message::from_vec(&bytes).expect("readable");
    assert_eq!(
        reply.queries[0].name().to_ascii(),
        "CaRt.shop.svc.cluster.local."
    );
    assert_eq!(
        reply.answers[0].name.to_ascii(),
        "CaRt.shop.svc.cluster.local."
    );
    assert_eq!(reply.metadata.id, message.metadata.id);
    assert!(reply.metadata.recursion_desired && reply.metadata.recursion_available);
    assert!(reply.edns.is_some());
}

#[test]
fn an_answer_too_long_for_a_datagram_is_cut() {
    let host = "big.shop.svc.cluster.local";
    let pods = (0..100).map(|n| {
        Change::Workload(workload(
            &format!("big-{n}"),
            &[&format!("10.2.0.{n}")],
            host,
        ))
    });
    let snapshot =
        Snapshot::empty().apply(pods.chain([Change::Service(service("shop", "big", &[]))]));
    let bytes = query(host, RecordType::A).to_vec().expect("encodes");
    let read = |transport| match answer(&bytes, &snapshot, &SCOPE, transport) {
        Outcome::Reply(bytes) => (bytes.len(), Message::from_vec(&bytes).expect("readable")),
        other => panic!("{other:?}"),
    };
    let (length, cut) = read(Transport::Udp);
    assert!(length <= 512 && cut.metadata.truncation && cut.answers.is_empty());
    let (_, whole) = read(Transport::Tcp);
    assert!(!whole.metadata.truncation);
    assert_eq!(whole.answers.len(), 100);
}

#[test]
fn the_order_of_addresses_changes() {
    let first = || match ask(&query("db.shop.svc.cluster.local", RecordType::A)) {
        Outcome::Reply(bytes) => Message::from_vec(&bytes).expect("readable").answers[0]
            .data
            .ip_addr(),
        other => panic!("{other:?}"),
    };
    let seen: BTreeSet<_> = (0..100).map(|_| first()).collect();
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_failure_carries_number_and_question() {
    let message = query("example.org", RecordType::TXT);
    let bytes = server_failure(&message.to_vec().expect("encodes")).expect("a query");
    let reply = Message::from_vec(&bytes).expect("readable");
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(reply.metadata.id, message.metadata.id);
    assert_eq!(reply.queries, message.queries);
    assert_eq!(
        server_failure(b"\x12\x34rest").map(|b| b[..4].to_vec()),
        Some(vec![0x12, 0x34, 0x80, 0x82])
    );
    assert_eq!(server_failure(b"\x12"), None);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_answer_what_cannot_be_read(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        flags in 0..4u8,
    ) {
        let mut bytes = bytes;
        if let Some(byte) = bytes.get_mut(2) {
            *byte &= 0x01 | (flags << 4);
        }
        let snapshot = snapshot();
        match answer(&bytes, &snapshot, &SCOPE, Transport::Udp) {
            Outcome::Reply(reply) => {
                prop_assert!(Message::from_vec(&reply).is_ok());
                prop_assert_eq!(&reply[..2], &bytes[..2]);
            }
            Outcome::Forward => prop_assert!(server_failure(&bytes).is_some()),
            Outcome::Drop => {}
        }
    }
}
