mod random;

use std::collections::HashMap;
use std::sync::Arc;

use culvert_api::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Status};

use super::*;
use crate::kind::ResourceType;
use crate::resource::{ClientView, Resource, ResourceSet};

const URL: &str = culvert_api::names::ADDRESS_TYPE;

fn set(resources: &[(&str, &str, &[&str])]) -> Arc<ResourceSet> {
    let one = |(name, body, aliases): &(&str, &str, &[&str])| {
        let aliases = aliases.iter().map(ToString::to_string).collect();
        Arc::new(Resource::new(*name, body.as_bytes().to_vec(), aliases))
    };
    Arc::new(resources.iter().map(one).collect())
}

fn version(set: &ResourceSet, name: &str) -> String {
    set.get(name).expect(name).version().to_owned()
}

fn first(
    subscribe: &[&str],
    unsubscribe: &[&str],
    versions: &[(&str, &str)],
) -> DeltaDiscoveryRequest {
    let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    DeltaDiscoveryRequest {
        type_url: URL.to_owned(),
        resource_names_subscribe: strings(subscribe),
        resource_names_unsubscribe: strings(unsubscribe),
        initial_resource_versions: versions
            .iter()
            .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
            .collect(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn ack(response: &DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn names(response: &DeltaDiscoveryResponse) -> (Vec<&str>, Vec<&str>) {
    let changed = response
        .resources
        .iter()
        .map(|resource| resource.name.as_str());
    (
        changed.collect(),
        response
            .removed_resources
            .iter()
            .map(String::as_str)
            .collect(),
    )
}

fn respond(server: &mut ServerSession, set: &Arc<ResourceSet>) -> Option<DeltaDiscoveryResponse> {
    server.respond(URL, set, Removals::Now)
}

/// A server that got this first request.
fn asked(request: DeltaDiscoveryRequest) -> ServerSession {
    let mut server = ServerSession::new();
    assert_eq!(server.receive(request), Ok(Event::Subscribed));
    server
}

#[test]
fn an_empty_set_is_answered_once() {
    let mut server = asked(first(&[], &[], &[]));
    let empty = set(&[]);
    let response = respond(&mut server, &empty).expect("an answer");
    assert_eq!(names(&response), (vec![], vec![]));
    assert_eq!(server.receive(ack(&response)), Ok(Event::Acknowledged));
    assert_eq!(respond(&mut server, &empty), None);
    assert_eq!(
        respond(&mut server, &set(&[])),
        None,
        "an equal set is no news either"
    );
}

#[test]
fn only_differences_are_sent() {
    let mut server = asked(first(&["*"], &[], &[]));
    let response =
        respond(&mut server, &set(&[("a", "1", &[]), ("b", "1", &[])])).expect("an answer");
    assert_eq!(names(&response), (vec!["a", "b"], vec![]));
    let later = set(&[("a", "1", &[]), ("b", "2", &[]), ("c", "1", &[])]);
    assert_eq!(respond(&mut server, &later), None, "one response at a time");
    assert_eq!(server.receive(ack(&response)), Ok(Event::Acknowledged));
    let latest = set(&[("b", "3", &[])]);
    let response = respond(&mut server, &latest).expect("a difference");
    assert_eq!(
        names(&response),
        (vec!["b"], vec!["a"]),
        "c came and went in between"
    );
}

#[test]
fn a_reconnect_carries_what_is_known() {
    let now = set(&[
        ("same", "1", &[]),
        ("new", "1", &[]),
        ("changed", "2", &[]),
        ("bad", "1", &[]),
    ]);
    let same = version(&now, "same");
    let known = [
        ("same", same.as_str()),
        ("changed", "old"),
        ("gone", "x"),
        ("bad", ""),
    ];
    let mut server = asked(first(&[], &[], &known));
    let response = respond(&mut server, &now).expect("an answer");
    assert_eq!(
        names(&response),
        (vec!["bad", "changed", "new"], vec!["gone"])
    );
    let mut other_replica = asked(first(&[], &[], &[("same", &same)]));
    let response = respond(&mut other_replica, &set(&[("same", "1", &[])])).expect("an answer");
    assert_eq!(
        names(&response),
        (vec![], vec![]),
        "versions are the same everywhere"
    );
}

#[test]
fn stale_and_foreign_nonces_mean_nothing() {
    let mut server = asked(first(&[], &[], &[]));
    let response = respond(&mut server, &set(&[])).expect("an answer");
    let stale = DeltaDiscoveryRequest {
        response_nonce: "77".to_owned(),
        ..ack(&response)
    };
    assert_eq!(server.receive(stale), Ok(Event::Stale));
    let nothing = DeltaDiscoveryRequest {
        response_nonce: String::new(),
        ..ack(&response)
    };
    assert_eq!(server.receive(nothing), Ok(Event::Stale));
    assert!(server.is_waiting());
    assert_eq!(server.receive(ack(&response)), Ok(Event::Acknowledged));
    assert_eq!(server.receive(ack(&response)), Ok(Event::Stale), "twice");
}

#[test]
fn what_was_refused_is_not_sent_again_until_it_changes() {
    let mut server = asked(first(&[], &[], &[]));
    let bad = set(&[("a/bad", "1", &[]), ("a/good", "1", &[])]);
    let response = respond(&mut server, &bad).expect("an answer");
    let nack = DeltaDiscoveryRequest {
        error_detail: Some(Status {
            code: 0,
            message: "a/bad: scope: unknown value 9".to_owned(),
        }),
        ..ack(&response)
    };
    let rejection = Rejection {
        resource: "a/bad".to_owned(),
        reason: "scope: unknown value 9".to_owned(),
    };
    assert_eq!(server.receive(nack), Ok(Event::Rejected(vec![rejection])));
    assert_eq!(respond(&mut server, &bad), None);
    let response = respond(
        &mut server,
        &set(&[("a/bad", "2", &[]), ("a/good", "1", &[])]),
    );
    assert_eq!(
        names(&response.expect("it changed")),
        (vec!["a/bad"], vec![])
    );
}

#[test]
fn on_demand_by_name_and_alias() {
    let all = set(&[("a", "1", &["/10.0.0.1"]), ("b", "1", &[])]);
    let mut server = asked(first(&["*"], &["*"], &[]));
    let response = respond(&mut server, &all).expect("an answer");
    assert_eq!(names(&response), (vec![], vec![]), "nothing was asked for");
    server.receive(ack(&response)).expect("in bounds");
    let mut ask = |keys: &[&str], unsubscribe: &[&str], all: &Arc<ResourceSet>| {
        assert_eq!(
            server.receive(first(keys, unsubscribe, &[])),
            Ok(Event::Subscribed)
        );
        let response = respond(&mut server, all);
        if let Some(response) = &response {
            server.receive(ack(response)).expect("in bounds");
        }
        response.map(|response| {
            (
                names(&response).0.join(","),
                names(&response).1.join(","),
                response,
            )
        })
    };
    let (changed, removed, response) = ask(&["/10.0.0.1"], &[], &all).expect("an answer");
    assert_eq!((changed.as_str(), removed.as_str()), ("a", ""));
    assert_eq!(response.resources[0].aliases, ["/10.0.0.1"]);
    let (changed, removed, _) = ask(&["/10.0.0.9", "x"], &[], &all).expect("an answer");
    assert_eq!(
        (changed.as_str(), removed.as_str()),
        ("", "/10.0.0.9,x"),
        "missing keys are answered"
    );
    let (changed, _, _) = ask(&["a"], &[], &all).expect("an answer");
    assert_eq!(changed, "a", "asking again is answered again");
    let moved = set(&[("a", "1", &[]), ("b", "1", &["/10.0.0.1"])]);
    let (changed, removed, _) = ask(&[], &["a"], &moved).expect("the alias means another one");
    assert_eq!(
        (changed.as_str(), removed.as_str()),
        ("b", ""),
        "the client forgot a itself"
    );
    let (changed, removed, _) = ask(&[], &["/10.0.0.1", "/10.0.0.9", "x"], &moved).expect("an end");
    assert_eq!(
        (changed.as_str(), removed.as_str()),
        ("", "b"),
        "behind an alias it has to be said"
    );
    assert_eq!(
        respond(&mut server, &all),
        None,
        "nothing is subscribed any more"
    );
}

#[test]
fn on_demand_after_a_reconnect() {
    let all = set(&[("a", "1", &[]), ("b", "2", &[])]);
    let a = version(&all, "a");
    let mut server = asked(first(
        &["a", "b", "c"],
        &[],
        &[("a", &a), ("b", "old"), ("c", "old")],
    ));
    let response = respond(&mut server, &all).expect("an answer");
    assert_eq!(names(&response), (vec!["b"], vec!["c"]));
}

#[test]
fn removals_can_wait() {
    let mut server = asked(first(&[], &[], &[("gone", "1")]));
    let now = set(&[("new", "1", &[])]);
    let response = server
        .respond(URL, &now, Removals::Later)
        .expect("an answer");
    assert_eq!(names(&response), (vec!["new"], vec![]));
    server.receive(ack(&response)).expect("in bounds");
    assert_eq!(server.respond(URL, &now, Removals::Later), None);
    assert!(!server.is_settled(URL, &now) && !server.has_news(URL, &now));
    let response = server
        .respond(URL, &now, Removals::Now)
        .expect("the removal");
    assert_eq!(names(&response), (vec![], vec!["gone"]));
    server.receive(ack(&response)).expect("in bounds");
    assert!(server.is_settled(URL, &now));
}

#[test]
fn a_client_that_wants_too_much_is_refused() {
    let mut server = ServerSession::new();
    let of_type = |number: usize| DeltaDiscoveryRequest {
        type_url: number.to_string(),
        ..first(&[], &[], &[])
    };
    for number in 0..16 {
        assert_eq!(server.receive(of_type(number)), Ok(Event::Subscribed));
    }
    assert_eq!(server.receive(of_type(16)), Err(SessionError::TooManyTypes));
    let keys: Vec<String> = (0..=65_536).map(|number| number.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(
        ServerSession::new().receive(first(&keys, &[], &[])),
        Err(SessionError::TooManyNames)
    );
}

#[test]
fn types_that_nobody_serves_are_answered_empty_once() {
    let other = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let mut server = asked(DeltaDiscoveryRequest {
        type_url: other.to_owned(),
        ..first(&[], &[], &[])
    });
    let response = next_response(&mut server, &ClientView::default()).expect("an answer");
    assert_eq!(
        (response.type_url.as_str(), names(&response)),
        (other, (vec![], vec![]))
    );
    server.receive(ack(&response)).expect("in bounds");
    assert_eq!(next_response(&mut server, &ClientView::default()), None);
}

#[test]
fn policies_go_first_and_leave_last() {
    let view =
        |addresses: &[(&str, &str, &[&str])], policies: &[(&str, &str, &[&str])]| ClientView {
            addresses: set(addresses),
            authorizations: set(policies),
            egress_authorizations: set(policies),
        };
    let mut server = ServerSession::new();
    for kind in ResourceType::ALL {
        let request = DeltaDiscoveryRequest {
            type_url: kind.url().to_owned(),
            ..first(&[], &[], &[])
        };
        server.receive(request).expect("in bounds");
    }
    let mut sent_for = |view: &ClientView| {
        let mut sent = Vec::new();
        while let Some(response) = next_response(&mut server, view) {
            let kind = ResourceType::from_url(&response.type_url)
                .expect("ours")
                .as_str();
            let (changed, removed) = names(&response);
            sent.push(format!(
                "{kind} +{} -{}",
                changed.join(","),
                removed.join(",")
            ));
            server.receive(ack(&response)).expect("in bounds");
        }
        sent
    };
    let initial = sent_for(&view(&[("w", "1", &[])], &[("a/p", "1", &[])]));
    assert_eq!(
        initial,
        [
            "authorization +a/p -",
            "egress_authorization +a/p -",
            "address +w -"
        ]
    );
    let exchanged = sent_for(&view(&[("w", "2", &[])], &[("a/q", "1", &[])]));
    let expected = [
        "authorization +a/q -",
        "egress_authorization +a/q -",
        "address +w -",
        "authorization + -a/p",
        "egress_authorization + -a/p",
    ];
    assert_eq!(exchanged, expected);
}

fn node() -> Node {
    Node {
        ip: [10, 0, 0, 1].into(),
        name: "proxy-1".to_owned(),
        namespace: "culvert-system".to_owned(),
        node_name: "node-1".to_owned(),
        cluster_id: "Kubernetes".to_owned(),
        metadata: [("EXTRA".to_owned(), "x".to_owned())].into(),
    }
}

#[test]
fn the_first_requests_say_who_asks_and_for_what() {
    let requests = ClientSession::new(&node()).connect();
    let urls: Vec<_> = requests
        .iter()
        .map(|request| request.type_url.as_str())
        .collect();
    assert_eq!(urls, ResourceType::ALL.map(ResourceType::url));
    for request in requests {
        let node = request.node.expect("in each first request");
        assert_eq!(
            node.id,
            "ztunnel~10.0.0.1~proxy-1.culvert-system~culvert-system.svc.cluster.local"
        );
        let fields = node.metadata.expect("given").fields;
        for key in ["NAME", "NAMESPACE", "NODE_NAME", "INSTANCE_IPS", "EXTRA"] {
            assert!(fields.contains_key(key), "{key}");
        }
        assert!(request.resource_names_subscribe.is_empty() && request.response_nonce.is_empty());
    }
}

#[test]
fn a_client_refuses_by_name_and_keeps_the_rest() {
    let mut client = ClientSession::new(&node());
    let good = crate::encode::service_resource(&culvert_model::Service::new(
        "a/s.example".parse().expect("valid"),
        "s",
    ));
    let mut response = DeltaDiscoveryResponse {
        type_url: URL.to_owned(),
        nonce: "5".to_owned(),
        resources: vec![
            good.to_wire(URL),
            Resource::new("a/bad", vec![0xff], vec![]).to_wire(URL),
        ],
        removed_resources: vec!["never-known".to_owned()],
        ..DeltaDiscoveryResponse::default()
    };
    let received = client.receive(&response);
    assert_eq!(received.changes.len(), 1);
    assert_eq!(received.reply.response_nonce, "5");
    let message = received.reply.error_detail.expect("a refusal").message;
    assert!(
        message.starts_with("a/bad: message: not an encoded message"),
        "{message}"
    );
    let known: HashMap<_, _> = client.connect().remove(2).initial_resource_versions;
    assert_eq!(
        known.get("a/bad").map(String::as_str),
        Some(""),
        "to be sent again"
    );
    assert_eq!(
        known.get("a/s.example").map(String::as_str),
        Some(good.version())
    );
    response.resources.clear();
    response.removed_resources = vec!["a/bad".to_owned(), "a/s.example".to_owned()];
    let received = client.receive(&response);
    assert_eq!(
        (received.changes.len(), received.reply.error_detail),
        (2, None)
    );
    assert!(
        client
            .connect()
            .remove(2)
            .initial_resource_versions
            .is_empty()
    );
}

#[test]
fn a_client_acknowledges_types_that_it_does_not_know() {
    let mut client = ClientSession::new(&node());
    let response = DeltaDiscoveryResponse {
        type_url: "other".to_owned(),
        nonce: "9".to_owned(),
        ..DeltaDiscoveryResponse::default()
    };
    let received = client.receive(&response);
    assert!(received.kind.is_none() && received.changes.is_empty());
    assert_eq!(
        (
            received.reply.type_url.as_str(),
            received.reply.response_nonce.as_str()
        ),
        ("other", "9")
    );
}

#[test]
fn a_client_is_complete_without_what_stock_servers_lack() {
    let mut client = ClientSession::new(&node());
    let mut answer = |kind: ResourceType| {
        client.receive(&DeltaDiscoveryResponse {
            type_url: kind.url().to_owned(),
            ..DeltaDiscoveryResponse::default()
        });
        client.is_complete()
    };
    assert!(!answer(ResourceType::EgressAuthorization));
    assert!(!answer(ResourceType::Address));
    assert!(answer(ResourceType::Authorization));
}
