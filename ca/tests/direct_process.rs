//! The program itself, killed without warning in the middle of things.

#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use culvert_tls::Roots;
use culvert_tls::ca::Summary;
use culvert_token::TokenIssuer;
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(30);

/// A running program; killed when dropped.
struct Program {
    child: Child,
    admin: SocketAddr,
    ready: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn command(directory: &Path, admin: SocketAddr, ready: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culvert-ca"));
    command
        .env_clear()
        .env("CULVERT_CA_LISTEN", "127.0.0.1:0")
        .env("CULVERT_CA_STATE_DIR", directory.join("ca"))
        .env("CULVERT_CA_JWKS_FILE", directory.join("jwks.json"))
        .env("CULVERT_CA_OBJECTS_DIR", directory)
        .env("CULVERT_CA_BUNDLE_FILE", directory.join("root-cert.pem"))
        .env("CULVERT_ADMIN_ADDRESS", admin.to_string())
        .env("CULVERT_METRICS_ADDRESS", "127.0.0.1:0")
        .env("CULVERT_READY_ADDRESS", ready.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

impl Program {
    fn start(directory: &Path) -> Self {
        let (admin, ready) = (free_port(), free_port());
        let child = command(directory, admin, ready).spawn().unwrap();
        let program = Self {
            child,
            admin,
            ready,
        };
        wait_for("ready", || {
            http(program.ready, "GET", "/healthz/ready").is_ok_and(|(status, _)| status == 200)
        });
        program
    }

    fn rotation(&self) -> Value {
        let (status, body) = http(self.admin, "GET", "/rotation").unwrap();
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn config_dump(&self) -> Value {
        let (status, body) = http(self.admin, "GET", "/config_dump").unwrap();
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn rotate(&self, query: &str) -> (u16, String) {
        http(self.admin, "POST", &format!("/rotate?{query}")).unwrap()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = SystemTime::now();
    while !holds() {
        assert!(started.elapsed().unwrap() < DEADLINE, "not {what} in time");
        std::thread::yield_now();
    }
}

fn http(address: SocketAddr, method: &str, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: ca\r\nConnection: close\r\n");
    stream.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned());
    match (status, body) {
        (Some(status), Some(body)) => Ok((status, body)),
        _ => Err(std::io::Error::other("answer was cut short")),
    }
}

fn prepare() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let issuer = TokenIssuer::generate().unwrap();
    issuer
        .write_jwks(&directory.path().join("jwks.json"))
        .unwrap();
    directory
}

fn bundle(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("root-cert.pem")).unwrap()
}

#[test]
fn every_step_of_a_rotation_survives_a_kill() {
    let directory = prepare();
    let mut program = Program::start(directory.path());
    let first = program.rotation();
    assert_eq!(first["step"], "steady");
    let dump = program.config_dump();
    assert_eq!(dump["rotation"], first);
    assert!(dump["config"].is_object(), "{dump}");
    let mut last = first.clone();
    for (query, step, roots) in [
        ("what=intermediate", "steady", 1),
        ("what=root", "waiting", 2),
        ("what=intermediate", "waiting", 2),
        ("what=root&advance=true", "overlap", 2),
        ("what=root&advance=true", "steady", 1),
    ] {
        let (status, body) = program.rotate(query);
        assert_eq!(status, 200, "{query}: {body}");
        program.kill();
        program = Program::start(directory.path());
        let after = program.rotation();
        assert_eq!(after["step"], step, "{query}");
        assert_eq!(
            after,
            serde_json::from_str::<Value>(&body).unwrap(),
            "{query}"
        );
        let published = Roots::from_pem(bundle(directory.path()).as_bytes()).unwrap();
        assert_eq!(published.len(), roots, "{query}");
        last = after;
    }
    assert_ne!(last["root"]["serial"], first["root"]["serial"]);
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_state() {
    let directory = prepare();
    let mut program = Program::start(directory.path());
    let mut trusted = bundle(directory.path());
    for round in 0..12_u64 {
        // The answer is not waited for: the kill comes at another moment each time.
        let mut stream = TcpStream::connect(program.admin).unwrap();
        let query = ["what=root", "what=intermediate", "what=root&advance=true"];
        let query = query[usize::try_from(round).unwrap() % 3];
        let request =
            format!("POST /rotate?{query} HTTP/1.1\r\nHost: ca\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let moment = SystemTime::now();
        while moment.elapsed().unwrap() < Duration::from_micros(round * 400) {
            std::hint::spin_loop();
        }
        program.kill();
        program = Program::start(directory.path());
        let rotation = program.rotation();
        let published = bundle(directory.path());
        assert_eq!(rotation["bundle_pem"], published, "{query}");
        // Whoever signs now was trusted before, or is now in the bundle that
        // also holds what was trusted before.
        let signing = rotation["root"]["serial"].as_str().unwrap();
        assert!(holds(&published, signing), "{query}");
        if !holds(&trusted, signing) {
            assert_eq!(rotation["step"], "overlap", "{query}");
        }
        trusted = published;
    }
}

/// Whether a bundle holds the certificate with this serial number.
fn holds(bundle: &str, serial: &str) -> bool {
    let mut certificates = bundle.split_inclusive("-----END CERTIFICATE-----\n");
    certificates.any(|pem| Summary::of_pem(pem).is_some_and(|found| found.serial == serial))
}

#[test]
fn two_at_once_and_loose_permissions_are_refused_with_a_remedy() {
    let directory = prepare();
    let refused = || {
        let output = command(directory.path(), free_port(), free_port())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let program = Program::start(directory.path());
    let text = refused();
    assert!(text.contains("is in use by another culvert-ca"), "{text}");
    program.kill();
    let state = directory.path().join("ca");
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = refused();
    assert!(
        text.contains(&format!("run `chmod 700 {}`", state.display())),
        "{text}"
    );
}

#[test]
fn wishes_that_make_no_sense_are_refused() {
    let directory = prepare();
    let program = Program::start(directory.path());
    for query in ["", "what=leaf", "advance=true"] {
        assert_eq!(program.rotate(query).0, 400, "{query}");
    }
    assert_eq!(program.rotate("what=root").0, 200);
    let (status, body) = program.rotate("what=root");
    assert_eq!(status, 409);
    assert!(body.contains("a root rotation is under way"), "{body}");
}

#[test]
fn a_program_that_is_told_to_stop_does_so_at_once() {
    let directory = prepare();
    let mut program = Program::start(directory.path());
    let pid = rustix::process::Pid::from_child(&program.child);
    let asked = SystemTime::now();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = program.child.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(asked.elapsed().unwrap() < Duration::from_secs(10));
}
