use proptest::prelude::*;

use super::*;

const MODES: [&str; 4] = ["UNSET", "DISABLE", "PERMISSIVE", "STRICT"];

/// What Culvert promises: the narrowest mode that is set counts.
fn refuses(narrowest_first: &[Option<&str>]) -> bool {
    let mut set = narrowest_first
        .iter()
        .flatten()
        .filter(|mode| **mode != "UNSET");
    set.next() == Some(&"STRICT")
}

fn mode() -> impl Strategy<Value = Option<&'static str>> {
    prop::option::of(prop::sample::select(&MODES[..]))
}

fn object(
    name: &str,
    namespace: &str,
    selector: &str,
    modes: (Option<&str>, Option<&str>),
) -> String {
    let mtls = modes
        .0
        .map(|mode| format!("mtls: {{mode: {mode}}}, "))
        .unwrap_or_default();
    let port = modes
        .1
        .map(|mode| format!("portLevelMtls: {{8080: {{mode: {mode}}}}}, "))
        .unwrap_or_default();
    policy(
        "PeerAuthentication",
        name,
        namespace,
        &format!("{{{selector}{mtls}{port}}}"),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn truth_table(mesh in mode(), namespace in mode(), workload in mode(), port in mode(), has_workload: bool) {
        let mut yaml = pod("web", "shop", "10.0.0.1", "app: web")
            + &pod("other", "shop", "10.0.0.2", "app: other")
            + &pod("client", "else", "10.0.0.3", "");
        yaml += &object("mesh", "culvert-system", "", (mesh, None));
        yaml += &object("namespace", "shop", "", (namespace, None));
        if has_workload {
            yaml += &object("workload", "shop", "selector: {matchLabels: {app: web}}, ", (workload, port));
        }
        let snapshot = snapshot(&compiled(&yaml));
        let (workload, port) = if has_workload { (workload, port) } else { (None, None) };
        for (to, number, modes) in [
            ("10.0.0.1", 8080, vec![port, workload, namespace, mesh]),
            ("10.0.0.1", 9090, vec![workload, namespace, mesh]),
            ("10.0.0.2", 8080, vec![namespace, mesh]),
            ("10.0.0.3", 8080, vec![mesh]),
        ] {
            let verdict = ingress(&snapshot, From::Plain("10.0.0.9"), to, number);
            prop_assert_eq!(!verdict.is_allowed(), refuses(&modes), "{} {} {:?}", to, number, verdict);
            prop_assert!(ingress(&snapshot, From::Tunnel("10.0.0.3"), to, number).is_allowed());
        }
    }
}

#[test]
fn a_refusal_names_the_object() {
    let yaml = pod("web", "shop", "10.0.0.1", "")
        + &object("strict", "culvert-system", "", (Some("STRICT"), None));
    let compiled = compiled(&yaml);
    let Verdict::Deny(denial) = ingress(
        &snapshot(&compiled),
        From::Plain("10.0.0.9"),
        "10.0.0.1",
        80,
    ) else {
        panic!("allowed");
    };
    assert_eq!(
        denial.to_string(),
        "denied by policy culvert-system/peerauthentication:strict rule 0 (PeerAuthentication culvert-system/strict)"
    );
}

#[test]
fn the_oldest_wins_and_the_others_hear_so() {
    let old = object("z", "shop", "", (Some("STRICT"), None)).replace(
        "name: z,",
        "name: z, creationTimestamp: '2025-01-01T00:00:00Z',",
    );
    let young = object("a", "shop", "", (Some("PERMISSIVE"), None)).replace(
        "name: a,",
        "name: a, creationTimestamp: '2025-06-01T00:00:00Z',",
    );
    let compiled = compiled(&(pod("web", "shop", "10.0.0.1", "") + &old + &young));
    assert!(
        !ingress(
            &snapshot(&compiled),
            From::Plain("10.0.0.9"),
            "10.0.0.1",
            80
        )
        .is_allowed()
    );
    assert_eq!(
        reasons(&compiled, Kind::PeerAuthentication, "shop", "z"),
        ["Accepted=Accepted", "Enforced=Enforced"]
    );
    assert_eq!(
        reasons(&compiled, Kind::PeerAuthentication, "shop", "a"),
        ["Accepted=!Conflicted", "Enforced=!NotEnforced"]
    );
}

#[test]
fn ports_without_a_selector_are_refused() {
    let compiled = compiled(&object("p", "shop", "", (None, Some("STRICT"))));
    assert_eq!(
        reasons(&compiled, Kind::PeerAuthentication, "shop", "p"),
        ["Accepted=!Invalid", "Enforced=!NotEnforced"]
    );
    assert!(compiled.policies.is_empty());
}
