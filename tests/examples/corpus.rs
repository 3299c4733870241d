//! Writes the seeds of the fuzzing corpora (`tests/fuzz/corpus`) anew:
//! `cargo run -p culvert-tests --example corpus`.

use std::path::Path;

use anyhow::{Context, Result};
use culvert_api::names;
use culvert_api::proto::culvert::{EgressPolicies, Origin, PeerMatch, PeerSets, PortRange};
use culvert_api::proto::security::{
    self, Authorization, Group, Match, Rules, ServiceAccountMatch, StringMatch,
    string_match::MatchType,
};
use culvert_api::proto::workload::{
    self, Address, Extension, GatewayAddress, LoadBalancing, Locality, NamespacedHostname,
    NetworkAddress, Port, PortList, Service, Workload, address, gateway_address,
};
use culvert_api::proto::zds::{
    AddWorkload, DelWorkload, KeepWorkload, SnapshotSent, WorkloadInfo, WorkloadRequest,
    workload_request::Payload,
};
use prost::Message;
use prost_types::Any;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    heads(&root)?;
    packets(&root)?;
    addresses(&root)?;
    authorizations(&root)?;
    requests(&root)?;
    queries(&root)?;
    manifests(&root)?;
    plugin_input(&root)
}

fn seed(root: &Path, target: &str, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
    let directory = root.join(target);
    std::fs::create_dir_all(&directory)?;
    std::fs::write(directory.join(name), bytes).with_context(|| format!("{target}/{name}"))
}

fn heads(root: &Path) -> Result<()> {
    let traceparent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    for (name, head) in [
        ("ipv4", "CONNECT 10.244.1.2:8080".to_owned()),
        ("ipv6", "CONNECT [fd00:10:244:1::2]:8080".to_owned()),
        (
            "hostname",
            "CONNECT cart.shop.svc.cluster.local:80".to_owned(),
        ),
        ("no-port", "CONNECT 10.0.0.1".to_owned()),
        ("port-0", "CONNECT 10.0.0.1:0".to_owned()),
        ("large-port", "CONNECT 10.0.0.1:65536".to_owned()),
        ("userinfo", "CONNECT a@10.0.0.1:80".to_owned()),
        ("zone", "CONNECT [fe80::1%25eth0]:80".to_owned()),
        ("get", "GET http://10.0.0.1/".to_owned()),
        (
            "headers",
            format!(
                "CONNECT 10.0.0.1:80\nbaggage: k8s.cluster.name=Kubernetes,k8s.namespace.name=shop,\
                 service.name=cart\nforwarded: for=\"10.0.0.2:4000\";host=cart.shop\n{traceparent}"
            ),
        ),
        (
            "odd-headers",
            "CONNECT 10.0.0.1:80\nbaggage: =,,=a\nforwarded: for=;;host=\"".to_owned(),
        ),
    ] {
        seed(root, "connect_head", name, head)?;
    }
    Ok(())
}

fn packets(root: &Path) -> Result<()> {
    let info = WorkloadInfo {
        name: "cart".into(),
        namespace: "shop".into(),
        service_account: "cart".into(),
    };
    let uid = "5f3c9d1e-0d5b-4b0e-9a55-6f3c1b2a7788".to_owned();
    for (name, payload) in [
        (
            "add",
            Payload::Add(AddWorkload {
                uid: uid.clone(),
                workload_info: Some(info),
            }),
        ),
        (
            "add-nameless",
            Payload::Add(AddWorkload {
                uid: uid.clone(),
                workload_info: None,
            }),
        ),
        ("keep", Payload::Keep(KeepWorkload { uid: uid.clone() })),
        ("del", Payload::Del(DelWorkload { uid })),
        ("snapshot", Payload::SnapshotSent(SnapshotSent {})),
    ] {
        let request = WorkloadRequest {
            payload: Some(payload),
        };
        seed(root, "zds_packet", name, request.encode_to_vec())?;
    }
    Ok(())
}

fn extension(name: &str, message: &impl Message) -> Extension {
    let type_url = format!("type.googleapis.com/{name}");
    Extension {
        name: name.to_owned(),
        config: Some(Any {
            type_url,
            value: message.encode_to_vec(),
        }),
    }
}

