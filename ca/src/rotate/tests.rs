use std::time::Duration;

use culvert_identity::Identity;
use culvert_tls::ca::LeafRequest;
use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn lifetimes() -> Lifetimes {
    Lifetimes::of_leaves(DAY, DAY, 12 * HOUR)
}

fn trust_domain() -> TrustDomain {
    "cluster.local".parse().unwrap()
}

fn fresh(now: SystemTime) -> State {
    State::create(&trust_domain(), now, &lifetimes()).unwrap()
}

impl State {
    fn then(&self, step: Step, now: SystemTime) -> Self {
        self.after(step, now, &lifetimes()).unwrap()
    }

    fn roots(&self) -> usize {
        self.bundle_pem().matches("BEGIN CERTIFICATE").count()
    }

    fn trusts(&self, root_pem: &str) -> bool {
        self.bundle_pem().contains(root_pem)
    }
}

#[test]
fn a_root_rotation_takes_its_steps_by_the_clock() {
    let now = SystemTime::now();
    let steady = fresh(now);
    assert_eq!(steady.due(now, &lifetimes()), None);
    assert_eq!(steady.step_for(Wish::Root).unwrap(), Step::BeginRoot);

    let begun = steady.then(Step::BeginRoot, now);
    assert_eq!(begun.roots(), 2);
    assert_eq!(begun.active.root.summary(), steady.active.root.summary());
    assert_eq!(begun.due(now, &lifetimes()), Some(Step::Published));
    assert!(matches!(
        begun.step_for(Wish::Root),
        Err(RotateError::InProgress)
    ));

    // The wait counts from when the root was really published.
    let later = now + HOUR;
    let waiting = begun.then(Step::Published, later);
    assert_eq!(
        waiting.due(later + 12 * HOUR - Duration::from_secs(1), &lifetimes()),
        None
    );
    assert_eq!(
        waiting.due(later + 12 * HOUR, &lifetimes()),
        Some(Step::Switch)
    );
    assert_eq!(waiting.step_for(Wish::Advance).unwrap(), Step::Switch);

    let at = later + 12 * HOUR;
    let switched = waiting.then(Step::Switch, at);
    assert_ne!(switched.active.root.summary(), steady.active.root.summary());
    assert!(switched.trusts(steady.active.root.certificate_pem()));
    assert_eq!(
        switched.due(at + DAY - Duration::from_secs(1), &lifetimes()),
        None
    );
    assert_eq!(switched.due(at + DAY, &lifetimes()), Some(Step::Prune));
    assert_eq!(switched.step_for(Wish::Advance).unwrap(), Step::Prune);

    let pruned = switched.then(Step::Prune, at + DAY);
    assert_eq!(pruned.roots(), 1);
    assert!(!pruned.trusts(steady.active.root.certificate_pem()));
    assert_eq!(pruned.due(at + DAY, &lifetimes()), None);
}

#[test]
fn steps_out_of_order_change_nothing() {
    let now = SystemTime::now();
    let steady = fresh(now);
    for step in [Step::Published, Step::Switch, Step::Prune] {
        let refused = steady.after(step, now, &lifetimes());
        assert!(
            matches!(refused, Err(RotateError::OutOfOrder { .. })),
            "{step:?}"
        );
    }
    let begun = steady.then(Step::BeginRoot, now);
    let refused = begun.after(Step::BeginRoot, now, &lifetimes());
    assert!(matches!(refused, Err(RotateError::InProgress)));
}

#[test]
fn an_intermediate_is_renewed_at_half_life_and_on_demand_in_any_step() {
    let now = SystemTime::now();
    let steady = fresh(now);
    let half = steady.active.intermediate.validity();
    let half = half.not_after.duration_since(half.not_before).unwrap() / 2;
    assert_eq!(steady.due(now + half - HOUR, &lifetimes()), None);
    assert_eq!(
        steady.due(now + half, &lifetimes()),
        Some(Step::RenewIntermediate)
    );
    for state in [steady.clone(), steady.then(Step::BeginRoot, now)] {
        let renewed = state.then(Step::RenewIntermediate, now);
        assert_eq!(renewed.bundle_pem(), state.bundle_pem());
        let (before, after) = (&state.active.intermediate, &renewed.active.intermediate);
        assert_ne!(before.summary().serial, after.summary().serial);
    }
}

