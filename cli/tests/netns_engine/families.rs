//! Pods of one family, of both, and without IPv6 in the kernel.

use crate::harness::Cluster;

fn pod(name: &str, annotations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\n\
         metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}, annotations: {{{annotations}}}}}\n\
         spec:\n  containers: [{{name: server, image: testserver}}]\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{ipFamilyPolicy: PreferDualStack, selector: {{app: {name}}},\n  \
                ports: [{{port: 80, targetPort: 8080}}]}}\n---\n"
    )
}

fn families(cluster: &Cluster, name: &str) -> Vec<bool> {
    let pod = cluster.object("pod", &format!("{name}.shop")).expect("pod");
    let ips = pod["status"]["podIPs"].as_array().expect("addresses");
    ips.iter()
        .map(|one| one["ip"].as_str().expect("address").contains(':'))
        .collect()
}

#[test]
fn every_kind_of_pod_talks_to_those_it_can() {
    let objects = [
        pod("both", ""),
        pod("four", "culvert.dev/ip-families: IPv4"),
        pod("six", "culvert.dev/ip-families: IPv6"),
        pod("off", "culvert.dev/disable-ipv6: \"true\""),
    ];
    let images = "testserver: {command: [culvert, testserver]}\n";
    let cluster = Cluster::up(
        "tfam",
        "2",
        &[("pods.yaml", &objects.concat()), ("images.yaml", images)],
    );
    assert_eq!(families(&cluster, "both"), [false, true]);
    assert_eq!(families(&cluster, "four"), [false]);
    assert_eq!(families(&cluster, "six"), [true]);
    assert_eq!(families(&cluster, "off"), [false]);
    for (client, server, expect) in [
        ("four", "both", true),
        ("six", "both", true),
        ("off", "both", true),
        ("both", "four", true),
        ("both", "six", true),
        ("both", "off", true),
        ("four", "six", false),
        ("six", "four", false),
    ] {
        let answer = cluster.fetch(&format!("{client}.shop"), &format!("http://{server}/"));
        assert_eq!(answer.is_some(), expect, "{client} to {server}");
    }
    let disabled = cluster.exec(
        "off.shop",
        &["cat", "/proc/sys/net/ipv6/conf/all/disable_ipv6"],
    );
    assert_eq!(disabled.trim(), "1");
}
