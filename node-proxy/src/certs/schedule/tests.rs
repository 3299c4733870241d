use culvert_identity::TrustDomain;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn id(account: &str) -> Identity {
    let domain: TrustDomain = "cluster.local".parse().expect("trust domain");
    Identity::new(&domain, "shop", account).expect("identity")
}

fn now() -> Now {
    Now {
        steady: Instant::now(),
        wall: SystemTime::UNIX_EPOCH + 1000 * HOUR,
    }
}

impl Now {
    fn plus(self, by: Duration) -> Self {
        Self {
            steady: self.steady + by,
            wall: self.wall + by,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_connection_waits_for_comes_first_then_warm_up_then_refresh() {
    let (mut schedule, now) = (Schedule::default(), now());
    for account in ["old", "a", "b", "c"] {
        schedule.acquire(&id(account));
    }
    assert_eq!(schedule.next(now), Some(id("old")));
    schedule.issued(&id("old"), now.wall, now);
    schedule.demand(&id("c"));
    let order: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
    assert_eq!(order, [id("c"), id("a"), id("b"), id("old")]);
}

#[tokio::test(start_paused = true)]
async fn eight_at_a_time() {
    let (mut schedule, now) = (Schedule::default(), now());
    for number in 0..20 {
        schedule.acquire(&id(&format!("a{number}")));
    }
    let first: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
    assert_eq!(first.len(), 8);
    assert_eq!(schedule.idle(now), None);
    schedule.failed(&first[0], now);
    assert_eq!(schedule.idle(now), Some(Duration::ZERO));
    assert!(schedule.next(now).is_some());
    assert!(schedule.next(now).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_failure_waits_ever_longer_up_to_the_cap() {
    let (mut schedule, mut now) = (Schedule::default(), now());
    schedule.acquire(&id("a"));
    let mut waits = Vec::new();
    for _ in 0..10 {
        assert_eq!(schedule.next(now), Some(id("a")));
        schedule.failed(&id("a"), now);
        assert_eq!(schedule.next(now), None);
        let wait = schedule.idle(now).expect("due some time");
        waits.push(wait.as_secs_f64());
        now = now.plus(wait);
    }
    assert!((0.8..=1.2).contains(&waits[0]), "{waits:?}");
    assert!((1.6..=2.4).contains(&waits[1]), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 150.0), "{waits:?}");
    assert!(waits[9] >= 120.0, "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_connection_and_a_working_ca_shorten_the_wait() {
    let (mut schedule, mut now) = (Schedule::default(), now());
    for account in ["a", "b"] {
        schedule.acquire(&id(account));
    }
    for _ in 0..10 {
        while schedule.next(now).is_some() {}
        for account in ["a", "b"] {
            schedule.failed(&id(account), now);
        }
        now = now.plus(Duration::from_secs(200));
    }
    while schedule.next(now).is_some() {}
    schedule.failed(&id("a"), now);
    schedule.failed(&id("b"), now);
    schedule.demand(&id("a"));
    assert_eq!(schedule.idle(now), Some(Duration::from_secs(2)));
    now = now.plus(Duration::from_secs(2));
    assert_eq!(schedule.next(now), Some(id("a")));
    assert_eq!(schedule.next(now), None);
    schedule.issued(&id("a"), now.wall + HOUR, now);
    assert_eq!(schedule.next(now), Some(id("b")));
}

#[tokio::test(start_paused = true)]
async fn renewal_is_due_by_the_wall_clock() {
    let (mut schedule, now) = (Schedule::default(), now());
    schedule.acquire(&id("a"));
    schedule.next(now);
    schedule.issued(&id("a"), now.wall + 12 * HOUR, now);
    assert_eq!(schedule.next(now.plus(11 * HOUR)), None);
    // The machine slept: its steady clock stood still.
    let woken = Now {
        steady: now.steady,
        wall: now.wall + 13 * HOUR,
    };
    assert_eq!(schedule.next(woken), Some(id("a")));
}

#[tokio::test(start_paused = true)]
async fn the_last_pod_takes_the_identity_along() {
    let (mut schedule, now) = (Schedule::default(), now());
    schedule.acquire(&id("a"));
    schedule.acquire(&id("a"));
    assert!(!schedule.release(&id("a")));
    assert!(schedule.release(&id("a")));
    assert!(!schedule.release(&id("a")));
    assert!(!schedule.contains(&id("a")));
    // A late answer brings nothing back.
    schedule.issued(&id("a"), now.wall, now);
    assert_eq!(schedule.next(now), None);
    assert_eq!(schedule.idle(now), None);
}

#[test]
fn renewal_is_at_half_life_within_a_twentieth() {
    let start = SystemTime::UNIX_EPOCH;
    let at = |random| {
        renew_at(start, start + 20 * HOUR, random)
            .duration_since(start)
            .expect("later")
    };
    assert_eq!(at(0.0), 9 * HOUR);
    assert_eq!(at(0.5), 10 * HOUR);
    assert_eq!(at(1.0), 11 * HOUR);
}
