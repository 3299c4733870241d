use culvert_model::{
    Health, HealthPolicy, IpFamilies, LoadBalancingMode, NetworkMode, Port, RoutingScope,
    TunnelProtocol, WorkloadType,
};

use super::*;

fn workload<'a>(compiled: &'a Compiled, uid: &str) -> &'a Workload {
    compiled
        .workloads
        .get(uid)
        .unwrap_or_else(|| panic!("no {uid} in {:?}", compiled.workloads.keys()))
}

fn service<'a>(compiled: &'a Compiled, name: &str) -> &'a Service {
    &compiled.services[&name.parse::<ServiceName>().unwrap()]
}

const NODE: &str = "---\napiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/region: eu, topology.kubernetes.io/zone: eu-1}}\nstatus: {conditions: [{type: Ready, status: 'True'}]}\n";

#[test]
fn a_pod_becomes_a_workload() {
    let yaml = pod(
        "web-1",
        "shop",
        "10.0.0.1}, {ip: 'fd00::1'",
        "app: web, version: v2",
    ) + NODE;
    let compiled = compiled(&yaml);
    let workload = workload(&compiled, "Kubernetes//Pod/shop/web-1");
    assert_eq!(workload.addresses.len(), 2);
    assert_eq!(workload.tunnel_protocol, TunnelProtocol::Hbone);
    assert_eq!(
        workload.identity.uri(),
        "spiffe://cluster.local/ns/shop/sa/web-1"
    );
    assert_eq!(
        (&*workload.canonical_name, &*workload.canonical_revision),
        ("web", "v2")
    );
    assert_eq!(
        (
            &*workload.node,
            &*workload.locality.region,
            &*workload.locality.zone
        ),
        ("n1", "eu", "eu-1")
    );
    assert_eq!(
        (workload.workload_type, &*workload.workload_name),
        (WorkloadType::Pod, "web-1")
    );
    assert_eq!(workload.health, Health::Healthy);
}

#[test]
fn what_cannot_serve_is_unhealthy_or_absent() {
    let good = pod("p", "shop", "10.0.0.1", "");
    let health = |yaml: &str| compiled(yaml).workloads.values().next().map(|w| w.health);
    assert_eq!(health(&good), Some(Health::Healthy));
    let not_ready = good.replace(
        "type: Ready, status: 'True'",
        "type: Ready, status: 'False'",
    );
    assert_eq!(health(&not_ready), Some(Health::Unhealthy));
    let terminating = good.replace(
        "name: p,",
        "name: p, deletionTimestamp: '2026-01-01T00:00:00Z',",
    );
    assert_eq!(health(&terminating), Some(Health::Unhealthy));
    let dead_node = NODE.replace("'True'", "'False'");
    assert_eq!(
        health(&(good.clone() + &dead_node)),
        Some(Health::Unhealthy)
    );
    let lease = "---\napiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: n1, namespace: kube-node-lease}\nspec: {leaseDurationSeconds: 10, renewTime: '2026-01-01T00:00:50.000000Z'}\n";
    assert_eq!(
        health(&(good.clone() + lease)),
        Some(Health::Unhealthy),
        "expired just now"
    );
    assert_eq!(
        health(&(good.clone() + &lease.replace("00:50", "00:51"))),
        Some(Health::Healthy)
    );
    for phase in ["Succeeded", "Failed"] {
        let ended = good.replace(
            "status: {podIPs",
            &format!("status: {{phase: {phase}, podIPs"),
        );
        assert_eq!(health(&ended), None);
    }
    assert_eq!(
        health(&good.replace("podIPs: [{ip: 10.0.0.1}], ", "")),
        None
    );
}

#[test]
fn host_network_and_unenrolled_pods_have_no_tunnel() {
    let good = pod("p", "shop", "10.0.0.1", "");
    let host = good.replace("spec: {", "spec: {hostNetwork: true, ");
    let compiled_host = compiled(&host);
    let found = workload(&compiled_host, "Kubernetes//Pod/shop/p");
    assert_eq!(
        (found.tunnel_protocol, found.network_mode),
        (TunnelProtocol::None, NetworkMode::HostNetwork)
    );
    let compiled_plain = compiled(&good.replace("'true'", "'pending'"));
    let found = workload(&compiled_plain, "Kubernetes//Pod/shop/p");
    assert_eq!(
        (found.tunnel_protocol, found.network_mode),
        (TunnelProtocol::None, NetworkMode::Standard)
    );
}

fn service_yaml(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{selector: {{app: web}}, ports: [{{port: 80, name: http, targetPort: http}}, {{port: 53, protocol: UDP, name: dns}}], {spec}}}\n"
    )
}

fn services() -> Compiled {
    let yaml = service_yaml(
        "plain",
        "clusterIPs: [10.96.0.1, 'fd00::1'], ipFamilies: [IPv4, IPv6]",
    ) + &service_yaml(
        "local",
        "internalTrafficPolicy: Local, trafficDistribution: PreferClose",
    ) + &service_yaml(
        "zone",
        "trafficDistribution: PreferClose, ipFamilies: [IPv6]",
    ) + &service_yaml("node", "trafficDistribution: PreferSameNode")
        + &service_yaml("early", "publishNotReadyAddresses: true, clusterIP: None")
        + "---\napiVersion: v1\nkind: Service\nmetadata: {name: out, namespace: shop}\nspec: {type: ExternalName, externalName: example.com}\n";
    compiled(&yaml)
}

