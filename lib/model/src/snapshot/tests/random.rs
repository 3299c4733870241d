//! A view depends on what is in it, and on nothing of how it came to be.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::Health;

const IPS: [&str; 4] = ["10.0.0.1", "10.0.0.2", "fd00::1", "10.96.0.1"];

/// A state of one thing: there in some form, or not there.
type State = Option<Change>;

fn workload(number: usize) -> impl Strategy<Value = Change> {
    let parts = (
        vec(select(IPS.to_vec()), 0..3),
        vec(select(vec!["s", "t"]), 0..3),
        select(vec!["", "h"]),
        0..3_u32,
    );
    let flags = (
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    );
    (parts, flags).prop_map(move |((addresses, services, hostname, capacity), flags)| {
        let (meshed, healthy, elsewhere, on_host) = flags;
        // The first two are pods, the others are not.
        let uid = if number < 2 {
            format!("c//Pod/a/w{number}")
        } else {
            format!("c/x/Entry/a/w{number}")
        };
        let base = services
            .into_iter()
            .fold(pod("a", "w", &addresses), |workload, short| {
                behind(workload, short, &[])
            });
        Change::Workload(Workload {
            uid: WorkloadUid::new(uid),
            hostname: hostname.into(),
            capacity,
            tunnel_protocol: if meshed {
                TunnelProtocol::Hbone
            } else {
                TunnelProtocol::None
            },
            health: if healthy {
                Health::Healthy
            } else {
                Health::Unhealthy
            },
            network: if elsewhere { "other".into() } else { "".into() },
            network_mode: if on_host {
                NetworkMode::HostNetwork
            } else {
                NetworkMode::Standard
            },
            ..base
        })
    })
}

fn a_service(namespace: &'static str) -> impl Strategy<Value = Change> {
    let nets = select(vec![
        "10.0.0.1/32",
        "10.96.0.1/32",
        "10.96.0.0/16",
        "10.0.0.0/8",
        "fd00::/64",
    ]);
    let addresses = vec((select(vec!["", "other"]), nets), 0..3);
    (addresses, any::<bool>(), any::<bool>()).prop_map(move |(addresses, canonical, hidden)| {
        Change::Service(Service {
            name: ServiceName::new(namespace, "s.example"),
            addresses: addresses
                .into_iter()
                .map(|(network, net)| NetworkAddress {
                    network: network.into(),
                    net: net.parse().expect(net),
                })
                .collect(),
            canonical,
            visibility: if hidden {
                Visibility::Namespace
            } else {
                Visibility::Public
            },
            ..service("s", &[], &[])
        })
    })
}

fn policy(name: &'static str) -> impl Strategy<Value = Policy> {
    let scope = select(vec![
        Scope::Global,
        Scope::Namespace,
        Scope::WorkloadSelector,
    ]);
    (scope, any::<bool>(), any::<bool>()).prop_map(move |(scope, allow, dry_run)| Policy {
        dry_run,
        ..Policy::new(
            policy_name(name),
            scope,
            if allow { Action::Allow } else { Action::Deny },
            vec![],
        )
    })
}

/// Successive states of one thing; the last one is what counts.
fn history(of: impl Strategy<Value = Change> + 'static) -> BoxedStrategy<Vec<State>> {
    vec(option::weighted(0.7, of), 1..4).boxed()
}

fn histories() -> impl Strategy<Value = Vec<Vec<State>>> {
    let mut all: Vec<BoxedStrategy<Vec<State>>> = Vec::new();
    all.extend((0..4).map(|number| history(workload(number))));
    all.extend(["a", "b", "c"].map(|namespace| history(a_service(namespace))));
    all.extend(["a/1", "a/2", "b/1"].map(|name| history(policy(name).prop_map(Change::Policy))));
    all.extend(["a/1", "b/1"].map(|name| history(policy(name).prop_map(Change::EgressPolicy))));
    all
}

fn removal(change: &Change) -> Change {
    match change {
        Change::Workload(workload) => Change::RemoveAddress(workload.uid.to_string()),
        Change::Service(service) => Change::RemoveAddress(service.name.to_string()),
        Change::Policy(policy) => Change::RemovePolicy(policy.name.clone()),
        Change::EgressPolicy(policy) => Change::RemoveEgressPolicy(policy.name.clone()),
        other => panic!("no state: {other:?}"),
    }
}

