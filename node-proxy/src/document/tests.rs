use culvert_model::Snapshot;

use super::*;

const EXAMPLE: &str = r#"
workloads:
- {uid: "c1//Pod/shop/cart", name: cart, namespace: shop, serviceAccount: cart, trustDomain: cluster.local,
   workloadIps: [10.9.0.2, "fd00::2"], protocol: HBONE, node: n1, services: {"shop/cart.shop.svc.cluster.local": {80: 8080}},
   applicationTunnel: {protocol: PROXY, port: 15088}, waypoint: {destination: "/10.9.0.9", hboneMtlsPort: 15008}}
- {name: web, namespace: shop, workloadIps: [10.9.0.3], services: {}}
services:
- {name: cart, namespace: shop, hostname: cart.shop.svc.cluster.local, vips: ["/10.96.0.7"], ports: {80: 8080},
   loadBalancer: {routingPreferences: [Network, Node], mode: Failover, healthPolicy: AllowAll}, ipFamilies: IPv4,
   waypoint: {destination: "shop/wp.shop.svc.cluster.local", hboneMtlsPort: 15008}, cidrVips: ["net/10.0.0.0/8"]}
policies:
- {name: p1, namespace: shop, scope: Namespace, action: Deny, dryRun: false,
   rules: [[[{destinationPorts: [9999], principals: [{Exact: "cluster.local/ns/x/sa/y"}], notNamespaces: [{Presence: []}],
   sourceIps: [10.0.0.0/8, 1.2.3.4], serviceAccounts: [{namespace: a, serviceAccount: b}]}]]]}
"#;

fn domain() -> TrustDomain {
    "cluster.local".parse().expect("trust domain")
}

fn read(text: &str) -> MeshDocument {
    serde_saphyr::from_str(text).expect("a document")
}

fn fault(text: &str) -> String {
    read(text)
        .changes(&domain())
        .expect_err("a fault")
        .to_string()
}

#[test]
fn a_fault_names_object_and_field() {
    let error =
        fault("services: [{name: a, namespace: b, hostname: c, vips: [10.0.0.1], ports: {}}]");
    assert_eq!(
        error,
        "service b/c: vips: \"10.0.0.1\" is not of the form network/IP"
    );
    let error = fault("workloads: [{name: a, namespace: b, workloadIps: [], services: {c: {}}}]");
    assert!(error.starts_with("workload b/a: services: "), "{error}");
    let error = fault(
        "policies: [{name: a, namespace: b, scope: Global, action: Deny, dryRun: true, \
         rules: [[[{sourceIps: [x]}]]]}]",
    );
    assert_eq!(error, "policy b/a: sourceIps: \"x\" is not a CIDR");
    for text in [
        "workload: []",
        "workloads: [{name: a, namespace: b, workloadIps: [], services: {}, Node: x}]",
    ] {
        assert!(
            serde_saphyr::from_str::<MeshDocument>(text).is_err(),
            "{text}"
        );
    }
}

#[test]
fn a_file_becomes_a_snapshot_and_a_snapshot_a_file() {
    let snapshot = Snapshot::empty().apply(read(EXAMPLE).changes(&domain()).expect("good"));
    let shown = MeshDocument::of(&snapshot);
    let text = serde_json::to_string(&shown).expect("serializes");
    let again: MeshDocument = serde_json::from_str(&text).expect("its own form");
    assert_eq!(again, shown);
    let same = Snapshot::empty().apply(again.changes(&domain()).expect("good"));
    assert_eq!(MeshDocument::of(&same), shown);
    let web = shown
        .workloads
        .iter()
        .find(|w| w.name == "web")
        .expect("web");
    assert_eq!(
        (web.uid.as_str(), web.service_account.as_str()),
        ("Kubernetes//Pod/shop/web", "default")
    );
    assert_eq!(shown.services[0].cidr_vips, ["net/10.0.0.0/8"]);
    assert_eq!(
        shown.policies[0].rules[0][0][0].source_ips,
        ["10.0.0.0/8", "1.2.3.4/32"]
    );
    let cart = snapshot
        .workload_at("10.9.0.2".parse().expect("ip"))
        .expect("cart");
    assert!(cart.is_meshed());
    assert_eq!(
        cart.identity.to_string(),
        "spiffe://cluster.local/ns/shop/sa/cart"
    );
}