#[test]
fn services_keep_their_own_settings() {
    let compiled = services();
    let balancing = |name: &str| {
        let lb = &service(&compiled, &format!("shop/{name}.shop.svc.cluster.local")).load_balancing;
        (lb.mode, lb.routing_preference.clone(), lb.health_policy)
    };
    use RoutingScope::{Network, Node, Region, Subzone, Zone};
    let healthy = HealthPolicy::OnlyHealthy;
    assert_eq!(
        balancing("plain"),
        (LoadBalancingMode::Unspecified, vec![], healthy)
    );
    assert_eq!(
        balancing("local"),
        (LoadBalancingMode::Strict, vec![Node], healthy)
    );
    assert_eq!(
        balancing("zone"),
        (
            LoadBalancingMode::Failover,
            vec![Network, Region, Zone],
            healthy
        )
    );
    assert_eq!(
        balancing("node"),
        (
            LoadBalancingMode::Failover,
            vec![Network, Region, Zone, Subzone, Node],
            healthy
        )
    );
    assert_eq!(
        balancing("early"),
        (
            LoadBalancingMode::Unspecified,
            vec![],
            HealthPolicy::AllowAll
        )
    );
}

#[test]
fn services_have_addresses_and_tcp_ports() {
    let compiled = services();
    let plain = service(&compiled, "shop/plain.shop.svc.cluster.local");
    assert_eq!(
        (plain.addresses.len(), plain.ip_families, plain.canonical),
        (2, IpFamilies::Dual, true)
    );
    assert_eq!(plain.ports.len(), 1, "TCP only");
    assert_eq!(plain.ports[0].target_port, None, "named: only pods know it");
    assert_eq!(
        service(&compiled, "shop/zone.shop.svc.cluster.local").ip_families,
        IpFamilies::Ipv6Only
    );
    assert!(
        service(&compiled, "shop/early.shop.svc.cluster.local")
            .addresses
            .is_empty()
    );
    assert_eq!(
        compiled.services.len(),
        5,
        "ExternalName is a matter of DNS"
    );
}

fn ports(compiled: &Compiled, uid: &str, name: &str) -> Option<Vec<Option<u16>>> {
    let ports: &Vec<Port> = workload(compiled, uid)
        .services
        .get(&name.parse::<ServiceName>().unwrap())?;
    Some(ports.iter().map(|port| port.target_port).collect())
}

#[test]
fn membership_comes_from_slices_where_there_are_any() {
    let base = pod("a", "shop", "10.0.0.1", "app: web")
        + &pod("b", "shop", "10.0.0.2", "app: other")
        + &service_yaml("web", "clusterIP: 10.96.0.1");
    let name = "shop/web.shop.svc.cluster.local";
    let by_selector = compiled(&base);
    assert_eq!(
        ports(&by_selector, "Kubernetes//Pod/shop/a", name),
        Some(vec![Some(8080)])
    );
    assert_eq!(ports(&by_selector, "Kubernetes//Pod/shop/b", name), None);
    let slice = |conditions: &str| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\nports: [{{name: http, port: 9090}}]\nendpoints:\n- {{addresses: [10.0.0.2], targetRef: {{kind: Pod, name: b, namespace: shop}}, conditions: {{{conditions}}}}}\n- {{addresses: [192.0.2.1]}}\n- {{addresses: [10.0.0.9], targetRef: {{kind: Pod, name: gone, namespace: shop}}}}\n"
        )
    };
    let by_slice = compiled(&(base.clone() + &slice("ready: true")));
    assert_eq!(ports(&by_slice, "Kubernetes//Pod/shop/a", name), None);
    assert_eq!(
        ports(&by_slice, "Kubernetes//Pod/shop/b", name),
        Some(vec![Some(9090)])
    );
    let outside = "Kubernetes/discovery.k8s.io/EndpointSlice/shop/web/192.0.2.1";
    assert_eq!(ports(&by_slice, outside, name), Some(vec![Some(9090)]));
    assert_eq!(
        workload(&by_slice, outside).tunnel_protocol,
        TunnelProtocol::None
    );
    assert_eq!(
        by_slice.workloads.len(),
        3,
        "the pod that is gone is no endpoint"
    );
    for leaving in ["ready: false", "ready: true, terminating: true"] {
        let compiled = compiled(&(base.clone() + &slice(leaving)));
        assert_eq!(
            ports(&compiled, "Kubernetes//Pod/shop/b", name),
            None,
            "{leaving}"
        );
    }
    let early = base.replace("clusterIP: 10.96.0.1", "publishNotReadyAddresses: true");
    let compiled = compiled(&(early + &slice("ready: false")));
    assert_eq!(
        ports(&compiled, "Kubernetes//Pod/shop/b", name),
        Some(vec![Some(9090)])
    );
}

#[test]
fn pods_of_a_headless_service_have_names() {
    let named = pod("db-0", "shop", "10.0.0.1", "app: web")
        .replace("spec: {", "spec: {hostname: db-0, subdomain: db, ");
    let hostname = |yaml: &str| {
        workload(&compiled(yaml), "Kubernetes//Pod/shop/db-0")
            .hostname
            .to_string()
    };
    assert_eq!(
        hostname(&(named.clone() + &service_yaml("db", "clusterIP: None"))),
        "db-0.db.shop.svc.cluster.local"
    );
    assert_eq!(
        hostname(&(named.clone() + &service_yaml("db", "clusterIP: 10.96.0.1"))),
        ""
    );
    assert_eq!(hostname(&named), "");
}
