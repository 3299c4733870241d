use super::*;

const WEB: &str = "10.0.0.1";
const CLIENT: &str = "10.0.0.2";
const STRANGER: &str = "10.0.0.3";

fn base() -> String {
    pod("web", "shop", WEB, "app: web")
        + &pod("client", "shop", CLIENT, "app: client")
        + &pod("stranger", "else", STRANGER, "")
        + "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n"
}

fn with(namespace: &str, spec: &str) -> Compiled {
    compiled(&(base() + &policy("AuthorizationPolicy", "p", namespace, spec)))
}

/// Who may connect to the web pod on 8080: client, stranger, and plaintext.
fn allowed(compiled: &Compiled) -> [bool; 3] {
    let snapshot = snapshot(compiled);
    [
        From::Tunnel(CLIENT),
        From::Tunnel(STRANGER),
        From::Plain(CLIENT),
    ]
    .map(|from| ingress(&snapshot, from, WEB, 8080).is_allowed())
}

fn check(namespace: &str, spec: &str, expect: [bool; 3], status: [&str; 2]) {
    let compiled = with(namespace, spec);
    assert_eq!(allowed(&compiled), expect, "{spec}");
    assert_eq!(
        reasons(&compiled, Kind::AuthorizationPolicy, namespace, "p"),
        status,
        "{spec}"
    );
}

const GOOD: [&str; 2] = ["Accepted=Accepted", "Enforced=Enforced"];

/// Rules, and whom of client, stranger and plaintext they match.
const RULES: &[(&str, [bool; 3])] = &[
    ("{}", [true, true, true]),
    (
        "{from: [{source: {namespaces: [shop]}}]}",
        [true, false, false],
    ),
    (
        "{from: [{source: {notNamespaces: [shop]}}]}",
        [false, true, true],
    ),
    (
        "{from: [{source: {principals: [cluster.local/ns/else/sa/stranger]}}]}",
        [false, true, false],
    ),
    (
        "{from: [{source: {principals: ['*']}}]}",
        [true, true, false],
    ),
    (
        "{from: [{source: {principals: ['*/sa/client']}}]}",
        [true, false, false],
    ),
    (
        "{from: [{source: {principals: ['cluster.local/ns/sh*']}}]}",
        [true, false, false],
    ),
    (
        "{from: [{source: {serviceAccounts: [client, else/nobody]}}]}",
        [true, false, false],
    ),
    (
        "{from: [{source: {notServiceAccounts: [client]}}]}",
        [false, true, true],
    ),
    (
        "{from: [{source: {ipBlocks: [10.0.0.2]}}]}",
        [true, false, true],
    ),
    (
        "{from: [{source: {ipBlocks: [10.0.0.0/8], notIpBlocks: [10.0.0.3/32]}}]}",
        [true, false, true],
    ),
    (
        "{from: [{source: {namespaces: [shop]}}, {source: {namespaces: [else]}}]}",
        [true, true, false],
    ),
    ("{to: [{operation: {ports: ['8080']}}]}", [true, true, true]),
    (
        "{to: [{operation: {ports: [80, 9090]}}]}",
        [false, false, false],
    ),
    (
        "{to: [{operation: {notPorts: [8080]}}]}",
        [false, false, false],
    ),
    (
        "{from: [{source: {namespaces: [shop]}}], to: [{operation: {ports: [1]}}]}",
        [false, false, false],
    ),
    (
        "{when: [{key: source.namespace, values: [else]}]}",
        [false, true, false],
    ),
    (
        "{when: [{key: source.principal, notValues: ['*/sa/client']}]}",
        [false, true, true],
    ),
    (
        "{when: [{key: source.ip, values: [10.0.0.2]}, {key: destination.port, values: ['8080']}]}",
        [true, false, true],
    ),
    (
        "{when: [{key: destination.ip, values: [10.0.0.9]}]}",
        [false, false, false],
    ),
    (
        "{when: [{key: source.serviceAccount, values: [else/stranger]}]}",
        [false, true, false],
    ),
];

