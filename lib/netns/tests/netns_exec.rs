//! Becoming another program. The child is this test binary itself, which needs
//! CAP_SYS_ADMIN: run as root.

use std::ffi::OsString;
use std::process::Command;

use culvert_netns::{ExecPlan, FileBind, Netns, exec, loopback_up};

const CHILD: &str = "NETNS_EXEC_CHILD";

#[test]
fn the_program_sees_its_own_network_files_and_name() {
    if let Some(config) = std::env::var_os(CHILD) {
        become_the_program(config);
    }
    let dir = tempfile::tempdir().expect("directory");
    let config = dir.path().join("resolv.conf");
    std::fs::write(&config, "nameserver 203.0.113.53\n").expect("file");
    let before = std::fs::read_to_string("/etc/hosts").expect("/etc/hosts");
    let output = Command::new(std::env::current_exe().expect("path"))
        .args([
            "--exact",
            "the_program_sees_its_own_network_files_and_name",
            "--nocapture",
        ])
        .env(CHILD, &config)
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("nameserver 203.0.113.53"),
        "run as root: {text} {errors}"
    );
    assert!(text.contains("host pod-7 value only"), "{text} {errors}");
    assert!(text.contains("interfaces 1"), "{text} {errors}");
    assert_eq!(
        std::fs::read_to_string("/etc/hosts").expect("/etc/hosts"),
        before
    );
}

fn become_the_program(config: OsString) -> ! {
    let netns = Netns::create().expect("run as root");
    netns.run(loopback_up).expect("enter").expect("loopback");
    let script = "cat /etc/hosts; echo host $(cat /proc/sys/kernel/hostname) value $GIVEN$CHILD; \
                  echo interfaces $(grep -c : /proc/net/dev)";
    let error = exec(&ExecPlan {
        netns,
        binds: vec![FileBind {
            source: config.into(),
            target: "/etc/hosts".into(),
        }],
        hostname: Some("pod-7".to_owned()),
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: vec![
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("GIVEN".into(), "only".into()),
        ],
        directory: Some("/".into()),
    });
    panic!("{error:?}");
}
