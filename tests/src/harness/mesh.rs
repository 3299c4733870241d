//! A mesh on this machine, brought up and taken down through the `culvert` program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::binaries;
use super::command::{self, Running, Said};
use super::files::Manifests;
use super::processes::{self, Process};
use super::wait::{wait_for, wait_until};

/// Long enough for 40 pods on a busy machine with two cores.
pub const UP_LIMIT: Duration = Duration::from_secs(240);
/// Commands in pods, and what follows an edit.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What to bring up.
#[derive(Debug, Clone)]
pub struct MeshOptions {
    /// The mesh's name: at most 12 letters and digits.
    pub name: &'static str,
    /// How many nodes.
    pub nodes: u8,
    /// `--set` arguments.
    pub set: Vec<&'static str>,
    /// Without it the same pods run with no mesh at all.
    pub enrolled: bool,
}

impl MeshOptions {
    /// A mesh with the usual settings.
    #[must_use]
    pub fn new(name: &'static str, nodes: u8) -> Self {
        Self {
            name,
            nodes,
            set: Vec::new(),
            enrolled: true,
        }
    }

    /// The same with one more `--set`.
    #[must_use]
    pub fn with(mut self, setting: &'static str) -> Self {
        self.set.push(setting);
        self
    }
}

/// A running mesh; dropping it takes it down.
#[derive(Debug)]
pub struct Mesh {
    options: MeshOptions,
    manifests: Manifests,
    up: Option<Said>,
}

/// The parts of a mesh that a test kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// The node proxy of a node.
    NodeProxy(&'a str),
    /// The CNI agent of a node.
    Agent(&'a str),
    /// The certificate authority.
    Ca,
    /// Discovery.
    Discovery,
}

/// A pod as its object shows it.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node it runs on.
    pub node: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Whether it is ready.
    pub ready: bool,
}

impl Mesh {
    /// Brings a fixture up and waits until it is ready.
    ///
    /// # Errors
    /// When `culvert up` fails, with all that it said.
    pub fn up_fixture(options: MeshOptions, fixture: &str) -> Result<Self> {
        Self::up(options, Manifests::fixture(fixture)?)
    }

    /// Brings manifests up and waits until they are ready. Whatever an aborted
    /// run has left under the same name is removed before.
    ///
    /// # Errors
    /// When `culvert up` fails, with all that it said.
    pub fn up(options: MeshOptions, manifests: Manifests) -> Result<Self> {
        let mut mesh = Self {
            options,
            manifests,
            up: None,
        };
        mesh.culvert(["down"], UP_LIMIT)
            .context("remove what an earlier run left")?;
        let said = mesh
            .up_again()?
            .succeeded()
            .with_context(|| mesh.logs_tail())?;
        mesh.up = Some(said);
        Ok(mesh)
    }

    /// What `culvert up` said.
    ///
    /// # Errors
    /// When the mesh is not up.
    pub fn said_at_start(&self) -> Result<&Said> {
        self.up.as_ref().context("the mesh is not up")
    }

