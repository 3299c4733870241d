//! Keeps one program running, and knows whether it is ready.

use std::process::Stdio;
use std::time::Duration;

use culvert_netns::{Netns, named_path};
use culvert_runtime::Backoff;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;

use super::plan::Component;
use super::{ComponentStatus, Statuses};
use crate::admin;
use crate::engine::kubelet::environment::PATH;
use crate::engine::kubelet::logs;
use crate::engine::world::write_whole;
use crate::run::RunSpec;
use crate::state::StateDir;

/// First and longest pause before a program starts again. The first is short: pods
/// wait for the node proxy.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A program that ran this long starts with the shortest pause again: it came up and
/// was killed. One that cannot run ends sooner.
const STEADY: Duration = Duration::from_secs(1);
/// How often readiness is asked while it is not there, and when it is.
const ASK: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// Where the supervisor puts things.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor {
    /// The state directory.
    pub state: StateDir,
    /// This program.
    pub program: std::path::PathBuf,
    /// States of all programs.
    pub statuses: watch::Sender<Statuses>,
}

/// Process id while it runs, and how often it was started again.
type Run = (Option<u32>, u32);

impl Supervisor {
    /// Runs a program for good.
    pub(crate) async fn run(self, component: Component) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1, 0.1);
        let mut restarts = 0;
        self.set(&component, "starting", (None, restarts), "");
        if let Some(file) = &component.needs {
            while !file.exists() {
                self.set(
                    &component,
                    "starting",
                    (None, restarts),
                    &format!("waits for {}", file.display()),
                );
                tokio::time::sleep(ASK.0).await;
            }
        }
        loop {
            let begun = Instant::now();
            let reason = match self.start(&component) {
                Ok(child) => self.watch(&component, child, restarts).await,
                Err(error) => error.to_string(),
            };
            tracing::warn!(component = component.name, reason, "program ended");
            if begun.elapsed() >= STEADY {
                backoff.reset();
            }
            restarts += 1;
            self.set(&component, "stopped", (None, restarts), &reason);
            backoff.wait().await;
        }
    }

    fn set(&self, component: &Component, state: &str, (pid, restarts): Run, reason: &str) {
        let status = ComponentStatus {
            state: state.to_owned(),
            pid,
            restarts,
            reason: reason.to_owned(),
        };
        self.statuses.send_if_modified(|all| {
            let changed = all.get(&component.name) != Some(&status);
            all.insert(component.name.clone(), status);
            changed
        });
    }

    fn start(&self, component: &Component) -> std::io::Result<Child> {
        let netns = named_path(&component.netns).map_err(std::io::Error::other)?;
        let mut environment = component.environment.clone();
        environment.push(("PATH".to_owned(), PATH.to_owned()));
        let spec = RunSpec {
            netns,
            files: None,
            command: component.command.clone(),
            environment,
            directory: None,
            user: None,
        };
        let file = self
            .state
            .path("run")
            .join(format!("{}.json", component.name.replace('/', ".")));
        write_whole(&file, &serde_json::to_vec_pretty(&spec).unwrap_or_default())?;
        Command::new(&self.program)
            .arg("run")
            .arg(&file)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }

    /// Watches a running program; answers with how it ended.
    async fn watch(&self, component: &Component, mut child: Child, restarts: u32) -> String {
        let mut output = tokio::task::JoinSet::new();
        if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
            let log = self.state.log(&component.name.replace('/', "."));
            output.spawn(logs::pump(log, out, err));
        }
        let pid = child.id();
        self.set(component, "starting", (pid, restarts), "");
        let asking = async {
            let mut was_ready = false;
            loop {
                let answer = ask(component).await;
                let ready = answer.is_ok();
                match answer {
                    Ok(()) => self.set(component, "ready", (pid, restarts), ""),
                    Err(why) if was_ready => {
                        self.set(component, "not ready", (pid, restarts), &why)
                    }
                    Err(why) => self.set(component, "starting", (pid, restarts), &why),
                }
                was_ready |= ready;
                tokio::time::sleep(if ready { ASK.1 } else { ASK.0 }).await;
            }
        };
        let status = tokio::select! {
            status = child.wait() => status,
            () = asking => return String::new(),
        };
        let drained = async { while output.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(1), drained).await;
        status.map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

/// Whether the program is ready; why not.
async fn ask(component: &Component) -> Result<(), String> {
    let netns = Netns::open_named(&component.netns).map_err(|error| error.to_string())?;
    match admin::get(&netns, component.ready_at, "/healthz/ready").await {
        Ok(response) if response.is_success() => Ok(()),
        Ok(response) => Err(response.text()),
        Err(error) => Err(culvert_runtime::chain(&error)),
    }
}
