//! A mesh-less cluster for one test: brought up, asked, taken down.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use serde_json::Value;

/// Time for something to happen on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// A cluster; dropping it takes it down.
pub(crate) struct Cluster {
    mesh: &'static str,
    directory: tempfile::TempDir,
}

impl Cluster {
    /// A cluster of these files that is not up yet.
    pub(crate) fn new(mesh: &'static str, files: &[(&str, &str)]) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "this test makes network namespaces: run it as root"
        );
        let directory = tempfile::tempdir().expect("directory");
        let cluster = Self { mesh, directory };
        // What an aborted run has left.
        cluster.succeeds(&["down"]);
        for (name, content) in files {
            cluster.write(name, content);
        }
        cluster
    }

    /// A cluster of these files, up and ready.
    pub(crate) fn up(mesh: &'static str, nodes: &str, files: &[(&str, &str)]) -> Self {
        let cluster = Self::new(mesh, files);
        cluster.succeeds(&["up", &cluster.path(), "--no-mesh", "--nodes", nodes]);
        cluster
    }

    /// Name of the mesh.
    pub(crate) fn mesh(&self) -> &'static str {
        self.mesh
    }

    /// Directory of the objects.
    pub(crate) fn path(&self) -> String {
        self.directory.path().display().to_string()
    }

    /// State directory.
    pub(crate) fn state(&self) -> std::path::PathBuf {
        Path::new("/run/culvert").join(self.mesh)
    }

    /// Writes a file of objects. The engine watches, so the file appears whole.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.directory.path().join(name);
        let hidden = self.directory.path().join(format!(".{name}"));
        std::fs::write(&hidden, content).expect("written");
        std::fs::rename(hidden, path).expect("renamed");
    }

    /// Removes a file of objects.
    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.directory.path().join(name)).expect("removed");
    }

    /// Runs `culvert` with these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_culvert"))
            .args(["--mesh", self.mesh])
            .args(arguments)
            .output()
            .expect("culvert runs")
    }

    /// Runs `culvert`, which has to succeed; answers with what it printed.
    pub(crate) fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "{arguments:?}: {out}{err}{}",
            self.engine_log()
        );
        out
    }

    /// Runs a command in a pod, which has to succeed.
    pub(crate) fn exec(&self, pod: &str, command: &[&str]) -> String {
        self.succeeds(&[&["exec", pod, "--"], command].concat())
    }

    /// Body of an HTTP answer as a pod gets it; none when there is no answer.
    pub(crate) fn fetch(&self, pod: &str, url: &str) -> Option<String> {
        let output = self.run(&["exec", pod, "--", "curl", "-sS", "-f", "-g", "-m", "5", url]);
        output.status.success().then(|| text(&output.stdout))
    }

    /// An object.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Option<Value> {
        let output = self.run(&["get", &format!("{kind}/{name}"), "-o", "json"]);
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).expect("json"))
    }

    /// All objects of a kind.
    pub(crate) fn objects(&self, kind: &str) -> Vec<Value> {
        let list: Value =
            serde_json::from_str(&self.succeeds(&["get", kind, "-A", "-o", "json"])).expect("json");
        list["items"].as_array().expect("items").clone()
    }

    fn engine_log(&self) -> String {
        let log = std::fs::read_to_string(self.state().join("logs/engine.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        format!(
            "\nengine:\n{}",
            lines[lines.len().saturating_sub(20)..].join("\n")
        )
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.run(&["down", "--grace", "100ms"]);
    }
}

/// Waits until something holds.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = SystemTime::now() + LIMIT;
    while !holds() {
        assert!(
            SystemTime::now() < deadline,
            "{what}: not within {} s",
            LIMIT.as_secs()
        );
        std::thread::park_timeout(LOOK);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