#[test]
fn sources_ports_and_conditions() {
    for (rule, expect) in RULES {
        check("shop", &format!("{{rules: [{rule}]}}"), *expect, GOOD);
        let refused = expect.map(|allowed| !allowed);
        check(
            "shop",
            &format!("{{action: DENY, rules: [{rule}]}}"),
            refused,
            GOOD,
        );
    }
}

#[test]
fn scopes() {
    let all = [true, true, true];
    let none = [false, false, false];
    let refuses = ["Accepted=Accepted", "Enforced=RefusesAll"];
    check("shop", "{}", none, refuses);
    check("else", "{}", all, refuses);
    check("culvert-system", "{}", none, refuses);
    check(
        "shop",
        "{selector: {matchLabels: {app: web}}}",
        none,
        refuses,
    );
    check(
        "culvert-system",
        "{selector: {matchLabels: {app: web}}}",
        none,
        refuses,
    );
    let unselected = ["Accepted=Accepted", "Enforced=!NoWorkload"];
    check(
        "shop",
        "{selector: {matchLabels: {app: none}}}",
        all,
        unselected,
    );
    check(
        "else",
        "{selector: {matchLabels: {app: web}}}",
        all,
        unselected,
    );
    check(
        "shop",
        "{targetRefs: [{kind: Service, name: web}]}",
        none,
        refuses,
    );
    check(
        "shop",
        "{targetRefs: [{kind: Service, name: nope}]}",
        all,
        ["Accepted=!TargetNotFound", "Enforced=!NotEnforced"],
    );
    check(
        "shop",
        "{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: w}], rules: [{}]}",
        all,
        ["Accepted=!RequiresWaypoint", "Enforced=!NotEnforced"],
    );
    let compiled = with("shop", "{}");
    assert_eq!(
        compiled.policies.values().next().unwrap().scope,
        culvert_model::Scope::Namespace
    );
    let compiled = with("culvert-system", "{}");
    assert_eq!(
        compiled.policies.values().next().unwrap().scope,
        culvert_model::Scope::Global
    );
}

#[test]
fn a_target_that_is_not_ready_keeps_its_policy() {
    let yaml = base().replacen(
        "type: Ready, status: 'True'",
        "type: Ready, status: 'False'",
        1,
    ) + &policy(
        "AuthorizationPolicy",
        "p",
        "shop",
        "{targetRefs: [{kind: Service, name: web}]}",
    );
    assert_eq!(allowed(&compiled(&yaml)), [false, false, false]);
}

#[test]
fn what_needs_a_waypoint_says_what_is_left_of_it() {
    let all = [true, true, true];
    let none = [false, false, false];
    let waypoint = "Accepted=!RequiresWaypoint";
    check(
        "shop",
        "{rules: [{to: [{operation: {methods: [GET]}}]}]}",
        none,
        [waypoint, "Enforced=RefusesAll"],
    );
    check(
        "shop",
        "{rules: [{to: [{operation: {methods: [GET]}}]}, {from: [{source: {namespaces: [shop]}}]}]}",
        [true, false, false],
        [waypoint, "Enforced=Narrowed"],
    );
    check(
        "shop",
        "{action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}",
        all,
        [waypoint, "Enforced=!NotEnforced"],
    );
    check(
        "shop",
        "{action: DENY, rules: [{from: [{source: {namespaces: [shop]}}], to: [{operation: {ports: [8080], paths: [/x]}}]}]}",
        [false, true, true],
        [waypoint, "Enforced=Widened"],
    );
    check(
        "shop",
        "{action: DENY, rules: [{from: [{source: {namespaces: [shop], requestPrincipals: ['*']}}]}]}",
        [false, true, true],
        [waypoint, "Enforced=Widened"],
    );
    check(
        "shop",
        "{action: DENY, rules: [{from: [{source: {namespaces: [shop]}}], when: [{key: 'request.headers[x]', values: [y]}]}]}",
        all,
        [waypoint, "Enforced=!NotEnforced"],
    );
    check(
        "shop",
        "{action: DENY, rules: [{to: [{operation: {hosts: [x]}}]}, {from: [{source: {namespaces: [shop]}}]}]}",
        [false, true, true],
        [waypoint, "Enforced=Partly"],
    );
    let compiled = with(
        "shop",
        "{action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}",
    );
    let message = &status(&compiled, Kind::AuthorizationPolicy, "shop", "p")
        .conditions()
        .next()
        .unwrap()
        .message;
    assert_eq!(
        message,
        "rules[0]: to[0].operation.methods need a waypoint: nothing of the rule is enforced"
    );
}

