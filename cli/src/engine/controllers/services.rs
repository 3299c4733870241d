//! Cluster addresses of Services, from 10.96.0.0/16 and fd00:10:96::/112.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::engine::object::{content_hash, list, name, namespace, set, set_default, text};
use crate::engine::settings::{Families, Family, cluster_families};
use crate::engine::world::{Action, World};

/// Numbers below this one are for services with a fixed address (DNS has 10).
const FIRST_NUMBER: u16 = 256;
/// Addresses in the range, less the network's own ends.
const NUMBERS: u16 = u16::MAX - FIRST_NUMBER;

/// The service address of a number in one family.
pub(crate) fn address(number: u16, family: Family) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    match family {
        Family::V4 => Ipv4Addr::new(10, 96, high, low).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, number).into(),
    }
}

/// Completes every Service that lacks a default or an address.
pub(crate) fn desired(world: &World, _now: SystemTime) -> Vec<Action> {
    let cluster = cluster_families(world);
    let mut taken: BTreeSet<IpAddr> = world
        .of_kind("Service")
        .flat_map(|one| addresses(one))
        .collect();
    let mut actions = Vec::new();
    for service in world.of_kind("Service") {
        let completed = complete(service, cluster, &mut taken);
        if completed != **service {
            actions.push(Action::Put(completed));
        }
    }
    actions
}

/// Cluster addresses of a service; none for headless and external ones.
pub(crate) fn addresses(service: &Value) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = list(service, "/spec/clusterIPs")
        .iter()
        .filter_map(|address| address.as_str()?.parse().ok())
        .collect();
    if addresses.is_empty() {
        addresses
            .extend(text(service, "/spec/clusterIP").and_then(|one| one.parse::<IpAddr>().ok()));
    }
    addresses
}

/// Whether the service has no address of its own.
pub(crate) fn is_headless(service: &Value) -> bool {
    text(service, "/spec/clusterIP") == Some("None")
}

/// Whether the service only is another name.
pub(crate) fn is_external_name(service: &Value) -> bool {
    text(service, "/spec/type") == Some("ExternalName")
}

/// Families in which a service exists, first one first.
pub(crate) fn families(service: &Value) -> Families {
    list(service, "/spec/ipFamilies")
        .iter()
        .filter_map(|one| one.as_str()?.parse().ok())
        .collect()
}

/// As Kubernetes defaults them: one family, the cluster's first, unless the
/// service names two or its policy asks for both. A program that listens on
/// IPv4 alone is then not offered under an IPv6 address.
fn choose(asked: Families, policy: Option<&str>, cluster: Families) -> Families {
    let named = if asked.is_empty() { cluster } else { asked };
    let both = match policy {
        Some("PreferDualStack" | "RequireDualStack") => true,
        Some(_) => false,
        None => asked.len() > 1,
    };
    let others = named.iter().skip(1).chain(cluster.iter());
    let others = others.filter(|family| Some(*family) != named.first());
    named
        .first()
        .into_iter()
        .chain(others.take(usize::from(both)))
        .collect()
}

fn complete(service: &Value, cluster: Families, taken: &mut BTreeSet<IpAddr>) -> Value {
    let mut done = service.clone();
    set_default(&mut done, &["spec", "type"], json!("ClusterIP"));
    set_default(&mut done, &["spec", "sessionAffinity"], json!("None"));
    set_default(&mut done, &["status"], json!({"loadBalancer": {}}));
    default_ports(&mut done);
    if is_external_name(&done) {
        return done;
    }
    let fixed = addresses(&done);
    let asked = families(&done);
    let chosen = if !fixed.is_empty() && text(&done, "/spec/clusterIP") != Some("None") {
        fixed.iter().copied().map(Family::of).collect()
    } else {
        choose(asked, text(&done, "/spec/ipFamilyPolicy"), cluster)
    };
    if asked.len() < chosen.len() {
        let written: Vec<_> = chosen.iter().map(|family| json!(family.name())).collect();
        set(&mut done, &["spec", "ipFamilies"], json!(written));
    }
    let policy = if chosen.len() > 1 {
        "PreferDualStack"
    } else {
        "SingleStack"
    };
    set_default(&mut done, &["spec", "ipFamilyPolicy"], json!(policy));
    if is_headless(&done) {
        set_default(&mut done, &["spec", "clusterIPs"], json!(["None"]));
        return done;
    }
    allocate(&mut done, chosen, &fixed, taken);
    done
}