    /// Runs `culvert up` as given; it may fail.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn up_again(&self) -> Result<Said> {
        let nodes = self.options.nodes.to_string();
        let mut command = self.command()?;
        command
            .arg("up")
            .arg(self.manifests.path())
            .args(["--nodes", &nodes, "--timeout", "220s"]);
        if !self.options.enrolled {
            command.arg("--no-mesh");
        }
        for value in &self.options.set {
            command.args(["--set", value]);
        }
        command::run(&mut command, UP_LIMIT)
    }

    /// The `culvert` program, told which mesh.
    ///
    /// # Errors
    /// When it is not built.
    pub fn command(&self) -> Result<Command> {
        let mut command = Command::new(binaries::path("culvert")?);
        command.args(["--mesh", self.options.name]);
        Ok(command)
    }

    /// Runs `culvert` with these arguments.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn culvert<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
        limit: Duration,
    ) -> Result<Said> {
        command::run(self.command()?.args(arguments), limit)
    }

    /// Runs a command in a pod (`name.namespace`).
    ///
    /// # Errors
    /// When it does not end in time; a failing command is not an error here.
    pub fn exec(&self, pod: &str, words: &[&str]) -> Result<Said> {
        self.exec_within(pod, words, LIMIT)
    }

    /// As [`Mesh::exec`], with a limit.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn exec_within(&self, pod: &str, words: &[&str], limit: Duration) -> Result<Said> {
        command::run(self.command()?.args(["exec", pod, "--"]).args(words), limit)
    }

    /// Starts a command in a pod.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, pod: &str, words: &[&str]) -> Result<Running> {
        command::start(self.command()?.args(["exec", pod, "--"]).args(words))
    }

    /// Runs one of the test programs in a pod.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn testkit(&self, pod: &str, words: &[&str]) -> Result<Said> {
        self.testkit_within(pod, words, LIMIT)
    }

    /// As [`Mesh::testkit`], with a limit.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn testkit_within(&self, pod: &str, words: &[&str], limit: Duration) -> Result<Said> {
        let program = binaries::path("culvert-testkit")?;
        let program = program.to_string_lossy();
        let words: Vec<&str> = std::iter::once(&*program)
            .chain(words.iter().copied())
            .collect();
        self.exec_within(pod, &words, limit)
    }

    /// Starts one of the test programs in a pod.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_testkit(&self, pod: &str, words: &[&str]) -> Result<Running> {
        let program = binaries::path("culvert-testkit")?;
        let program = program.to_string_lossy();
        let words: Vec<&str> = std::iter::once(&*program)
            .chain(words.iter().copied())
            .collect();
        self.start(pod, &words)
    }

    /// The manifests, to edit them while the mesh runs.
    #[must_use]
    pub fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// The mesh's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.options.name
    }

    /// The engine's directory.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        Path::new("/run/culvert").join(self.options.name)
    }

    /// An object as the engine holds it.
    ///
    /// # Errors
    /// When there is none.
    pub fn object(&self, kind: &str, namespace: &str, name: &str) -> Result<Value> {
        let file = self
            .directory()
            .join(format!("objects/{kind}/{namespace}.{name}.json"));
        let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| file.display().to_string())
    }

    /// Every pod.
    ///
    /// # Errors
    /// When the engine's objects cannot be read.
    pub fn pods(&self) -> Result<Vec<Pod>> {
        let directory = self.directory().join("objects/Pod");
        let entries =
            std::fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        let mut pods = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            // A pod may be deleted between listing and reading.
            let Ok(text) = std::fs::read(&path) else {
                continue;
            };
            pods.extend(pod_of(&serde_json::from_slice(&text).context("a pod")?));
        }
        Ok(pods)
    }

    /// The pod `name.namespace`.
    ///
    /// # Errors
    /// When there is none.
    pub fn pod(&self, name: &str) -> Result<Pod> {
        let (name, namespace) = name.split_once('.').context("name.namespace")?;
        pod_of(&self.object("Pod", namespace, name)?).context("the pod has no name")
    }

    /// The ready pods whose names begin so, in one namespace.
    ///
    /// # Errors
    /// When the engine's objects cannot be read.
    pub fn ready_pods(&self, namespace: &str, prefix: &str) -> Result<Vec<Pod>> {
        let wanted =
            |pod: &Pod| pod.ready && pod.namespace == namespace && pod.name.starts_with(prefix);
        let mut pods = self.pods()?;
        pods.retain(wanted);
        Ok(pods)
    }

    /// Waits until exactly `count` ready pods have names that begin so, and no
    /// other pod has.
    ///
    /// # Errors
    /// When they do not come in time.
    pub fn wait_pods(&self, namespace: &str, prefix: &str, count: usize) -> Result<Vec<Pod>> {
        let what = format!("{count} ready pods {prefix}* in {namespace}");
        wait_for(&what, LIMIT, || {
            let mut pods = self.pods()?;
            pods.retain(|pod| pod.namespace == namespace && pod.name.starts_with(prefix));
            let ready = pods.iter().filter(|pod| pod.ready).count();
            Ok((ready == count && pods.len() == count).then_some(pods))
        })
    }

    /// The name of a pod's network namespace.
    #[must_use]
    pub fn pod_netns(&self, pod: &Pod) -> String {
        format!("cv-{}-{}-{}", self.options.name, pod.namespace, pod.name)
    }

    /// The name of a node's network namespace.
    #[must_use]
    pub fn node_netns(&self, node: &str) -> String {
        format!("cv-{}-{node}", self.options.name)
    }

    /// The process of a part; it is there once, and again after it was killed.
    ///
    /// # Errors
    /// When it does not come in time.
    pub fn process(&self, part: Part<'_>) -> Result<Process> {
        wait_for(&format!("process of {part:?}"), LIMIT, || {
            let found = processes::that_mention(&self.directory())?;
            Ok(found.into_iter().find(|process| is_part(process, part)))
        })
    }

    /// Kills a part at once, as an accident would, and waits until it has gone.
    ///
    /// # Errors
    /// When it is not there or does not go.
    pub fn kill(&self, part: Part<'_>) -> Result<Process> {
        let process = self.process(part)?;
        process.signal(Signal::SIGKILL)?;
        wait_until(&format!("end of {part:?}"), LIMIT, || {
            Ok(!process.is_alive())
        })?;
        Ok(process)
    }

    /// Waits until another process than `before` runs the part and is ready.
    ///
    /// # Errors
    /// When it does not come in time.
    pub fn wait_returned(&self, part: Part<'_>, before: &Process) -> Result<Process> {
        let process = wait_for(&format!("return of {part:?}"), LIMIT, || {
            Ok(Some(self.process(part)?).filter(|process| process.id != before.id))
        })?;
        Ok(process)
    }

    /// The metrics page of a target such as `node-proxy/node-1`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn metrics(&self, target: &str) -> Result<Metrics> {
        Ok(Metrics(
            self.culvert(["metrics", target], LIMIT)?
                .succeeded()?
                .text(),
        ))
    }

    /// The log of one of the mesh's own programs, and its access log.
    #[must_use]
    pub fn log(&self, name: &str) -> String {
        let directory = self.directory();
        let mut text = String::new();
        for place in [directory.join("logs"), directory.join("nodes")] {
            collect_logs(&place, name, &mut text);
        }
        text
    }

    /// The last lines of every log, for the message of a failed start.
    #[must_use]
    pub fn logs_tail(&self) -> String {
        let text = self.log("");
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(60);
        format!("last lines of the logs:\n{}", lines[from..].join("\n"))
    }

    /// Takes the mesh down.
    ///
    /// # Errors
    /// When `culvert down` fails.
    pub fn down(&self) -> Result<()> {
        self.culvert(["down"], UP_LIMIT)?.succeeded().map(drop)
    }

    /// What is left of the mesh on this machine: nothing, after `down`.
    ///
    /// # Errors
    /// When the machine cannot be asked.
    pub fn remains(&self) -> Result<Vec<String>> {
        let prefix = format!("cv-{}-", self.options.name);
        let mut remains = culvert_netns::list_named()?;
        remains.retain(|name| name.starts_with(&prefix));
        let here = processes::that_mention(&self.directory())?;
        remains.extend(
            here.iter()
                .map(|process| process.program.display().to_string()),
        );
        if self.directory().exists() {
            remains.push(self.directory().display().to_string());
        }
        let links = std::fs::read_dir("/sys/class/net").context("links")?;
        let ours = format!("cv-{}", self.options.name);
        remains.extend(
            links
                .filter_map(|link| Some(link.ok()?.file_name().to_string_lossy().into_owned()))
                .filter(|link| link.starts_with(&ours)),
        );
        Ok(remains)
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if let Err(error) = self.down() {
            println!("    the mesh could not be taken down: {error:#}");
        }
    }
}

