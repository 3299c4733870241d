use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use culvert_identity::TrustDomain;
use culvert_runtime::{Drain, ManualClock, Metrics};
use culvert_tls::ca::{Authority as Issuer, LeafRequest, Validity};
use tokio::time::{Instant, advance, sleep};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

fn domain() -> TrustDomain {
    "cluster.local".parse().expect("trust domain")
}

fn id(account: &str) -> Identity {
    Identity::new(&domain(), "shop", account).expect("identity")
}

/// A CA in the process, on the test's clock.
#[derive(Debug, Clone)]
struct FakeCa {
    shared: Arc<Shared>,
}

struct Shared {
    root: Issuer,
    clock: ManualClock,
    requests: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
    behaviour: Mutex<Behaviour>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Works,
    Fails,
    IssuesExpired,
    TakesLong,
}

impl FakeCa {
    fn new(clock: &ManualClock) -> Self {
        let validity = Validity::lasting(clock.now(), 1000 * LIFETIME);
        let root = Issuer::root(&domain(), validity).expect("root");
        let shared = Shared {
            root,
            clock: clock.clone(),
            requests: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            behaviour: Mutex::new(Behaviour::Works),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    fn behave(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().expect("lock") = behaviour;
    }

    fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

impl Authority for FakeCa {
    async fn issue(&self, identity: &Identity) -> Result<IssuedCertificate, IssueError> {
        let shared = &self.shared;
        shared.requests.fetch_add(1, Ordering::SeqCst);
        let running = shared.running.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most_running.fetch_max(running, Ordering::SeqCst);
        let behaviour = *shared.behaviour.lock().expect("lock");
        sleep(Duration::from_millis(
            if behaviour == Behaviour::TakesLong {
                8000
            } else {
                20
            },
        ))
        .await;
        shared.running.fetch_sub(1, Ordering::SeqCst);
        if behaviour == Behaviour::Fails {
            return Err(IssueError::Deadline {
                address: "ca:15012".into(),
            });
        }
        let mut validity = Validity::lasting(shared.clock.now(), LIFETIME);
        if behaviour == Behaviour::IssuesExpired {
            validity = Validity {
                not_before: shared.clock.now() - 2 * HOUR,
                not_after: shared.clock.now() - HOUR,
            };
        }
        let root = shared.root.certificate_pem();
        Ok(shared
            .root
            .issue(&LeafRequest::new(identity, validity), &[], root)
            .expect("signs"))
    }
}

struct World {
    ca: FakeCa,
    clock: ManualClock,
    certificates: Certificates,
    metrics: Metrics,
    _drain: Drain,
}

/// Both clocks start together; the task runs on the test's runtime.
fn world() -> World {
    // In whole seconds, as certificates are.
    let clock = ManualClock::new(SystemTime::UNIX_EPOCH + 500_000 * HOUR);
    let (ca, metrics, drain) = (FakeCa::new(&clock), Metrics::new(), Drain::new(HOUR));
    let counters = CertificateMetrics::register(&metrics);
    let (certificates, task) = Certificates::issued(ca.clone(), Arc::new(clock.clone()), counters);
    CertificateMetrics::register_expiry(&metrics, Arc::clone(certificates.store()));
    let mut tasks = culvert_runtime::Tasks::new();
    tasks.critical("certificates", task.run(drain.watch()));
    // The test ends before its tasks do.
    std::mem::forget(tasks);
    World {
        ca,
        clock,
        certificates,
        metrics,
        _drain: drain,
    }
}

impl World {
    /// Lets time pass on both clocks, in steps as small as the task looks.
    async fn pass(&self, time: Duration) {
        let step = Duration::from_secs(30);
        let mut left = time;
        while !left.is_zero() {
            let now = left.min(step);
            self.clock.advance(now);
            advance(now).await;
            // Requests of this moment take 20 ms.
            sleep(Duration::from_millis(50)).await;
            left -= now;
        }
    }

    fn serial(&self, account: &str) -> Option<String> {
        let current = self.certificates.store().current(&id(account))?;
        Some(current.certificate().serial().to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_gets_the_certificate_of_an_identity_that_is_not_here() {
    let world = world();
    let start = Instant::now();
    let error = world
        .certificates
        .certificate(&id("elsewhere"))
        .await
        .expect_err("not here");
    assert_eq!(&*error.reason, "no pod of this node has it");
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(world.ca.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_waits_five_seconds_and_learns_the_last_failure() {
    let world = world();
    world.ca.behave(Behaviour::Fails);
    world.certificates.acquire(&id("a")).await;
    let start = Instant::now();
    let error = world
        .certificates
        .certificate(&id("a"))
        .await
        .expect_err("no CA");
    assert_eq!(start.elapsed(), CERTIFICATE_WAIT);
    assert!(
        error.reason.contains("ca:15012 has not answered"),
        "{error}"
    );
    world.ca.behave(Behaviour::Works);
    let waiting = world
        .certificates
        .certificate(&id("a"))
        .await
        .expect("the CA is back");
    assert_eq!(*waiting.identity(), id("a"));
    assert_eq!(world.certificates.failure(&id("a")), None);
}

#[tokio::test(start_paused = true)]
async fn a_connection_sees_a_try_also_when_one_has_just_failed() {
    const MOMENT: Duration = Duration::from_millis(10);
    // While the failing try is under way, and after it.
    for after in [Duration::ZERO, 3 * MOMENT] {
        let world = world();
        world.ca.behave(Behaviour::Fails);
        world.certificates.acquire(&id("a")).await;
        // The waits have grown to their longest.
        world.pass(HOUR).await;
        let tries = world.ca.requests();
        while world.ca.requests() == tries {
            world.pass(MOMENT).await;
        }
        sleep(after).await;
        let of = id("a");
        let back = async {
            sleep(3 * MOMENT).await;
            world.ca.behave(Behaviour::Works);
        };
        let (waiting, ()) = tokio::join!(world.certificates.certificate(&of), back);
        waiting.expect("the CA is back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_ca_keeps_a_connection_no_longer_than_its_deadline() {
    let world = world();
    world.ca.behave(Behaviour::TakesLong);
    world.certificates.acquire(&id("a")).await;
    let start = Instant::now();
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect_err("too slow");
    assert_eq!(start.elapsed(), CERTIFICATE_WAIT);
    // The request went on for the next one.
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect("it has come");
    assert_eq!(world.ca.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pods_certificate_is_there_before_its_first_connection() {
    let world = world();
    for number in 0..20 {
        world.certificates.acquire(&id(&format!("a{number}"))).await;
    }
    sleep(Duration::from_millis(200)).await;
    assert_eq!(world.certificates.store().all().len(), 20);
    assert_eq!(world.ca.shared.most_running.load(Ordering::SeqCst), 8);
}

#[tokio::test(start_paused = true)]
async fn renewal_comes_at_half_life() {
    let world = world();
    world.certificates.acquire(&id("a")).await;
    let first = world
        .certificates
        .certificate(&id("a"))
        .await
        .expect("issued");
    let serial = first.certificate().serial().to_owned();
    world.pass(LIFETIME.mul_f64(0.44)).await;
    assert_eq!(world.serial("a").as_ref(), Some(&serial));
    world.pass(LIFETIME.mul_f64(0.12)).await;
    assert_ne!(world.serial("a").expect("still there"), serial);
    assert_eq!(world.ca.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_last_good_certificate_stays_until_it_expires() {
    let world = world();
    world.certificates.acquire(&id("a")).await;
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect("issued");
    let serial = world.serial("a");
    world.ca.behave(Behaviour::Fails);
    world.pass(LIFETIME - HOUR).await;
    assert!(world.ca.requests() > 100, "tried all the time");
    assert_eq!(world.serial("a"), serial);
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect("still good");
    // An answer that peers would refuse is no better than none.
    world.ca.behave(Behaviour::IssuesExpired);
    world.pass(HOUR / 4).await;
    assert_eq!(world.serial("a"), serial);
    assert!(
        world
            .certificates
            .failure(&id("a"))
            .expect("noted")
            .contains("refused by peers")
    );
    world.ca.behave(Behaviour::Fails);
    world.pass(HOUR).await;
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect_err("it has expired");
    world.ca.behave(Behaviour::Works);
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect("soon when the CA is back");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_slept_renews_when_it_wakes() {
    let world = world();
    world.certificates.acquire(&id("a")).await;
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect("issued");
    let serial = world.serial("a");
    // Only the wall clock went on.
    world.clock.advance(LIFETIME / 2 + 2 * HOUR);
    advance(Duration::from_secs(31)).await;
    sleep(Duration::from_millis(100)).await;
    assert_ne!(world.serial("a"), serial);
}

#[tokio::test(start_paused = true)]
async fn key_and_series_go_with_the_last_pod() {
    let world = world();
    for _ in 0..2 {
        world.certificates.acquire(&id("a")).await;
    }
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect("issued");
    let series = "culvert_certificate_expiry_timestamp_seconds{\
                  identity=\"spiffe://cluster.local/ns/shop/sa/a\"}";
    let text = world.metrics.encode().expect("encodes");
    assert!(text.contains(series), "{text}");
    assert!(
        text.contains("culvert_certificate_requests_total{result=\"issued\"} 1"),
        "{text}"
    );
    world.certificates.release(&id("a")).await;
    sleep(Duration::from_millis(10)).await;
    assert!(world.serial("a").is_some());
    world.certificates.release(&id("a")).await;
    sleep(Duration::from_millis(10)).await;
    assert!(world.serial("a").is_none());
    assert!(!world.metrics.encode().expect("encodes").contains(series));
    world
        .certificates
        .certificate(&id("a"))
        .await
        .expect_err("forgotten");
}