#[test]
fn an_ageing_root_is_replaced_by_itself_and_an_expired_one_without_waiting() {
    let now = SystemTime::now();
    let steady = fresh(now);
    let ends = steady.active.root.validity().not_after;
    assert_eq!(
        steady.due(ends - 370 * DAY, &lifetimes()),
        Some(Step::RenewIntermediate)
    );
    assert_eq!(
        steady.due(ends - 360 * DAY, &lifetimes()),
        Some(Step::BeginRoot)
    );
    // Slept through: begin, publish and switch follow at once.
    let mut state = steady.clone();
    let late = ends + DAY;
    for expected in [Step::BeginRoot, Step::Published, Step::Switch] {
        assert_eq!(state.due(late, &lifetimes()), Some(expected));
        state = state.then(expected, late);
    }
    assert_eq!(state.due(late, &lifetimes()), None);
    assert!(state.active.root.validity().not_after > late);
}

#[test]
fn the_bundle_has_a_bound() {
    let now = SystemTime::now();
    let mut state = fresh(now);
    for _ in 0..RETIRED_MAX {
        for step in [Step::BeginRoot, Step::Published, Step::Switch] {
            state = state.then(step, now);
        }
    }
    assert_eq!(state.roots(), RETIRED_MAX + 1);
    assert!(matches!(
        state.step_for(Wish::Root),
        Err(RotateError::TooManyRoots)
    ));
    assert_eq!(state.step_for(Wish::Advance).unwrap(), Step::Prune);
    let pruned = state.then(Step::Prune, now);
    assert_eq!(pruned.step_for(Wish::Root).unwrap(), Step::BeginRoot);
}

/// A leaf in use somewhere, and the root that its peers must trust.
struct Leaf {
    root_pem: String,
    expires: SystemTime,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever operators wish for and however time passes: as long as nobody
    /// skips a wait, every leaf that is alive is below a trusted root, and no
    /// root signs before it was published for the whole wait.
    #[test]
    fn no_living_leaf_loses_its_root(
        moves in prop::collection::vec((0..4u8, 1..30u64), 1..40)
    ) {
        let lifetimes = lifetimes();
        let mut now = SystemTime::now();
        let mut state = fresh(now);
        let mut leaves: Vec<Leaf> = Vec::new();
        let mut published: Vec<(String, SystemTime)> =
            vec![(state.active.root.certificate_pem().to_owned(), SystemTime::UNIX_EPOCH)];
        for (kind, hours) in moves {
            match kind {
                0 => if let Ok(step) = state.step_for(Wish::Root) {
                    state = state.then(step, now);
                },
                1 => state = state.then(Step::RenewIntermediate, now),
                _ => now += u32::try_from(hours).unwrap() * HOUR,
            }
            let mut rest = 16;
            while let Some(step) = state.due(now, &lifetimes) {
                if step == Step::Published {
                    let root = &state.next.as_ref().unwrap().hierarchy.root;
                    published.push((root.certificate_pem().to_owned(), now));
                }
                state = state.then(step, now);
                rest -= 1;
                prop_assert!(rest > 0, "comes to rest");
            }
            let root_pem = state.active.root.certificate_pem().to_owned();
            let since = published.iter().find(|(root, _)| *root == root_pem).unwrap().1;
            prop_assert!(now >= since + lifetimes.rotation_wait);
            leaves.push(Leaf { root_pem, expires: now + lifetimes.leaf_max });
            leaves.retain(|leaf| leaf.expires > now);
            for leaf in &leaves {
                prop_assert!(state.trusts(&leaf.root_pem));
            }
        }
    }
}

#[test]
fn old_and_new_leaves_verify_in_every_step() {
    let now = SystemTime::now();
    let identity = Identity::new(&trust_domain(), "shop", "web").unwrap();
    let issue = |state: &State| {
        let request = LeafRequest::new(&identity, Validity::lasting(now, HOUR));
        let above = [state.active.intermediate.certificate_pem()];
        let bundle = state.bundle_pem();
        state
            .active
            .intermediate
            .issue(&request, &above, &bundle)
            .unwrap()
    };
    let mut state = fresh(now);
    let mut leaves = vec![issue(&state)];
    for step in [
        Step::BeginRoot,
        Step::Published,
        Step::RenewIntermediate,
        Step::Switch,
    ] {
        state = state.then(step, now);
        leaves.push(issue(&state));
        for leaf in &leaves {
            let chain = leaf.chain().count();
            assert_eq!(chain, 2, "leaf and intermediate");
            // Everybody who got an answer from now on trusts everybody.
            let newest = leaves.last().unwrap();
            let verified = leaf.check_against(newest.roots(), now);
            assert_eq!(verified, Ok(()), "after {step:?}");
        }
    }
    let pruned = state.then(Step::Prune, now);
    let newest = issue(&pruned);
    let old = &leaves[0];
    let refused = old.check_against(newest.roots(), now);
    assert_eq!(refused, Err(culvert_tls::Fault::UnknownCa));
}
