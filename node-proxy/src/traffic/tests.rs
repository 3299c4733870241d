//! The exposition, and that series of workloads that are gone go away.

use culvert_identity::{Identity, TrustDomain};
use culvert_model::{Change, Workload};

use super::*;

fn workload(name: &str) -> Arc<Workload> {
    let domain: TrustDomain = "cluster.local".parse().expect("trust domain");
    let identity = Identity::new(&domain, "shop", name).expect("identity");
    let uid = WorkloadUid::new(format!("c//Pod/shop/{name}"));
    let mut workload = Workload::new(uid, name, identity);
    workload.workload_name = name.into();
    Arc::new(workload)
}

fn exposition(metrics: &TrafficMetrics) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(metrics.clone()));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
    text
}

#[test]
fn series_of_workloads_that_are_gone_go_once_nothing_is_open() {
    let metrics = TrafficMetrics::default();
    let (a, b) = (workload("a"), workload("b"));
    let snapshot = Snapshot::empty().apply([
        Change::Workload(Workload::clone(&a)),
        Change::Workload(Workload::clone(&b)),
    ]);
    let series = metrics.series(&Subject {
        reporter: Reporter::Source,
        security: Security::MutualTls,
        source: Some(&a),
        destination: Some(&b),
        service: None,
    });
    series.open();
    series.add_received(10);
    series.add_sent(20);
    metrics.sweep(&snapshot);
    let text = exposition(&metrics);
    for line in [
        "istio_tcp_connections_opened_total{reporter=\"source\",source_workload=\"a\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/a\"",
        "connection_security_policy=\"mutual_tls\",response_flags=\"-\"} 1",
        "istio_tcp_sent_bytes_total{",
        "response_flags=\"-\"} 20",
        "destination_service=\"unknown\"",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let without = snapshot.apply([Change::RemoveAddress(b.uid.as_str().into())]);
    metrics.sweep(&without);
    assert!(exposition(&metrics).contains("source_workload=\"a\""));
    let generation = metrics.generation();
    series.close(Flag::Connect);
    assert!(exposition(&metrics).contains("istio_tcp_connections_failed_total{"));
    metrics.sweep(&without);
    assert!(!exposition(&metrics).contains("source_workload=\"a\""));
    assert!(metrics.generation() > generation);
}

#[test]
fn a_plain_connection_has_no_principal_of_its_source() {
    let metrics = TrafficMetrics::default();
    let (a, b) = (workload("a"), workload("b"));
    metrics.series(&Subject {
        reporter: Reporter::Destination,
        security: Security::Plain,
        source: Some(&a),
        destination: Some(&b),
        service: None,
    });
    let text = exposition(&metrics);
    assert!(text.contains("source_principal=\"unknown\""), "{text}");
    assert!(text.contains("destination_principal=\"spiffe://cluster.local/ns/shop/sa/b\""));
}

#[test]
fn flags_are_numbered_in_the_order_of_the_list() {
    for (index, flag) in Flag::ALL.into_iter().enumerate() {
        assert_eq!(flag as usize, index);
    }
}