#[test]
fn dry_run_and_audit_only_record() {
    let rule = "rules: [{from: [{source: {namespaces: [shop]}}]}]";
    let all = [true, true, true];
    check(
        "shop",
        &format!("{{action: AUDIT, {rule}}}"),
        all,
        ["Accepted=Accepted", "Enforced=!Audit"],
    );
    check(
        "shop",
        &format!("{{action: DENY, dryRun: true, {rule}}}"),
        all,
        ["Accepted=Accepted", "Enforced=!DryRun"],
    );
    check(
        "shop",
        &format!("{{dryRun: true, {rule}}}"),
        all,
        ["Accepted=Accepted", "Enforced=!DryRun"],
    );
    let annotated = policy(
        "AuthorizationPolicy",
        "p",
        "shop",
        &format!("{{action: DENY, {rule}}}"),
    )
    .replace(
        "name: p,",
        "name: p, annotations: {culvert.dev/dry-run: 'true'},",
    );
    let annotated = compiled(&(base() + &annotated));
    assert_eq!(allowed(&annotated), all);
    let compiled = with("shop", &format!("{{action: AUDIT, {rule}}}"));
    let verdict = ingress(&snapshot(&compiled), From::Tunnel(CLIENT), WEB, 8080);
    assert!(verdict.dry_run()[0].origin.as_ref().unwrap().audit);
}

#[test]
fn a_wrong_value_refuses_its_object_and_no_other() {
    for (spec, field) in [
        (
            "{rules: [{from: [{source: {ipBlocks: [10.0.0.0/40]}}]}]}",
            "spec.rules[0].from[0].source.ipBlocks[0]",
        ),
        (
            "{rules: [{to: [{operation: {ports: ['http']}}]}]}",
            "spec.rules[0].to[0].operation.ports[0]",
        ),
        (
            "{rules: [{to: [{operation: {ports: [70000]}}]}]}",
            "spec.rules[0].to[0].operation.ports[0]",
        ),
        (
            "{rules: [{when: [{key: source.colour, values: [x]}]}]}",
            "spec.rules[0].when[0].key",
        ),
        (
            "{rules: [{when: [{key: source.ip}]}]}",
            "spec.rules[0].when[0].values",
        ),
        (
            "{rules: [{from: [{source: {principals: ['a*b']}}]}]}",
            "spec.rules[0].from[0].source.principals[0]",
        ),
        (
            "{rules: [{from: [{source: {}}]}]}",
            "spec.rules[0].from[0].source",
        ),
        (
            "{targetRefs: [{kind: Pod, name: x}]}",
            "spec.targetRefs[0].kind",
        ),
    ] {
        let yaml = base()
            + &policy("AuthorizationPolicy", "p", "shop", spec)
            + &policy(
                "AuthorizationPolicy",
                "good",
                "shop",
                "{action: DENY, rules: [{from: [{source: {namespaces: [else]}}]}]}",
            );
        let compiled = compiled(&yaml);
        assert_eq!(allowed(&compiled), [true, false, true], "{spec}");
        let status = status(&compiled, Kind::AuthorizationPolicy, "shop", "p");
        assert!(!status.is_accepted());
        let message = &status.conditions().next().unwrap().message;
        assert!(message.starts_with(field), "{message}");
        assert!(message.ends_with("nothing of it is in force"), "{message}");
    }
}
