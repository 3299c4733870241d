//! Rotation and restart, as those who hold certificates see them.

use std::time::SystemTime;

use culvert_ca::rotate::Wish;
use culvert_runtime::Clock as _;
use culvert_tls::{Fault, IssuedCertificate, Roots};

use crate::kit::{Bench, HOUR, identity};

fn roots(bench: &Bench) -> Roots {
    Roots::from_pem(bench.bundle().as_bytes()).unwrap()
}

async fn web(bench: &Bench) -> IssuedCertificate {
    bench
        .certificate("node-1", &identity("shop", "web"))
        .await
        .unwrap()
}

#[tokio::test]
async fn old_and_new_certificates_verify_in_every_step_of_a_root_rotation() {
    let bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let now = SystemTime::now();
    let mut all = vec![web(&bench).await];
    let first_root = bench.bundle();

    // Begin: both roots are published at once, the old one still signs.
    bench.ca.fulfil(Wish::Root).unwrap();
    assert_eq!(roots(&bench).len(), 2);
    all.push(web(&bench).await);
    assert!(bench.ca.fulfil(Wish::Root).is_err(), "one at a time");
    let only_old = Roots::from_pem(first_root.as_bytes()).unwrap();
    all[1].check_against(&only_old, now).unwrap();

    // Nothing happens before the wait is over; then the new root signs.
    bench.clock.advance(23 * HOUR);
    bench.ca.reconcile().unwrap();
    all.push(web(&bench).await);
    // A moment at which all three are alive.
    let then = bench.clock.now();
    all[2].check_against(&only_old, then).unwrap();
    bench.clock.advance(HOUR);
    bench.ca.reconcile().unwrap();
    let after = bench.clock.now();
    let new = web(&bench).await;
    assert_eq!(new.check_against(&only_old, after), Err(Fault::UnknownCa));
    assert_eq!(roots(&bench).len(), 2);
    for certificate in &all {
        certificate.check_against(&roots(&bench), then).unwrap();
    }
    new.check_against(&roots(&bench), after).unwrap();
    // What the first answer's holder trusts was widened by the bundle file.
    new.check_against(all[1].roots(), after).unwrap();

    // The last certificate below the old root has expired: it goes.
    bench.clock.advance(24 * HOUR);
    bench.ca.reconcile().unwrap();
    assert_eq!(roots(&bench).len(), 1);
    assert_eq!(
        all[0].check_against(&roots(&bench), now),
        Err(Fault::UnknownCa)
    );
    new.check_against(&roots(&bench), after).unwrap();
}

#[tokio::test]
async fn an_operator_can_skip_every_wait() {
    let bench = Bench::start().await;
    let first = bench.bundle();
    for expected in [2, 2, 1] {
        bench.ca.fulfil(Wish::Advance).unwrap();
        assert_eq!(roots(&bench).len(), expected);
    }
    assert_ne!(bench.bundle(), first);
    // The server certificate followed, so that callers still get in.
    bench.pod("web-1", "node-1", "web");
    let channel = bench.channel().await;
    drop(channel);
    web(&bench).await.check(SystemTime::now()).unwrap();
}

#[tokio::test]
async fn a_new_intermediate_signs_at_once() {
    let bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let before = web(&bench).await;
    let bundle = bench.bundle();
    bench.ca.fulfil(Wish::Intermediate).unwrap();
    let after = web(&bench).await;
    assert_eq!(bench.bundle(), bundle);
    assert_ne!(before.chain().nth(1), after.chain().nth(1));
    let now = SystemTime::now();
    before.check_against(after.roots(), now).unwrap();
    after.check_against(before.roots(), now).unwrap();
}

#[tokio::test]
async fn a_restart_keeps_root_and_rotation() {
    let mut bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let now = SystemTime::now();
    let mut all = vec![web(&bench).await];
    for _ in 0..2 {
        bench.ca.fulfil(Wish::Advance).unwrap();
        let bundle = bench.bundle();
        // Also when the published file was lost meanwhile.
        std::fs::remove_file(bench.bundle_file()).unwrap();
        bench = bench.restart().await;
        assert_eq!(bench.bundle(), bundle);
        all.push(web(&bench).await);
        for certificate in &all {
            certificate.check_against(&roots(&bench), now).unwrap();
        }
    }
}

#[tokio::test]
async fn the_server_certificate_renews_itself() {
    let bench = Bench::start().await;
    bench.pod("web-1", "node-1", "web");
    let expiry = |bench: &Bench| {
        let text = bench.metrics.encode().unwrap();
        let name = "culvert_ca_server_certificate_expiry_timestamp_seconds ";
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap().parse::<i64>().unwrap()
    };
    bench.ca.reconcile().unwrap();
    let before = expiry(&bench);
    bench.clock.advance(11 * HOUR);
    bench.ca.reconcile().unwrap();
    assert_eq!(expiry(&bench), before);
    bench.clock.advance(HOUR);
    bench.ca.reconcile().unwrap();
    assert_eq!(expiry(&bench), before + 12 * 3600);
}
