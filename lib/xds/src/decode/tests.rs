mod roundtrip;

use bytes::Bytes;
use culvert_api::names;
use culvert_api::proto::culvert as ours;
use culvert_api::proto::security as auth;
use culvert_api::proto::workload as wire;
use culvert_model::{
    GatewayDestination, HBONE_PORT, Health, Match, NetworkMode, ServiceName, StringMatch,
    TunnelProtocol, Visibility,
};

use super::*;
use crate::chain::chain;

fn workload_message() -> wire::Workload {
    wire::Workload {
        uid: "c//Pod/a/x".to_owned(),
        name: "x".to_owned(),
        namespace: "a".to_owned(),
        ..wire::Workload::default()
    }
}

fn service_message() -> wire::Service {
    wire::Service {
        name: "s".to_owned(),
        namespace: "a".to_owned(),
        hostname: "s.a.svc".to_owned(),
        ..wire::Service::default()
    }
}

fn policy_message() -> auth::Authorization {
    auth::Authorization {
        name: "p".to_owned(),
        namespace: "a".to_owned(),
        ..auth::Authorization::default()
    }
}

fn one_match(conditions: auth::Match) -> auth::Authorization {
    let rules = auth::Rules {
        matches: vec![auth::Match::default(), conditions],
    };
    auth::Authorization {
        groups: vec![auth::Group { rules: vec![rules] }],
        ..policy_message()
    }
}

