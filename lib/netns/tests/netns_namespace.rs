//! Namespaces themselves. Needs CAP_SYS_ADMIN: run as root.

use std::fs::File;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};

use culvert_netns::{
    Netns, NetnsError, create_named, delete_named, list_named, read_sysctl, write_sysctl,
};

fn fresh() -> Netns {
    Netns::create().expect("these tests make network namespaces: run them as root")
}

#[test]
fn what_is_no_network_namespace_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("plain");
    let plain = File::create(&path).expect("file");
    assert!(matches!(
        Netns::open(&path),
        Err(NetnsError::NotNetwork { .. })
    ));
    assert!(matches!(
        Netns::from_fd(plain.into()),
        Err(NetnsError::NotNetwork { .. })
    ));
    assert!(matches!(
        Netns::open("/proc/self/ns/mnt"),
        Err(NetnsError::NotNetwork { .. })
    ));
    assert!(matches!(
        Netns::open(dir.path().join("none")),
        Err(NetnsError::Open { .. })
    ));
    for name in ["", ".", "..", "a/b", "../x"] {
        assert!(
            matches!(create_named(name), Err(NetnsError::BadName(_))),
            "{name:?}"
        );
    }
}

#[test]
fn a_closure_runs_inside_and_the_caller_stays_outside() {
    let home = Netns::current().expect("own namespace");
    let other = fresh();
    assert_ne!(home, other);
    let seen = other
        .run(|| Netns::current().expect("inside"))
        .expect("enter");
    assert_eq!(seen, other);
    assert_eq!(seen.inode(), other.inode());
    let seen = other
        .run_here(&home, || Netns::current().expect("inside"))
        .expect("enter");
    assert_eq!(seen, other);
    assert_eq!(Netns::current().expect("back"), home);
}

#[test]
fn a_panic_inside_comes_out_and_leaves_the_thread_at_home() {
    let home = Netns::current().expect("own namespace");
    let other = fresh();
    let result = catch_unwind(AssertUnwindSafe(|| {
        other.run_here(&home, || panic!("inside"))
    }));
    assert!(result.is_err());
    assert_eq!(Netns::current().expect("back"), home);
    let result = catch_unwind(AssertUnwindSafe(|| other.run(|| panic!("inside"))));
    assert!(result.is_err());
}

#[test]
fn a_socket_opened_inside_stays_inside() {
    let home = Netns::current().expect("own namespace");
    let (one, two) = (fresh(), fresh());
    let bind = || TcpListener::bind(("0.0.0.0", 15001)).expect("the port is free in a new one");
    let first = one.run_here(&home, bind).expect("enter");
    let second = two.run_here(&home, bind).expect("enter");
    let taken = one
        .run(|| TcpListener::bind(("0.0.0.0", 15001)).is_err())
        .expect("enter");
    assert!(taken);
    assert!(one.owns(&first).expect("socket") && two.owns(&second).expect("socket"));
    assert!(!one.owns(&second).expect("socket") && !home.owns(&second).expect("socket"));
    drop((first, second));
}

#[test]
fn a_spawned_thread_lives_inside() {
    let other = fresh();
    let handle = other
        .spawn("inside", || Netns::current().expect("inside"))
        .expect("thread");
    assert_eq!(handle.join().expect("no panic").expect("entered"), other);
}

#[test]
fn settings_belong_to_the_namespace_of_the_thread() {
    const NAME: &str = "net.ipv4.tcp_fwmark_accept";
    let other = fresh();
    let before = read_sysctl(NAME).expect("setting");
    let wanted = if before == "1" { "0" } else { "1" };
    other
        .run(|| write_sysctl(NAME, wanted))
        .expect("enter")
        .expect("write");
    assert_eq!(
        other
            .run(|| read_sysctl(NAME))
            .expect("enter")
            .expect("read"),
        wanted
    );
    assert_eq!(read_sysctl(NAME).expect("setting"), before);
    assert!(
        other
            .run(|| write_sysctl("net.ipv4.no_such_thing", "1"))
            .expect("enter")
            .is_err()
    );
}

#[test]
fn a_name_lives_until_it_is_deleted() {
    let name = format!("t-netns-{}", std::process::id());
    delete_named(&name).expect("nothing to delete");
    let made = create_named(&name).expect("run as root");
    assert!(list_named().expect("list").contains(&name));
    assert_eq!(Netns::open_named(&name).expect("open"), made);
    assert!(matches!(create_named(&name), Err(NetnsError::Name { .. })));
    assert_eq!(
        Netns::open_named(&name).expect("the first one is still there"),
        made
    );
    delete_named(&name).expect("delete");
    assert!(!list_named().expect("list").contains(&name));
    assert!(Netns::open_named(&name).is_err());
    // The descriptor outlives the name.
    made.run(|| ()).expect("enter");
}
