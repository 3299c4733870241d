use std::time::Duration;

use culvert_kubeyaml::parse_bytes;

use super::*;

fn events(yaml: &str) -> Vec<Event> {
    let loaded = parse_bytes(yaml.as_bytes());
    assert_eq!(loaded.errors().next(), None);
    let objects = loaded.objects.into_iter();
    objects
        .map(|object| Event::Upsert(Arc::new(object)))
        .collect()
}

fn apply(world: &mut World, yaml: &str, now: SystemTime) -> Vec<Effect> {
    events(yaml)
        .iter()
        .map(|event| world.apply(event, now))
        .collect()
}

fn at(seconds: u64) -> SystemTime {
    // 2026-01-01T00:00:00Z
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600 + seconds)
}

fn lease(renewed: &str) -> String {
    format!(
        "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: n1, namespace: kube-node-lease}}\nspec: {{leaseDurationSeconds: 5, renewTime: '2026-01-01T00:00:{renewed}.000000Z'}}\n"
    )
}

#[test]
fn only_the_life_and_death_of_a_node_count() {
    let mut world = World::default();
    assert_eq!(apply(&mut world, &lease("00"), at(0)), [Effect::Some]);
    assert_eq!(apply(&mut world, &lease("03"), at(3)), [Effect::None]);
    assert_eq!(world.node_health("n1", at(7)), NodeHealth::Alive);
    assert_eq!(world.node_health("n1", at(8)), NodeHealth::Dead);
    assert_eq!(world.next_lease_end(at(3)), Some(at(8)));
    assert_eq!(world.next_lease_end(at(8)), None);
    assert_eq!(apply(&mut world, &lease("20"), at(20)), [Effect::Some]);
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {conditions: [{type: Ready, status: 'Unknown'}]}\n";
    assert_eq!(apply(&mut world, node, at(20)), [Effect::Some]);
    assert_eq!(world.node_health("n1", at(20)), NodeHealth::Dead);
    assert_eq!(world.node_health("unknown", at(20)), NodeHealth::Alive);
}

#[test]
fn what_the_mesh_does_not_look_at_changes_nothing() {
    let mut world = World::default();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, resourceVersion: '1'}\nspec: {containers: [{name: c, image: i}]}\n";
    assert_eq!(apply(&mut world, pod, at(0)), [Effect::Some]);
    assert_eq!(
        apply(&mut world, &pod.replace("'1'", "'2'"), at(0)),
        [Effect::None]
    );
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: p}\n";
    assert_eq!(apply(&mut world, secret, at(0)), [Effect::None]);
    assert_eq!(world.counts()[&Kind::Pod], 1);
    assert_eq!(world.counts()[&Kind::Secret], 1);
    let key = ObjectKey::of(match &events(pod)[0] {
        Event::Upsert(object) => object,
        _ => unreachable!(),
    });
    assert_eq!(
        world.apply(&Event::Delete(key.clone()), at(0)),
        Effect::Some
    );
    assert_eq!(world.apply(&Event::Delete(key), at(0)), Effect::None);
    assert_eq!(world.counts()[&Kind::Pod], 0);
}

#[test]
fn slices_move_between_services() {
    let mut world = World::default();
    let slice = |service: &str| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: s, labels: {{kubernetes.io/service-name: {service}}}}}\naddressType: IPv4\nendpoints: [{{addresses: [10.0.0.1]}}]\nports: [{{port: 80}}]\n"
        )
    };
    apply(&mut world, &slice("a"), at(0));
    assert_eq!(apply(&mut world, &slice("a"), at(0)), [Effect::None]);
    assert_eq!(apply(&mut world, &slice("b"), at(0)), [Effect::Some]);
    let services: Vec<_> = world.slices.keys().map(ToString::to_string).collect();
    assert_eq!(services, ["default/b"]);
}

#[test]
fn a_broken_policy_keeps_its_last_good_form() {
    let mut world = World::default();
    let policy = |ip: &str| {
        format!(
            "apiVersion: policy.culvert.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\nspec: {{rules: [{{from: [{{source: {{ipBlocks: ['{ip}']}}}}]}}]}}\n"
        )
    };
    apply(&mut world, &policy("10.0.0.1"), at(0));
    assert_eq!(
        apply(&mut world, &policy("10.0.0.x"), at(0)),
        [Effect::Some]
    );
    let name = Name::new("shop", "p");
    let entry = &world.authorization_policies[&name];
    assert_eq!(
        entry.good.as_ref().unwrap().spec.rules[0].from[0]
            .source
            .ip_blocks,
        ["10.0.0.1"]
    );
    assert!(
        entry
            .fault
            .as_ref()
            .unwrap()
            .contains("ipBlocks[0]: expected an address")
    );
    let key = ObjectKey {
        kind: Kind::AuthorizationPolicy,
        namespace: "shop".into(),
        name: "p".into(),
    };
    let broken = Event::Broken {
        key: key.clone(),
        message: "x.yaml:3".to_owned(),
    };
    assert_eq!(world.apply(&broken, at(0)), Effect::Some);
    assert_eq!(world.apply(&broken, at(0)), Effect::None);
    assert!(world.authorization_policies[&name].good.is_some());
    assert_eq!(
        apply(&mut world, &policy("10.0.0.1"), at(0)),
        [Effect::Some]
    );
    assert_eq!(world.authorization_policies[&name].fault, None);
}

#[test]
fn owners_are_followed_to_the_outermost() {
    let mut world = World::default();
    let pod = |owner: &str, hash: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  labels: {{pod-template-hash: '{hash}'}}\n  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: {owner}, uid: u, controller: true}}]\nspec: {{containers: [{{name: c, image: i}}]}}\n"
        )
    };
    let owner = |world: &World| {
        let (name, pod) = world.pods.first_key_value().unwrap();
        let owner = world.root_owner(&name.namespace, pod).unwrap();
        (owner.kind, owner.name.to_string())
    };
    apply(&mut world, &pod("web-5f6d", "5f6d"), at(0));
    assert_eq!(owner(&world), (OwnerKind::Deployment, "web".to_owned()));
    let set = "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata:\n  name: web-5f6d\n  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: other, uid: u, controller: true}]\nspec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n";
    apply(&mut world, set, at(0));
    assert_eq!(owner(&world), (OwnerKind::Deployment, "other".to_owned()));
    apply(&mut world, &pod("plain", ""), at(0));
    assert_eq!(owner(&world), (OwnerKind::ReplicaSet, "plain".to_owned()));
}