fn read_workload(message: wire::Workload) -> Result<culvert_model::Workload, FieldError> {
    let r#type = Some(wire::address::Type::Workload(message));
    match address_bytes(&wire::Address { r#type }.encode_to_vec())? {
        Change::Workload(workload) => Ok(workload),
        other => panic!("{other:?}"),
    }
}

fn read_service(message: wire::Service) -> Result<culvert_model::Service, FieldError> {
    let r#type = Some(wire::address::Type::Service(message));
    match address_bytes(&wire::Address { r#type }.encode_to_vec())? {
        Change::Service(service) => Ok(service),
        other => panic!("{other:?}"),
    }
}

fn extension(name: &str, message: &impl Message) -> wire::Extension {
    wire::Extension {
        name: name.to_owned(),
        config: Some(prost_types::Any {
            type_url: String::new(),
            value: message.encode_to_vec(),
        }),
    }
}

fn broken(name: &str) -> wire::Extension {
    wire::Extension {
        name: name.to_owned(),
        config: Some(prost_types::Any {
            type_url: String::new(),
            value: vec![0xff],
        }),
    }
}

#[test]
fn workloads_that_cannot_be_read() {
    let base = workload_message;
    let no_destination = || Some(wire::GatewayAddress::default());
    let port_list = |service_port, target_port| wire::PortList {
        ports: vec![wire::Port {
            service_port,
            target_port,
            app_protocol: 0,
        }],
    };
    let behind = |key: &str, ports| [(key.to_owned(), ports)].into();
    #[rustfmt::skip]
    let table = [
        ("uid: missing", wire::Workload { uid: String::new(), ..base() }),
        ("namespace: missing", wire::Workload { namespace: String::new(), ..base() }),
        ("trust_domain: not a trust domain", wire::Workload { trust_domain: "a/b".into(), ..base() }),
        ("service_account: not an identity", wire::Workload { service_account: "a/b".into(), ..base() }),
        ("addresses[1]: an address has 4 or 16 bytes, not 3", wire::Workload { addresses: vec![Bytes::from_static(&[1; 4]), Bytes::from_static(&[1; 3])], ..base() }),
        ("addresses[0]: an address has 4 or 16 bytes, not 0", wire::Workload { addresses: vec![Bytes::new()], ..base() }),
        ("tunnel_protocol: unknown value 2", wire::Workload { tunnel_protocol: 2, ..base() }),
        ("tunnel_protocol: unknown value -1", wire::Workload { tunnel_protocol: -1, ..base() }),
        ("workload_type: unknown value 4", wire::Workload { workload_type: 4, ..base() }),
        ("status: unknown value 2", wire::Workload { status: 2, ..base() }),
        ("network_mode: unknown value 2", wire::Workload { network_mode: 2, ..base() }),
        ("waypoint.destination: missing", wire::Workload { waypoint: no_destination(), ..base() }),
        ("network_gateway.destination: missing", wire::Workload { network_gateway: no_destination(), ..base() }),
        ("authorization_policies[0]: not a name", wire::Workload { authorization_policies: vec!["p".into()], ..base() }),
        ("services[s]: not a name", wire::Workload { services: behind("s", wire::PortList::default()), ..base() }),
        ("services[a/s].ports[0].service_port: 0 is not a port", wire::Workload { services: behind("a/s", port_list(0, 1)), ..base() }),
        ("services[a/s].ports[0].service_port: 65536 is not a port", wire::Workload { services: behind("a/s", port_list(65536, 1)), ..base() }),
        ("services[a/s].ports[0].target_port: 70000 is not a port", wire::Workload { services: behind("a/s", port_list(1, 70000)), ..base() }),
        ("application_tunnel.protocol: unknown value 2", wire::Workload { application_tunnel: Some(wire::ApplicationTunnel { protocol: 2, port: 0 }), ..base() }),
        ("application_tunnel.port: 65536 is not a port", wire::Workload { application_tunnel: Some(wire::ApplicationTunnel { protocol: 1, port: 65536 }), ..base() }),
        ("extensions[0]: not an encoded message", wire::Workload { extensions: vec![broken(names::PEER_SETS)], ..base() }),
        ("extensions[0]: not an encoded message", wire::Workload { extensions: vec![broken(names::EGRESS_POLICIES)], ..base() }),
        ("extensions[0].names[0]: not a name", wire::Workload { extensions: vec![extension(names::EGRESS_POLICIES, &ours::EgressPolicies { names: vec!["x".into()] })], ..base() }),
    ];
    for (expected, message) in table {
        let error = read_workload(message).expect_err(expected);
        assert!(
            chain(&error).starts_with(expected),
            "{} is not {expected}",
            chain(&error)
        );
    }
}

#[test]
fn services_that_cannot_be_read() {
    use wire::load_balancing::Scope;
    let base = service_message;
    let balancing = |routing_preference: Vec<i32>, mode, health_policy| {
        Some(wire::LoadBalancing {
            routing_preference,
            mode,
            health_policy,
        })
    };
    let vip = |address: &[u8], length| wire::NetworkAddress {
        network: String::new(),
        address: address.to_vec(),
        length,
    };
    let hostname = |hostname: &str| {
        wire::gateway_address::Destination::Hostname(wire::NamespacedHostname {
            namespace: "a".into(),
            hostname: hostname.into(),
        })
    };
    let gateway = |destination, hbone_mtls_port| {
        Some(wire::GatewayAddress {
            destination: Some(destination),
            hbone_mtls_port,
        })
    };
    #[rustfmt::skip]
    let table = [
        ("namespace: missing", wire::Service { namespace: String::new(), ..base() }),
        ("hostname: not a name", wire::Service { hostname: String::new(), ..base() }),
        ("hostname: not a name", wire::Service { hostname: "a/b".into(), ..base() }),
        ("hostname: not a name", wire::Service { namespace: "a/b".into(), ..base() }),
        ("addresses[0].address: an address has 4 or 16 bytes, not 5", wire::Service { addresses: vec![vip(&[1; 5], None)], ..base() }),
        ("addresses[0].address: prefix length 33 is longer", wire::Service { addresses: vec![vip(&[1; 4], Some(33))], ..base() }),
        ("addresses[0].address: prefix length 129 is longer", wire::Service { addresses: vec![vip(&[1; 16], Some(129))], ..base() }),
        ("addresses[0].address: prefix length 4294967295 is longer", wire::Service { addresses: vec![vip(&[1; 16], Some(u32::MAX))], ..base() }),
        ("ports[0].service_port: 0 is not a port", wire::Service { ports: vec![wire::Port::default()], ..base() }),
        ("waypoint.hostname: missing", wire::Service { waypoint: gateway(hostname(""), 15008), ..base() }),
        ("waypoint.hbone_mtls_port: 65536 is not a port", wire::Service { waypoint: gateway(hostname("w"), 65536), ..base() }),
        ("weighted_waypoints[0].destination: missing", wire::Service { weighted_waypoints: vec![wire::WeightedWaypoint { destination: None, weight: 1 }], ..base() }),
        ("load_balancing.routing_preference[1]: unknown value 0", wire::Service { load_balancing: balancing(vec![Scope::Zone.into(), 0], 0, 0), ..base() }),
        ("load_balancing.routing_preference[0]: unknown value 7", wire::Service { load_balancing: balancing(vec![7], 0, 0), ..base() }),
        ("load_balancing.mode: unknown value 4", wire::Service { load_balancing: balancing(vec![], 4, 0), ..base() }),
        ("load_balancing.health_policy: unknown value 2", wire::Service { load_balancing: balancing(vec![], 0, 2), ..base() }),
        ("ip_families: unknown value 4", wire::Service { ip_families: 4, ..base() }),
    ];
    for (expected, message) in table {
        let error = read_service(message).expect_err(expected);
        assert!(
            chain(&error).starts_with(expected),
            "{} is not {expected}",
            chain(&error)
        );
    }
    assert!(matches!(
        address_bytes(&[]),
        Err(FieldError {
            fault: FieldFault::Missing,
            ..
        })
    ));
    assert!(matches!(
        address_bytes(&[0xff]),
        Err(FieldError {
            fault: FieldFault::NotProtobuf(_),
            ..
        })
    ));
}

#[test]
fn policies_that_cannot_be_read() {
    let base = policy_message;
    let nothing = || vec![auth::StringMatch { match_type: None }];
    let net = |address: &[u8], length| {
        vec![auth::Address {
            address: address.to_vec(),
            length,
        }]
    };
    let range = |first, last| ours::PeerMatch {
        destination_port_ranges: vec![ours::PortRange { first, last }],
        ..ours::PeerMatch::default()
    };
    let none = auth::Match::default;
    let extended = |extension| {
        one_match(auth::Match {
            extensions: vec![extension],
            ..none()
        })
    };
    #[rustfmt::skip]
    let table = [
        ("name: not a name", auth::Authorization { name: String::new(), ..base() }),
        ("name: not a name", auth::Authorization { name: "a/b".into(), ..base() }),
        ("name: not a name", auth::Authorization { namespace: "a/b".into(), ..base() }),
        ("scope: unknown value 3", auth::Authorization { scope: 3, ..base() }),
        ("action: unknown value 2", auth::Authorization { action: 2, ..base() }),
        ("extensions[0]: not an encoded message", auth::Authorization { extensions: vec![broken(names::ORIGIN)], ..base() }),
        ("groups[0].rules[0].matches[1].principals[0].match_type: missing", one_match(auth::Match { principals: nothing(), ..none() })),
        ("groups[0].rules[0].matches[1].not_principals[0].match_type: missing", one_match(auth::Match { not_principals: nothing(), ..none() })),
        ("groups[0].rules[0].matches[1].namespaces[0].match_type: missing", one_match(auth::Match { namespaces: nothing(), ..none() })),
        ("groups[0].rules[0].matches[1].not_namespaces[0].match_type: missing", one_match(auth::Match { not_namespaces: nothing(), ..none() })),
        ("groups[0].rules[0].matches[1].source_ips[0]: an address has 4 or 16 bytes, not 0", one_match(auth::Match { source_ips: net(&[], 0), ..none() })),
        ("groups[0].rules[0].matches[1].not_source_ips[0]: prefix length 33", one_match(auth::Match { not_source_ips: net(&[1; 4], 33), ..none() })),
        ("groups[0].rules[0].matches[1].destination_ips[0]: prefix length 129", one_match(auth::Match { destination_ips: net(&[1; 16], 129), ..none() })),
        ("groups[0].rules[0].matches[1].not_destination_ips[0]: an address", one_match(auth::Match { not_destination_ips: net(&[1; 17], 8), ..none() })),
        ("groups[0].rules[0].matches[1].destination_ports[0]: 65536 is not a port", one_match(auth::Match { destination_ports: vec![65536], ..none() })),
        ("groups[0].rules[0].matches[1].not_destination_ports[0]: 65536 is not a port", one_match(auth::Match { not_destination_ports: vec![65536], ..none() })),
        ("groups[0].rules[0].matches[1].extensions[0]: not an encoded message", extended(broken(names::PEER_MATCH))),
        ("groups[0].rules[0].matches[1].extensions[0].destination_port_ranges[0]: port range 2-1 is empty", extended(extension(names::PEER_MATCH, &range(2, 1)))),
        ("groups[0].rules[0].matches[1].extensions[0].destination_port_ranges[0].last: 65536", extended(extension(names::PEER_MATCH, &range(2, 65536)))),
        ("groups[0].rules[0].matches[1].extensions[0]: unknown extension \"culvert.dev/later\"", extended(broken("culvert.dev/later"))),
    ];
    for (expected, message) in table {
        let error = authorization_bytes(&message.encode_to_vec()).expect_err(expected);
        assert!(
            chain(&error).starts_with(expected),
            "{} is not {expected}",
            chain(&error)
        );
    }
}

#[test]
fn what_is_absent_has_the_usual_meaning() {
    let workload = read_workload(workload_message()).expect("complete");
    assert_eq!(
        workload.identity.uri(),
        "spiffe://cluster.local/ns/a/sa/default"
    );
    assert_eq!(&*workload.cluster_id, "Kubernetes");
    assert_eq!((workload.capacity, workload.health), (1, Health::Healthy));
    assert_eq!(workload.tunnel_protocol, TunnelProtocol::None);
    assert_eq!(workload.network_mode, NetworkMode::Standard);
    let zero = wire::Workload {
        capacity: Some(0),
        ..workload_message()
    };
    assert_eq!(read_workload(zero).expect("complete").capacity, 0);
}

#[test]
fn values_of_later_versions_are_taken_where_they_only_inform() {
    let service = wire::Service {
        visibility: 9,
        ports: vec![wire::Port {
            service_port: 80,
            target_port: 0,
            app_protocol: 99,
        }],
        subject_alt_names: vec!["spiffe://td/ns/a/sa/b".into(), "dns-name".into()],
        waypoint: Some(wire::GatewayAddress {
            destination: Some(wire::gateway_address::Destination::Hostname(
                wire::NamespacedHostname {
                    namespace: "a".into(),
                    hostname: "w".into(),
                },
            )),
            hbone_mtls_port: 0,
        }),
        extensions: vec![broken("example.com/unknown")],
        ..service_message()
    };
    let service = read_service(service).expect("readable");
    assert_eq!(service.visibility, Visibility::Public);
    assert_eq!(service.ports[0].target_port, None);
    assert_eq!(service.subject_alt_names.len(), 1);
    let waypoint = service.waypoint.expect("given");
    assert_eq!(waypoint.hbone_port, HBONE_PORT);
    assert_eq!(
        waypoint.destination,
        GatewayDestination::Hostname(ServiceName::new("a", "w"))
    );
    let stranger = auth::Match {
        extensions: vec![broken("example.com/unknown")],
        ..auth::Match::default()
    };
    assert!(authorization_bytes(&one_match(stranger).encode_to_vec()).is_ok());
}

#[test]
fn ipv4_in_ipv6_clothes_is_ipv4() {
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    let workload = wire::Workload {
        addresses: vec![Bytes::copy_from_slice(&mapped)],
        ..workload_message()
    };
    assert_eq!(
        read_workload(workload).expect("readable").addresses[0].to_string(),
        "10.0.0.1"
    );
    let in_range = |length| {
        let source_ips = vec![auth::Address {
            address: mapped.to_vec(),
            length,
        }];
        let message = one_match(auth::Match {
            source_ips,
            ..auth::Match::default()
        });
        let policy = authorization_bytes(&message.encode_to_vec()).expect("readable");
        policy.groups[0].rules[0].matches[1].source_ips[0].to_string()
    };
    assert_eq!(in_range(128), "10.0.0.1/32");
    assert_eq!(in_range(104), "10.0.0.0/8");
    assert_eq!(in_range(95), "::fffe:0:0/95");
    assert_eq!(in_range(0), "::/0");
}

fn resource_of(name: &str, type_url: &str, body: Vec<u8>) -> discovery::Resource {
    discovery::Resource {
        name: name.to_owned(),
        resource: Some(prost_types::Any {
            type_url: type_url.to_owned(),
            value: body,
        }),
        ..discovery::Resource::default()
    }
}

#[test]
fn a_resource_is_what_its_name_and_type_say() {
    let policy = policy_message().encode_to_vec();
    let address = wire::Address {
        r#type: Some(wire::address::Type::Service(service_message())),
    }
    .encode_to_vec();
    let (addresses, policies, egress) = (
        names::ADDRESS_TYPE,
        names::AUTHORIZATION_TYPE,
        names::EGRESS_AUTHORIZATION_TYPE,
    );
    use ResourceType::{Address, Authorization, EgressAuthorization};
    #[rustfmt::skip]
    let table = [
        (Address, resource_of("a/s.a.svc", addresses, address.clone()), None),
        (Address, resource_of("a/other", addresses, address.clone()), Some("name: the content's key is \"a/s.a.svc\"")),
        (Address, resource_of("a/s.a.svc", policies, address), Some("resource: unexpected type")),
        (Authorization, resource_of("a/p", policies, policy.clone()), None),
        (Authorization, resource_of("a/p", egress, policy.clone()), Some("resource: unexpected type")),
        (Authorization, resource_of("a/q", policies, policy.clone()), Some("name: the content's key is \"a/p\"")),
        (EgressAuthorization, resource_of("a/p", egress, policy.clone()), None),
        (EgressAuthorization, resource_of("a/p", policies, policy), None),
        (Authorization, discovery::Resource { name: "a/p".into(), ..discovery::Resource::default() }, Some("resource: missing")),
    ];
    for (kind, message, expected) in table {
        match (resource(kind, &message), expected) {
            (Ok(_), None) => {}
            (Err(error), Some(expected)) => {
                assert!(
                    chain(&error.field).starts_with(expected),
                    "{}",
                    chain(&error.field)
                );
                assert_eq!(error.resource, message.name);
            }
            (outcome, expected) => panic!("{outcome:?} where {expected:?} was expected"),
        }
    }
}

#[test]
fn what_stands_in_for_an_unreadable_policy() {
    use ResourceType::{Address, Authorization, EgressAuthorization};
    let body = |scope, dry_run| {
        auth::Authorization {
            scope,
            dry_run,
            action: 9,
            ..policy_message()
        }
        .encode_to_vec()
    };
    let name: PolicyName = "a/p".parse().expect("valid");
    let policies = names::AUTHORIZATION_TYPE;
    let of = |kind, name: &str, body: Vec<u8>| unreadable(kind, &resource_of(name, policies, body));
    let closing = |scope| Some(Change::UnreadablePolicy(name.clone(), scope));
    assert_eq!(
        of(Authorization, "a/p", body(0, false)),
        closing(Scope::Global)
    );
    assert_eq!(
        of(Authorization, "a/p", body(1, false)),
        closing(Scope::Namespace)
    );
    assert_eq!(
        of(Authorization, "a/p", body(2, false)),
        closing(Scope::WorkloadSelector)
    );
    assert_eq!(
        of(Authorization, "a/p", body(7, false)),
        closing(Scope::Namespace)
    );
    assert_eq!(
        of(Authorization, "a/p", vec![0xff]),
        closing(Scope::Namespace)
    );
    assert_eq!(of(Authorization, "a/p", body(0, true)), None);
    assert_eq!(of(Authorization, "nameless", body(0, false)), None);
    assert_eq!(
        of(EgressAuthorization, "a/p", body(0, false)),
        Some(Change::UnreadableEgressPolicy(name.clone()))
    );
    assert_eq!(of(Address, "a/p", body(0, false)), None);
}

#[test]
fn conditions_of_both_parts_of_a_match_meet() {
    let peer = ours::PeerMatch {
        sets: vec!["s".into()],
        ..ours::PeerMatch::default()
    };
    let conditions = auth::Match {
        namespaces: vec![auth::StringMatch {
            match_type: Some(auth::string_match::MatchType::Presence(())),
        }],
        destination_ports: vec![80],
        extensions: vec![extension(names::PEER_MATCH, &peer)],
        ..auth::Match::default()
    };
    let policy = authorization_bytes(&one_match(conditions).encode_to_vec()).expect("readable");
    let expected = Match {
        namespaces: vec![StringMatch::Presence],
        destination_ports: vec![80],
        peer_sets: vec!["s".into()],
        ..Match::default()
    };
    assert_eq!(policy.groups[0].rules[0].matches[1], expected);
}