/// Merges the histories, each in its own order, into one sequence of changes.
fn interleave(mut histories: Vec<Vec<State>>, choices: &[Index]) -> Vec<Change> {
    let keys: Vec<Option<Change>> = histories
        .iter()
        .map(|history| history.iter().flatten().next().map(removal))
        .collect();
    let mut sequence = Vec::new();
    let mut choices = choices.iter().cycle();
    while histories.iter().any(|history| !history.is_empty()) {
        let open: Vec<_> = (0..histories.len())
            .filter(|index| !histories[*index].is_empty())
            .collect();
        let chosen = *choices.next().expect("not empty").get(&open);
        sequence.extend(histories[chosen].remove(0).or_else(|| keys[chosen].clone()));
    }
    sequence
}

fn in_batches(sequence: Vec<Change>, sizes: &[usize]) -> Snapshot {
    let mut snapshot = Snapshot::empty();
    let mut left = sequence.into_iter().peekable();
    for size in sizes.iter().cycle() {
        if left.peek().is_none() {
            break;
        }
        snapshot = snapshot.apply(left.by_ref().take(*size));
    }
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_order_and_batching_gives_the_same_view(
        histories in histories(),
        choices in vec(any::<Index>(), 1..40),
        sizes in vec(1..6_usize, 1..6),
    ) {
        let last: Vec<Change> = histories.iter().filter_map(|history| history.last().cloned().flatten()).collect();
        let at_once = Snapshot::empty().apply(last.iter().cloned());
        let reversed = Snapshot::empty().apply(last.iter().rev().cloned());
        prop_assert_eq!(&at_once, &reversed);
        let step_by_step = in_batches(interleave(histories, &choices), &sizes);
        prop_assert_eq!(&at_once, &step_by_step);
        lookups_agree(&at_once, &last)?;
        let emptied = at_once.apply(last.iter().map(removal));
        prop_assert_eq!(emptied, Snapshot::empty());
    }
}

/// Every index against a walk over all that is in the view.
fn lookups_agree(snapshot: &Snapshot, all: &[Change]) -> Result<(), TestCaseError> {
    let workloads: Vec<&Workload> = all
        .iter()
        .filter_map(|change| match change {
            Change::Workload(workload) => Some(workload),
            _ => None,
        })
        .collect();
    for address in IPS.map(ip) {
        let mut expected: Vec<&str> = workloads
            .iter()
            .filter(|w| {
                w.addresses.contains(&address)
                    && w.network.is_empty()
                    && w.network_mode == NetworkMode::Standard
            })
            .map(|w| w.uid.as_str())
            .collect();
        let mut found = uids(snapshot.workloads_at(address));
        expected.sort_unstable();
        found.sort_unstable();
        prop_assert_eq!(found, expected);
    }
    let mut behind: BTreeMap<&ServiceName, Vec<String>> = BTreeMap::new();
    for workload in &workloads {
        for name in workload.services.keys() {
            behind
                .entry(name)
                .or_default()
                .push(workload.uid.to_string());
        }
    }
    for (name, mut expected) in behind {
        expected.sort_unstable();
        prop_assert_eq!(endpoint_uids(snapshot, name), expected);
    }
    services_agree(snapshot, all)
}

fn services_agree(snapshot: &Snapshot, all: &[Change]) -> Result<(), TestCaseError> {
    let services: Vec<&Service> = all
        .iter()
        .filter_map(|change| match change {
            Change::Service(service) => Some(service),
            _ => None,
        })
        .collect();
    for address in [
        "10.0.0.1",
        "10.96.0.1",
        "10.96.7.7",
        "10.1.1.1",
        "fd00::5",
        "11.0.0.1",
    ]
    .map(ip)
    {
        for client in ["a", "b", "x"] {
            // The best by: exact, own namespace, longest prefix, canonical, first by name.
            let best = services
                .iter()
                .filter(|service| {
                    service.visibility == Visibility::Public || &*service.name.namespace == client
                })
                .flat_map(|service| {
                    service
                        .addresses
                        .iter()
                        .map(move |address| (service, address))
                })
                .filter(|(_, range)| range.network.is_empty() && range.net.contains(&address))
                .min_by_key(|(service, range)| {
                    (
                        !range.is_host(),
                        &*service.name.namespace != client,
                        u8::MAX - range.net.prefix_len(),
                        !service.canonical,
                        &service.name,
                    )
                })
                .map(|(service, _)| &service.name);
            prop_assert_eq!(
                snapshot
                    .service_at(address, client)
                    .map(|service| &service.name),
                best
            );
        }
    }
    Ok(())
}
