//! What a peer may name in `:authority`.

use culvert_identity::TrustDomain;
use culvert_model::{AppProtocol, Change, NetworkAddress, Port, ServiceName, WorkloadUid};

use super::*;

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const OWN_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));

fn port(service_port: u16, target_port: Option<u16>) -> Port {
    Port {
        service_port,
        target_port,
        app_protocol: AppProtocol::Unknown,
    }
}

fn name(host: &str) -> ServiceName {
    ServiceName::new("shop", format!("{host}.shop.svc.cluster.local"))
}

fn record(account: &str, address: IpAddr) -> Workload {
    let domain: TrustDomain = "cluster.local".parse().expect("trust domain");
    let identity = Identity::new(&domain, "shop", account).expect("identity");
    let mut workload = Workload::new(WorkloadUid::new(account), account, identity);
    workload.addresses = vec![address];
    workload
}

/// The pod behind services `web` (80 to 8080) and `named` (81, resolved by the
/// pod), and another pod.
fn world() -> (Snapshot, Workload) {
    let mut pod = record("pod", OWN);
    pod.addresses.push(OWN_V6);
    pod.services.insert(name("web"), vec![port(80, None)]);
    pod.services
        .insert(name("named"), vec![port(81, Some(8181))]);
    let mut web = Service::new(name("web"), "web");
    web.ports = vec![port(80, Some(8080))];
    web.addresses = vec![NetworkAddress::host(
        "",
        "10.96.0.1".parse().expect("address"),
    )];
    let mut named = Service::new(name("named"), "named");
    named.ports = vec![port(81, None)];
    let snapshot = Snapshot::empty().apply([
        Change::Service(web),
        Change::Service(named),
        Change::Workload(pod.clone()),
        Change::Workload(record("other", "10.0.0.3".parse().expect("address"))),
    ]);
    (snapshot, pod)
}

fn check(authority: &str) -> Result<String, String> {
    let (snapshot, pod) = world();
    check_in(&snapshot, &pod, authority)
}

fn check_in(snapshot: &Snapshot, pod: &Workload, authority: &str) -> Result<String, String> {
    let authority = authority.parse().expect("authority");
    let target = resolve(snapshot, pod, OWN, &authority);
    let target = target.map_err(|refused| format!("{} {refused}", refused.status().as_u16()))?;
    Ok(target.address.to_string())
}

#[test]
fn another_pods_address_and_our_own_ports_are_refused() {
    for (authority, refused) in [
        (
            "10.0.0.3:80",
            "400 authority 10.0.0.3:80 is not of this pod",
        ),
        (
            "127.0.0.1:80",
            "400 authority 127.0.0.1:80 is not of this pod",
        ),
        ("[::1]:80", "400 authority [::1]:80 is not of this pod"),
        (
            "10.96.0.1:80",
            "400 authority 10.96.0.1:80 is not of this pod",
        ),
        ("10.0.0.2:15001", "503 the port is one of the proxy's own"),
        ("10.0.0.2:15006", "503 the port is one of the proxy's own"),
        ("10.0.0.2:15008", "503 the port is one of the proxy's own"),
        (
            "nowhere.shop:80",
            "503 authority nowhere.shop:80 is not known",
        ),
        (
            "web.shop.svc.cluster.local:99",
            "503 authority web.shop.svc.cluster.local:99 is not known",
        ),
    ] {
        assert_eq!(check(authority).unwrap_err(), refused, "{authority}");
    }
}

#[test]
fn own_addresses_and_own_services_are_served() {
    for (authority, address) in [
        ("10.0.0.2:80", "10.0.0.2:80"),
        ("[::ffff:10.0.0.2]:80", "10.0.0.2:80"),
        ("[fd00::2]:80", "[fd00::2]:80"),
        ("web.shop.svc.cluster.local:80", "10.0.0.2:8080"),
        ("named.shop.svc.cluster.local:81", "10.0.0.2:8181"),
    ] {
        assert_eq!(check(authority).as_deref(), Ok(address), "{authority}");
    }
}

#[test]
fn a_waypoint_is_reached_under_the_address_of_what_it_stands_before() {
    let (snapshot, mut pod) = world();
    let mut shop = Service::new(name("shop"), "shop");
    let vip: IpAddr = "10.96.0.7".parse().expect("address");
    shop.addresses = vec![NetworkAddress::host("", vip)];
    shop.waypoint = Some(GatewayAddress {
        destination: GatewayDestination::Hostname(name("web")),
        hbone_port: 15008,
    });
    let snapshot = snapshot.apply([Change::Service(shop)]);
    assert_eq!(
        check_in(&snapshot, &pod, "10.96.0.7:80").as_deref(),
        Ok("10.0.0.2:80")
    );
    // Only its own instances.
    pod.services.clear();
    assert!(check_in(&snapshot, &pod, "10.96.0.7:80").is_err());
    // A tunnel to the application takes any address and its own port.
    pod.application_tunnel = Some(ApplicationTunnel {
        protocol: ApplicationProtocol::Proxy,
        port: Some(15088),
    });
    let authority = "10.96.0.7:80".parse().expect("authority");
    let target = resolve(&snapshot, &pod, OWN, &authority).expect("target");
    assert_eq!(target.address.to_string(), "10.0.0.2:15088");
    assert_eq!(target.connect_to().to_string(), "127.0.0.1:15088");
    let header = target
        .proxy_header(([10, 0, 0, 1], 5).into(), &pod.identity)
        .expect("header");
    assert_eq!(header.destination.to_string(), "10.96.0.7:80");
}

#[test]
fn the_reported_service_is_the_named_one_or_the_first_with_the_port() {
    let (snapshot, pod) = world();
    let found = |host: Option<&str>, port| {
        service(&snapshot, &pod, host, port).map(|service| service.short_name.to_string())
    };
    assert_eq!(
        found(Some("named.shop.svc.cluster.local"), 8080).as_deref(),
        Some("named")
    );
    assert_eq!(found(Some("stranger"), 8080).as_deref(), Some("web"));
    assert_eq!(found(None, 8181).as_deref(), Some("named"));
    assert_eq!(found(None, 1), None);
}
