use super::*;
use crate::{LoadBalancing, Locality, RoutingScope};

fn cart_service(load_balancing: LoadBalancing) -> Service {
    Service {
        load_balancing,
        ..service("cart", &["10.96.0.1"], &[port(80, 80)])
    }
}

fn numbered(number: u32) -> Workload {
    let name = format!("cart-{number}");
    behind(
        pod("shop", &name, &[&format!("10.1.0.{number}")]),
        "cart",
        &[],
    )
}

/// How often each of the workloads is taken, the load staying as it is.
fn counts(
    snapshot: &Snapshot,
    source: &Workload,
    load: &Loads,
    draws: u32,
) -> HashMap<String, u32> {
    let mut rng = seeded(42);
    let mut counts = HashMap::new();
    for _ in 0..draws {
        match route(snapshot, source, addr("10.96.0.1:80"), load, &mut rng) {
            Ok(Route::Tunnel(tunnel)) => {
                *counts.entry(tunnel.workload.name.to_string()).or_default() += 1
            }
            other => panic!("{other:?}"),
        }
    }
    counts
}

fn of(workloads: &[Workload]) -> Snapshot {
    world(workloads, &[cart_service(LoadBalancing::default())])
}

#[test]
fn equals_share_equally() {
    for count in [2, 3, 8, 9, 50] {
        let all: Vec<_> = (1..=count).map(numbered).collect();
        let taken = counts(&of(&all), &web(), &Loads::default(), 400 * count);
        for number in 1..=count {
            let share = taken.get(&format!("cart-{number}")).copied().unwrap_or(0);
            assert!(
                (300..500).contains(&share),
                "{share} of 400 for {number} of {count}"
            );
        }
    }
}

#[test]
fn the_busiest_of_all_is_never_taken() {
    for count in [2, 3, 20] {
        let all: Vec<_> = (1..=count).map(numbered).collect();
        let load = Loads([(numbered(1).uid, 100)].into());
        let taken = counts(&of(&all), &web(), &load, 1000);
        assert_eq!(taken.get("cart-1"), None, "of {count}");
    }
}

#[test]
fn connections_that_stay_spread_by_capacity() {
    let capacities = [1, 2, 5];
    let all: Vec<_> = capacities
        .iter()
        .zip(1..)
        .map(|(capacity, number)| Workload {
            capacity: *capacity,
            ..numbered(number)
        })
        .collect();
    let snapshot = of(&all);
    let (mut load, mut rng) = (Loads::default(), seeded(3));
    for _ in 0..800 {
        match route(&snapshot, &web(), addr("10.96.0.1:80"), &load, &mut rng) {
            Ok(Route::Tunnel(tunnel)) => {
                *load.0.entry(tunnel.workload.uid.clone()).or_default() += 1
            }
            other => panic!("{other:?}"),
        }
    }
    for (capacity, workload) in capacities.iter().zip(&all) {
        let open = load.outstanding(&workload.uid);
        let fair = 100 * capacity;
        assert!(
            (fair * 9 / 10..=fair * 11 / 10).contains(&open),
            "{open} where {fair} is fair"
        );
    }
}

#[test]
fn huge_capacities_do_not_overflow() {
    let all = [1, 2].map(|number| Workload {
        capacity: u32::MAX,
        ..numbered(number)
    });
    let busy = Loads([(numbered(1).uid, u32::MAX), (numbered(2).uid, u32::MAX)].into());
    let taken = counts(&of(&all), &web(), &busy, 1000);
    assert_eq!(taken.values().sum::<u32>(), 1000);
    assert_eq!(taken.len(), 2);
}

#[test]
fn what_cannot_be_used_is_never_drawn() {
    let mut all: Vec<_> = (2..=60).map(|number| unhealthy(numbered(number))).collect();
    all.push(numbered(1));
    assert_eq!(
        counts(&of(&all), &web(), &Loads::default(), 500),
        [("cart-1".to_owned(), 500)].into()
    );
    all.push(Workload {
        capacity: 0,
        ..numbered(61)
    });
    assert_eq!(
        counts(&of(&all), &web(), &Loads::default(), 500),
        [("cart-1".to_owned(), 500)].into()
    );
}

