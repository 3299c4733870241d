use culvert_runtime::chain;

use super::*;
use crate::config::Lifetimes;
use crate::rotate::Step;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn trust_domain() -> TrustDomain {
    "cluster.local".parse().unwrap()
}

fn lifetimes() -> Lifetimes {
    Lifetimes::of_leaves(DAY, DAY, DAY)
}

fn fresh() -> State {
    State::create(&trust_domain(), SystemTime::now(), &lifetimes()).unwrap()
}

/// A directory that does not exist yet, inside one that will be removed.
fn directory() -> (tempfile::TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("deep").join("ca");
    (outer, path)
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn what_others_can_reach_is_refused_with_a_remedy() {
    let (_outer, path) = directory();
    let store = Store::open(&path).unwrap();
    store.save(&fresh()).unwrap();
    let file = path.join(STATE_FILE);
    assert_eq!((mode(&path), mode(&file)), (0o700, 0o600));
    for loose in [0o640, 0o604, 0o660] {
        chmod(&file, loose);
        let error = store.load(&trust_domain()).unwrap_err();
        assert!(matches!(error, StoreError::Loose { mode, .. } if mode == loose));
        let remedy = format!("run `chmod 600 {}`", file.display());
        assert!(error.to_string().contains(&remedy), "{error}");
    }
    chmod(&file, 0o600);
    assert!(store.load(&trust_domain()).unwrap().is_some());
    drop(store);
    for loose in [0o750, 0o705, 0o777] {
        chmod(&path, loose);
        let error = Store::open(&path).unwrap_err();
        let remedy = format!("run `chmod 700 {}`", path.display());
        assert!(error.to_string().contains(&remedy), "{error}");
    }
    chmod(&path, 0o700);
    assert!(Store::open(&path).is_ok());
}

#[test]
fn every_state_survives_being_written_and_read() {
    let (_outer, path) = directory();
    let store = Store::open(&path).unwrap();
    assert!(store.load(&trust_domain()).unwrap().is_none());
    let now = SystemTime::now();
    let mut state = fresh();
    let steps = [
        Step::BeginRoot,
        Step::Published,
        Step::Switch,
        Step::BeginRoot,
        Step::Prune,
    ];
    for step in steps {
        store.save(&state).unwrap();
        let read = store.load(&trust_domain()).unwrap().unwrap();
        assert_eq!(read.bundle_pem(), state.bundle_pem());
        assert_eq!(read.active.root.summary(), state.active.root.summary());
        let serial = |state: &State| state.active.intermediate.summary().serial.clone();
        assert_eq!(serial(&read), serial(&state));
        let switch = |state: &State| {
            let next = state.next.as_ref()?;
            Some(next.switch_at.map(seconds))
        };
        assert_eq!(switch(&read), switch(&state));
        assert_eq!(read.retired.len(), state.retired.len());
        state = state.after(step, now, &lifetimes()).unwrap();
    }
}

#[test]
fn one_process_at_a_time_holds_the_directory() {
    let (_outer, path) = directory();
    let first = Store::open(&path).unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::Locked { .. })));
    drop(first);
    assert!(Store::open(&path).is_ok());
}

#[test]
fn what_a_crash_leaves_aside_does_no_harm() {
    let (_outer, path) = directory();
    let store = Store::open(&path).unwrap();
    let state = fresh();
    store.save(&state).unwrap();
    let aside = path.join(STATE_FILE).with_extension("tmp");
    fs::write(&aside, "{\"version\": 1, \"trust_dom").unwrap();
    chmod(&aside, 0o644);
    let read = store.load(&trust_domain()).unwrap().unwrap();
    assert_eq!(read.bundle_pem(), state.bundle_pem());
    store.save(&state).unwrap();
    assert_eq!(mode(&path.join(STATE_FILE)), 0o600);
    assert!(!aside.exists());
}

#[test]
fn a_foreign_or_broken_state_is_never_overwritten() {
    let (_outer, path) = directory();
    let store = Store::open(&path).unwrap();
    store.save(&fresh()).unwrap();
    let other: TrustDomain = "elsewhere.org".parse().unwrap();
    let error = store.load(&other).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is of trust domain cluster.local"),
        "{error}"
    );
    let file = path.join(STATE_FILE);
    let good = fs::read_to_string(&file).unwrap();
    for (broken, expected) in [
        (String::new(), "is not a state of this program"),
        (
            good.replacen("\"version\": 1", "\"version\": 9", 1),
            "has version 9",
        ),
        (
            good.replace("BEGIN PRIVATE KEY", "BEGIN PRIVATE"),
            "broken root",
        ),
        (
            good.replacen("cluster.local", "no domain", 1),
            "names no trust domain",
        ),
    ] {
        fs::write(&file, &broken).unwrap();
        let error = store.load(&trust_domain()).unwrap_err();
        assert!(chain(&error).contains(expected), "{}", chain(&error));
    }
}

#[test]
fn a_disk_that_refuses_leaves_the_old_state() {
    let (_outer, path) = directory();
    let store = Store::open(&path).unwrap();
    let state = fresh();
    store.save(&state).unwrap();
    // A directory in the way of the temporary file stands for a full disk.
    fs::create_dir(path.join(STATE_FILE).with_extension("tmp")).unwrap();
    let error = store.save(&fresh()).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }));
    let read = store.load(&trust_domain()).unwrap().unwrap();
    assert_eq!(read.bundle_pem(), state.bundle_pem());
}