const HOST: &str = "cart.shop.svc.cluster.local";

fn port(service_port: u32, target_port: u32) -> Port {
    Port {
        service_port,
        target_port,
        ..Port::default()
    }
}

fn waypoint() -> GatewayAddress {
    let destination = gateway_address::Destination::Hostname(NamespacedHostname {
        namespace: "shop".into(),
        hostname: "waypoint.shop.svc.cluster.local".into(),
    });
    GatewayAddress {
        hbone_mtls_port: 15008,
        destination: Some(destination),
    }
}

fn workload() -> Workload {
    let sets = PeerSets {
        names: vec!["shop/clients".into()],
    };
    let egress = EgressPolicies {
        names: vec!["shop/out".into()],
    };
    Workload {
        uid: "Kubernetes//Pod/shop/cart".into(),
        name: "cart".into(),
        namespace: "shop".into(),
        addresses: vec![vec![10, 244, 1, 2].into(), vec![0xfd; 16].into()],
        tunnel_protocol: workload::TunnelProtocol::Hbone.into(),
        trust_domain: "cluster.local".into(),
        service_account: "cart".into(),
        node: "node-1".into(),
        authorization_policies: vec!["shop/only-client".into()],
        services: [(
            format!("shop/{HOST}"),
            PortList {
                ports: vec![port(80, 8080)],
            },
        )]
        .into(),
        locality: Some(Locality {
            region: "r".into(),
            zone: "z".into(),
            subzone: String::new(),
        }),
        waypoint: Some(waypoint()),
        extensions: vec![
            extension(names::PEER_SETS, &sets),
            extension(names::EGRESS_POLICIES, &egress),
        ],
        ..Workload::default()
    }
}

fn service() -> Service {
    let vip = NetworkAddress {
        address: vec![10, 96, 0, 7],
        ..NetworkAddress::default()
    };
    Service {
        name: "cart".into(),
        namespace: "shop".into(),
        hostname: HOST.into(),
        addresses: vec![vip],
        ports: vec![port(80, 8080), port(81, 0)],
        load_balancing: Some(LoadBalancing {
            routing_preference: vec![4, 2],
            mode: 2,
            health_policy: 0,
        }),
        waypoint: Some(waypoint()),
        canonical: true,
        ..Service::default()
    }
}