fn allocate(
    service: &mut Value,
    families: Families,
    fixed: &[IpAddr],
    taken: &mut BTreeSet<IpAddr>,
) {
    let has = |family: Family| fixed.iter().any(|address| Family::of(*address) == family);
    let missing: Vec<Family> = families.iter().filter(|family| !has(*family)).collect();
    let mut all = fixed.to_vec();
    if !missing.is_empty() {
        let seed = content_hash(&json!([namespace(service), name(service)]));
        let start = u16::try_from(seed % u64::from(NUMBERS)).unwrap_or_default();
        let free = (0..NUMBERS)
            .map(|step| FIRST_NUMBER + (start.wrapping_add(step)) % NUMBERS)
            .find(|number| {
                missing
                    .iter()
                    .all(|family| !taken.contains(&address(*number, *family)))
            });
        // A full range leaves the service without an address: it shows as <none>.
        if let Some(number) = free {
            for family in missing {
                taken.insert(address(number, family));
                all.push(address(number, family));
            }
        }
    }
    let written: Vec<String> = all.iter().map(IpAddr::to_string).collect();
    if let Some(first) = written.first() {
        set(service, &["spec", "clusterIP"], json!(first));
        set(service, &["spec", "clusterIPs"], json!(written));
    }
}

fn default_ports(service: &mut Value) {
    let Some(ports) = service
        .pointer_mut("/spec/ports")
        .and_then(Value::as_array_mut)
    else {
        return;
    };
    for port in ports {
        set_default(port, &["protocol"], json!("TCP"));
        if let Some(number) = port.get("port").cloned() {
            set_default(port, &["targetPort"], number);
        }
    }
}

/// The Service and endpoints of the cluster's DNS server.
pub(crate) fn dns_service(families: Families) -> [Value; 3] {
    let addresses: Vec<String> = families
        .iter()
        .map(|one| address(10, one).to_string())
        .collect();
    let ports = json!([
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
    ]);
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": addresses.first(), "clusterIPs": addresses, "ports": ports},
    });
    let slice = |family: Family, server: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": format!("kube-dns-{}", family.name().to_lowercase()),
                         "namespace": "kube-system",
                         "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": family.name(),
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"},
                      {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
            "endpoints": [{"addresses": [server],
                           "conditions": {"ready": true, "serving": true, "terminating": false}}],
        })
    };
    [
        service,
        slice(Family::V4, "172.30.255.254"),
        slice(Family::V6, "fd00:172:30::ff:fe"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::controllers::testing::Cluster;

    fn service(spec: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Service",
               "metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
    }

    fn completed(spec: &Value) -> Value {
        let mut cluster = Cluster::default();
        cluster.put(service(spec));
        cluster.settle(desired);
        cluster.object("Service", "shop", "web")["spec"].clone()
    }

    #[test]
    fn one_family_by_default_and_stable() {
        let spec = completed(&json!({"ports": [{"port": 80}]}));
        assert_eq!(spec["ipFamilies"], json!(["IPv4"]));
        assert_eq!(spec["ipFamilyPolicy"], json!("SingleStack"));
        assert_eq!(spec["ports"][0]["targetPort"], json!(80));
        assert_eq!(spec["ports"][0]["protocol"], json!("TCP"));
        assert_eq!(
            spec["clusterIPs"],
            completed(&json!({"ports": [{"port": 80}]}))["clusterIPs"]
        );
        assert!(
            spec["clusterIP"]
                .as_str()
                .expect("address")
                .starts_with("10.96.")
        );
    }

    #[test]
    fn a_wish_for_one_family_counts() {
        let spec = completed(&json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"}));
        assert_eq!(spec["clusterIPs"].as_array().expect("list").len(), 1);
        assert!(
            spec["clusterIP"]
                .as_str()
                .expect("address")
                .starts_with("fd00:10:96::")
        );
    }

    #[test]
    fn a_wish_for_both_families_counts() {
        for wish in [
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            json!({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "RequireDualStack"}),
            json!({"ipFamilies": ["IPv4", "IPv6"]}),
        ] {
            let spec = completed(&wish);
            assert_eq!(spec["ipFamilies"][0], json!("IPv4"), "{wish}");
            assert_eq!(
                spec["clusterIPs"].as_array().expect("list").len(),
                2,
                "{wish}"
            );
        }
    }

    #[test]
    fn a_fixed_address_stays() {
        let spec = completed(&json!({"clusterIP": "10.96.3.3"}));
        assert_eq!(spec["clusterIPs"], json!(["10.96.3.3"]));
        assert_eq!(spec["ipFamilies"], json!(["IPv4"]));
    }

    #[test]
    fn headless_and_external_get_none() {
        assert_eq!(
            completed(&json!({"clusterIP": "None"}))["clusterIPs"],
            json!(["None"])
        );
        let spec = completed(&json!({"type": "ExternalName", "externalName": "example.org"}));
        assert!(spec.get("clusterIP").is_none());
    }

    #[test]
    fn no_address_twice() {
        let mut cluster = Cluster::default();
        for index in 0..300 {
            let mut one = service(&json!({"ipFamilyPolicy": "PreferDualStack"}));
            one["metadata"]["name"] = json!(format!("s{index}"));
            cluster.put(one);
        }
        cluster.settle(desired);
        let all: Vec<_> = cluster
            .world()
            .of_kind("Service")
            .flat_map(|one| addresses(one))
            .collect();
        let distinct: BTreeSet<_> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (600, 600));
    }
}