fn is_part(process: &Process, part: Part<'_>) -> bool {
    let program = process
        .program
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let program = program.unwrap_or_default();
    let on = |node: &str| process.variable("CULVERT_NODE_NAME").as_deref() == Some(node);
    match part {
        Part::NodeProxy(node) => program == "culvert-node-proxy" && on(node),
        Part::Agent(node) => program == "culvert-cni" && on(node),
        Part::Ca => program == "culvert-ca",
        Part::Discovery => program == "culvert-discovery",
    }
}

fn pod_of(object: &Value) -> Option<Pod> {
    let text = |pointer: &str| object.pointer(pointer)?.as_str().map(str::to_owned);
    let list = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).cloned();
    let addresses = list("/status/podIPs").unwrap_or_default();
    let conditions = list("/status/conditions").unwrap_or_default();
    Some(Pod {
        namespace: text("/metadata/namespace")?,
        name: text("/metadata/name")?,
        node: text("/spec/nodeName").unwrap_or_default(),
        addresses: addresses
            .iter()
            .filter_map(|ip| Some(ip["ip"].as_str()?.to_owned()))
            .collect(),
        ready: conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True"),
    })
}

fn collect_logs(place: &Path, name: &str, text: &mut String) {
    let Ok(entries) = std::fs::read_dir(place) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            collect_logs(&path, name, text);
        } else if path.extension().is_some_and(|extension| extension == "log")
            && path.to_string_lossy().contains(name)
        {
            text.push_str(&std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

impl Pod {
    /// Its first address of the wanted family.
    ///
    /// # Errors
    /// When it has none.
    pub fn address(&self, version_6: bool) -> Result<&str> {
        let of_family = |address: &&String| address.contains(':') == version_6;
        self.addresses
            .iter()
            .find(of_family)
            .map(String::as_str)
            .with_context(|| {
                format!(
                    "pod {} has no address of that family: {:?}",
                    self.name, self.addresses
                )
            })
    }
}

/// A page of metrics.
#[derive(Debug, Clone)]
pub struct Metrics(String);

impl Metrics {
    /// The sum of the series of `name` that have all of these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{value}\""))
            .collect();
        let series = self.0.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            let own = rest.is_some_and(|rest| rest.starts_with(['{', ' ']));
            own && wanted.iter().all(|label| line.contains(label.as_str()))
        });
        series
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// The whole page.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Checks that nothing is left of a mesh.
///
/// # Errors
/// With what is left.
pub fn ensure_gone(mesh: &Mesh) -> Result<()> {
    let remains = mesh.remains()?;
    ensure!(remains.is_empty(), "left on the machine: {remains:?}");
    Ok(())
}