fn addresses(root: &Path) -> Result<()> {
    let bad_address = Workload {
        addresses: vec![vec![1, 2, 3].into()],
        ..workload()
    };
    for (name, kind) in [
        ("workload", address::Type::Workload(workload())),
        ("bad-address", address::Type::Workload(bad_address)),
        ("service", address::Type::Service(service())),
    ] {
        seed(
            root,
            "wds_address",
            name,
            Address { r#type: Some(kind) }.encode_to_vec(),
        )?;
    }
    seed(
        root,
        "wds_address",
        "empty",
        Address { r#type: None }.encode_to_vec(),
    )
}

fn authorizations(root: &Path) -> Result<()> {
    let text = |kind| StringMatch {
        match_type: Some(kind),
    };
    let ranges = vec![PortRange {
        first: 8000,
        last: 8999,
    }];
    let peers = PeerMatch {
        sets: vec!["shop/clients".into()],
        destination_port_ranges: ranges,
        ..PeerMatch::default()
    };
    let matched = Match {
        principals: vec![text(MatchType::Exact(
            "cluster.local/ns/shop/sa/client".into(),
        ))],
        not_principals: vec![text(MatchType::Presence(()))],
        namespaces: vec![
            text(MatchType::Prefix("sh".into())),
            text(MatchType::Suffix("op".into())),
        ],
        source_ips: vec![security::Address {
            address: vec![10, 0, 0, 0],
            length: 8,
        }],
        destination_ports: vec![80, 443],
        service_accounts: vec![ServiceAccountMatch {
            namespace: "shop".into(),
            service_account: "client".into(),
        }],
        extensions: vec![extension(names::PEER_MATCH, &peers)],
        ..Match::default()
    };
    let policy = |groups: Vec<Group>, action| Authorization {
        name: "only-client".into(),
        namespace: "shop".into(),
        scope: 2,
        action,
        groups,
        dry_run: false,
        extensions: vec![extension(names::ORIGIN, &Origin::default())],
    };
    let full = vec![Group {
        rules: vec![Rules {
            matches: vec![matched],
        }],
    }];
    let empty_rules = vec![Group {
        rules: vec![Rules {
            matches: vec![Match::default()],
        }],
    }];
    for (name, groups, action) in [
        ("deny", full.clone(), 1),
        ("allow", full, 0),
        ("allow-nothing", Vec::new(), 0),
        ("empty-group", vec![Group { rules: Vec::new() }], 1),
        ("empty-match", empty_rules, 1),
        ("unknown-action", Vec::new(), 7),
    ] {
        seed(
            root,
            "wds_authorization",
            name,
            policy(groups, action).encode_to_vec(),
        )?;
    }
    Ok(())
}

fn requests(root: &Path) -> Result<()> {
    let identity = "spiffe://cluster.local/ns/shop/sa/cart".parse()?;
    let (_, pem) = culvert_tls::csr(&identity)?;
    seed(root, "csr", "good", &pem)?;
    seed(root, "csr", "cut", &pem[..pem.len() / 2])?;
    seed(root, "csr", "twice", format!("{pem}{pem}"))?;
    seed(
        root,
        "csr",
        "empty",
        "-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n",
    )
}

fn queries(root: &Path) -> Result<()> {
    let query = |name: &str, kind: u8| {
        let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).unwrap_or(63));
            bytes.extend(label.as_bytes());
        }
        bytes.extend([0, 0, kind, 0, 1]);
        bytes
    };
    seed(
        root,
        "dns_query",
        "a",
        query("cart.shop.svc.cluster.local", 1),
    )?;
    seed(root, "dns_query", "aaaa", query("cart", 28))?;
    seed(
        root,
        "dns_query",
        "srv",
        query("_sql._tcp.db.data.svc.cluster.local", 33),
    )?;
    let mut edns = query("example.com", 1);
    edns[11] = 1;
    edns.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    seed(root, "dns_query", "edns", edns)?;
    let mut pointer = query("a", 1);
    pointer.truncate(12);
    pointer.extend([0xc0, 12, 0, 1, 0, 1]);
    seed(root, "dns_query", "loop", pointer)?;
    seed(root, "dns_query", "short", [0, 1, 2])
}

fn manifests(root: &Path) -> Result<()> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for name in [
        "pair/pair",
        "foreign/data",
        "foreign/zz-broken",
        "families/families",
    ] {
        let text = std::fs::read_to_string(fixtures.join(format!("{name}.yaml")))?;
        seed(root, "yaml", &name.replace('/', "-"), text)?;
    }
    for (name, text) in [
        ("anchor", "a: &a [*b, *b]\nb: &b {c: *a}\n"),
        (
            "list",
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n",
        ),
        ("two", "---\n---\nkind: Pod\n---\n%YAML 1.1\n"),
        ("tag", "!!binary |\n  R0lGODlhDAAMAIQAAP\n"),
    ] {
        seed(root, "yaml", name, text)?;
    }
    Ok(())
}

fn plugin_input(root: &Path) -> Result<()> {
    let chained = r#"{"cniVersion":"1.1.0","name":"mesh","type":"culvert-cni","runDir":"/run/culvert",
"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}],
"ips":[{"address":"10.244.1.2/32","interface":0},{"address":"fd00:10:244:1::2/128","interface":0}]}}"#;
    let old =
        r#"{"cniVersion":"0.4.0","name":"mesh","type":"culvert-cni","runDir":"/run/culvert"}"#;
    let gc = r#"{"cniVersion":"1.1.0","name":"mesh","type":"culvert-cni","runDir":"/x",
"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}"#;
    for (name, text) in [
        ("chained", chained),
        ("old", old),
        ("gc", gc),
        ("empty", "{}"),
        ("array", "[]"),
    ] {
        seed(root, "cni_stdin", name, text)?;
    }
    Ok(())
}