fn at(number: u32, place: [&str; 4]) -> Workload {
    Workload {
        locality: Locality {
            region: place[0].into(),
            zone: place[1].into(),
            subzone: place[2].into(),
        },
        node: place[3].into(),
        ..numbered(number)
    }
}

/// Name, mode, preference, endpoints, and the numbers of those that are taken.
type Case = (
    &'static str,
    LoadBalancingMode,
    Vec<RoutingScope>,
    Vec<Workload>,
    &'static [u32],
);

#[test]
fn preferences() {
    use LoadBalancingMode::{Failover, Strict, Unspecified};
    use RoutingScope::{Cluster, Network, Node, Region, Subzone, Zone};
    let source = Workload {
        name: "web".into(),
        ..at(99, ["r1", "z1", "s1", "n1"])
    };
    let near = at(1, ["r1", "z1", "s1", "n1"]);
    let zone = at(2, ["r1", "z1", "s2", "n2"]);
    let region = at(3, ["r1", "z2", "s1", "n3"]);
    let far = at(4, ["r2", "z1", "s1", "n1"]);
    let abroad = Workload {
        cluster_id: "other".into(),
        ..at(5, ["r1", "z1", "s1", "n1"])
    };
    let all = vec![near.clone(), zone.clone(), region.clone(), far.clone()];
    let by_zone = vec![Region, Zone, Subzone];
    #[rustfmt::skip]
    let table: Vec<Case> = vec![
        ("no mode, no preference", Unspecified, by_zone.clone(), all.clone(), &[1, 2, 3, 4]),
        ("the nearest", Failover, by_zone.clone(), all.clone(), &[1]),
        ("its zone is next", Failover, by_zone.clone(), all[1..].to_vec(), &[2]),
        ("then its region", Failover, by_zone.clone(), all[2..].to_vec(), &[3]),
        ("then anything", Failover, by_zone.clone(), all[3..].to_vec(), &[4]),
        ("leading scopes only", Failover, vec![Subzone, Region], vec![region.clone(), far.clone()], &[3]),
        ("equals share", Failover, vec![Region], all.clone(), &[1, 2, 3]),
        ("unhealthy ones do not hold the rank", Failover, by_zone.clone(), vec![unhealthy(near.clone()), zone.clone()], &[2]),
        ("no scope", Failover, vec![], all.clone(), &[1, 2, 3, 4]),
        ("strict", Strict, by_zone.clone(), all.clone(), &[1]),
        ("strict on less", Strict, vec![Region, Zone], all.clone(), &[1, 2]),
        ("strict on the node", Strict, vec![Node], all.clone(), &[1, 4]),
        ("strict on the cluster", Strict, vec![Cluster], vec![near.clone(), abroad], &[1]),
        ("strict on the network", Strict, vec![Network], all.clone(), &[1, 2, 3, 4]),
        ("strict without scope", Strict, vec![], all.clone(), &[1, 2, 3, 4]),
        ("strict and nobody there", Strict, by_zone, all[1..].to_vec(), &[]),
    ];
    for (case, mode, routing_preference, endpoints, expected) in table {
        let balancing = LoadBalancing {
            mode,
            routing_preference,
            health_policy: HealthPolicy::OnlyHealthy,
        };
        let snapshot = world(&endpoints, &[cart_service(balancing)]);
        if expected.is_empty() {
            assert_eq!(
                told(&go(&snapshot, &source, "10.96.0.1:80")),
                "no_usable_endpoint",
                "{case}"
            );
            continue;
        }
        let mut taken: Vec<_> = counts(&snapshot, &source, &Loads::default(), 200)
            .into_keys()
            .collect();
        taken.sort();
        let expected: Vec<_> = expected
            .iter()
            .map(|number| format!("cart-{number}"))
            .collect();
        assert_eq!(taken, expected, "{case}");
    }
}
