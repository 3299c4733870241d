//! One container: started, watched, probed, started again, stopped.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use culvert_runtime::Backoff;
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;

use super::environment::{self, environment};
use super::files;
use super::logs;
use super::pod::{PodShared, Sandbox};
use super::probe::{Probe, Streak, Target, attempt};
use super::report::{Ended, State};
use crate::engine::object::{number, text};
use crate::processes::{self, Namespace};
use crate::run::{OwnFiles, RunSpec, User};

/// First and longest pause before a container is started again.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A container that ran this long starts with the shortest pause again.
const STEADY: Duration = Duration::from_secs(60);
/// How soon a container whose configuration is wrong is looked at again: the person
/// may have mended it meanwhile.
const CONFIG_RETRY: Duration = Duration::from_secs(2);
/// Readiness before the first success is asked this often, so that a quick server
/// is ready quickly.
const EAGER: Duration = Duration::from_millis(500);

/// When containers have to stop, and how long they may take.
pub(crate) type Stop = watch::Receiver<Option<Duration>>;

/// What a container is in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to its end before the next one.
    Init,
    /// An init container that stays.
    Sidecar,
    /// A container.
    Main,
}

/// What follows the end of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Start it again.
    Again,
    /// It is over, well or badly.
    Over,
}

/// What follows an exit.
pub(crate) fn after_exit(policy: &str, role: Role, exit_code: i32) -> Next {
    match (role, policy, exit_code) {
        (Role::Sidecar, ..) | (Role::Main, "Always", _) => Next::Again,
        (Role::Init | Role::Main, _, 0) | (_, "Never", _) => Next::Over,
        _ => Next::Again,
    }
}

/// One container of a pod.
#[derive(Debug, Clone)]
pub(crate) struct ContainerTask {
    /// Its pod.
    pub pod: Arc<PodShared>,
    /// Where it runs.
    pub sandbox: Arc<Sandbox>,
    /// Its specification.
    pub spec: Value,
    /// Path of the specification in the pod, for messages.
    pub field: String,
    /// Its role.
    pub role: Role,
}

/// How one run ended.
#[derive(Debug)]
enum End {
    Exited(ExitStatus),
    Stopped(ExitStatus),
    Unhealthy(ExitStatus, String),
}

/// A started container.
#[derive(Debug)]
struct Running {
    child: Child,
    pid: i32,
    /// Its mount namespace, by which its children are found. Known soon after the
    /// start: `culvert run` makes it first.
    mounts: Option<u64>,
    output: tokio::task::JoinSet<()>,
}

impl ContainerTask {
    fn name(&self) -> &str {
        text(&self.spec, "/name").unwrap_or_default()
    }

    /// Runs the container until it is over or has to stop; answers with its last
    /// exit code.
    pub(crate) async fn run(self, mut stop: Stop) -> Option<i32> {
        let policy = text(&self.pod.pod, "/spec/restartPolicy")
            .unwrap_or("Always")
            .to_owned();
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1, 0.0);
        loop {
            let (child, started) = loop {
                match self.start().await {
                    Ok(child) => break (child, SystemTime::now()),
                    Err((reason, message)) => self.waiting(&reason, message),
                }
                if stopped_within(&mut stop, CONFIG_RETRY).await {
                    return None;
                }
            };
            let begun = Instant::now();
            let end = self.watch(child, &mut stop).await;
            let ended = ended(&end, started);
            let exit_code = ended.exit_code;
            self.pod.update(|report| {
                if let Some(container) = report.container(self.name()) {
                    container.state = State::Terminated(ended.clone());
                    (container.ready, container.started) = (false, false);
                }
            });
            let over = after_exit(&policy, self.role, exit_code) == Next::Over;
            if matches!(end, End::Stopped(_)) || over {
                return Some(exit_code);
            }
            if begun.elapsed() >= STEADY {
                backoff.reset();
            }
            let pause = backoff.next_delay();
            self.pod.update(|report| {
                if let Some(container) = report.container(self.name()) {
                    container.last = Some(ended);
                    container.restarts += 1;
                    let message =
                        format!("back-off {} s after exit code {exit_code}", pause.as_secs());
                    let reason = "CrashLoopBackOff".to_owned();
                    container.state = State::Waiting { reason, message };
                }
            });
            if stopped_within(&mut stop, pause).await {
                return Some(exit_code);
            }
        }
    }

    fn waiting(&self, reason: &str, message: String) {
        tracing::warn!(pod = %self.pod.key, container = self.name(), reason, message, "container");
        self.pod.update(|report| {
            if let Some(container) = report.container(self.name()) {
                container.state = State::Waiting {
                    reason: reason.to_owned(),
                    message,
                };
            }
        });
    }

    /// File of the container's run specification: `culvert exec` uses it too.
    fn run_file(&self) -> PathBuf {
        run_file(&self.pod, self.name())
    }

    fn specification(&self) -> Result<RunSpec, String> {
        let context = &self.pod.context;
        let world = context.store.snapshot();
        let pod = world.object(&self.pod.key).ok_or("the pod is gone")?;
        let command = context.images.borrow().command(&self.spec, &self.field)?;
        let path = &context.settings.search_path;
        let environment = environment(&world, pod, &self.spec, path)
            .map_err(|why| format!("{}.{why}", self.field))?;
        let command: Vec<_> = command
            .iter()
            .map(|word| environment::expand(word, &environment))
            .collect();
        check_program(&command, &environment, &self.field)?;
        let mut binds = self.sandbox.binds.clone();
        let mounts = files::mounts(&context.state, &self.spec, &self.sandbox.volumes)
            .map_err(|error| format!("{}.{}", self.field, culvert_runtime::chain(&error)))?;
        binds.extend(mounts);
        Ok(RunSpec {
            netns: self.sandbox.netns.clone(),
            files: Some(OwnFiles {
                binds,
                hostname: environment::hostname(pod),
            }),
            command,
            environment,
            directory: text(&self.spec, "/workingDir").map(PathBuf::from),
            user: self.user(pod),
        })
    }

    fn user(&self, pod: &Value) -> Option<User> {
        let of = |field: &str| {
            let id = number(&self.spec, &format!("/securityContext/{field}"))
                .or_else(|| number(pod, &format!("/spec/securityContext/{field}")))?;
            u32::try_from(id).ok()
        };
        let uid = of("runAsUser")?;
        (uid != 0).then(|| User {
            uid,
            gid: of("runAsGroup").unwrap_or(uid),
        })
    }

    async fn start(&self) -> Result<Running, (String, String)> {
        let broken = |message| ("CreateContainerConfigError".to_owned(), message);
        let spec = self.specification().map_err(broken)?;
        let file = self.run_file();
        let bytes = serde_json::to_vec_pretty(&spec).unwrap_or_default();
        crate::engine::world::write_whole(&file, &bytes)
            .map_err(|error| broken(format!("cannot write {}: {error}", file.display())))?;
        let log = log_file(&self.pod, self.name());
        if log.exists() {
            let _ = std::fs::rename(&log, previous_log_file(&self.pod, self.name()));
        }
        let mut child = Command::new(&self.pod.context.program)
            .arg("run")
            .arg(&file)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| ("CreateContainerError".to_owned(), error.to_string()))?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .unwrap_or_default();
        let mut output = tokio::task::JoinSet::new();
        if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
            output.spawn(logs::pump(log, out, err));
        }
        self.pod.update(|report| {
            if let Some(container) = report.container(self.name()) {
                container.state = State::Running {
                    started: SystemTime::now(),
                };
            }
        });
        Ok(Running {
            child,
            pid,
            mounts: None,
            output,
        })
    }

    /// Waits for the end of a started container, probing it meanwhile.
    async fn watch(&self, mut running: Running, stop: &mut Stop) -> End {
        let own_mounts = processes::inode(running.pid, Namespace::Mount);
        let probes = self.probes();
        let end = {
            let probing = self.probe(&probes);
            tokio::pin!(probing);
            loop {
                // The mount namespace is looked for until `culvert run` has made it.
                let known = running.mounts.is_some();
                tokio::select! {
                    status = running.child.wait() => break Ok(status),
                    why = &mut probing => break Err(Some(why)),
                    () = stop_signal(stop) => break Err(None),
                    () = tokio::time::sleep(Duration::from_millis(20)), if !known => {
                        let now = processes::inode(running.pid, Namespace::Mount);
                        running.mounts = now.filter(|now| Some(*now) != own_mounts);
                    }
                }
            }
        };
        let end = match end {
            Ok(status) => End::Exited(status.unwrap_or_default()),
            Err(Some(why)) => {
                let grace = number(&self.pod.pod, "/spec/terminationGracePeriodSeconds");
                let grace = Duration::from_secs(grace.unwrap_or(30));
                End::Unhealthy(terminate(&mut running, grace).await, why)
            }
            Err(None) => {
                let grace = stop.borrow().unwrap_or_default();
                End::Stopped(terminate(&mut running, grace).await)
            }
        };
        if let Some(mounts) = running.mounts {
            kill_inside(mounts);
        }
        // What the container wrote last shall be in its log.
        let drained = async { while running.output.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(1), drained).await;
        end
    }

    fn probes(&self) -> Probes {
        let read = |field: &str| match Probe::read(&self.pod.pod, &self.spec, field) {
            Ok(probe) => probe,
            Err(error) => {
                tracing::warn!(pod = %self.pod.key, field = self.field, error, "probe ignored");
                None
            }
        };
        Probes {
            startup: read("startupProbe"),
            liveness: read("livenessProbe"),
            readiness: read("readinessProbe"),
        }
    }

    /// Probes for good; ends only when the container has to be killed, with why.
    async fn probe(&self, probes: &Probes) -> String {
        let target = Target {
            node: self.sandbox.node.clone(),
            address: self.sandbox.addresses.first().copied(),
            run: (self.pod.context.program.clone(), self.run_file()),
        };
        if let Some(startup) = &probes.startup
            && let Some(why) = until_turned(startup, &target).await
        {
            return format!("startup probe failed: {why}");
        }
        let ready = probes.readiness.is_none() && self.role != Role::Init;
        self.set(|container| (container.started, container.ready) = (true, ready));
        let readiness = async {
            match &probes.readiness {
                Some(probe) => self.keep_ready(probe, &target).await,
                None => std::future::pending().await,
            }
        };
        let liveness = async {
            match &probes.liveness {
                Some(probe) => until_bad(probe, &target).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = readiness => "the readiness probe ended".to_owned(),
            why = liveness => format!("liveness probe failed: {why}"),
        }
    }

    async fn keep_ready(&self, probe: &Probe, target: &Target) {
        tokio::time::sleep(probe.delay).await;
        let mut streak = Streak::default();
        let mut ready = false;
        loop {
            let answer = attempt(probe, target).await;
            if let Some(turned) = streak.take(probe, answer.is_ok())
                && turned != ready
            {
                ready = turned;
                if let Err(why) = &answer {
                    tracing::info!(pod = %self.pod.key, container = self.name(), why, "not ready");
                }
                self.set(|container| container.ready = turned);
            }
            tokio::time::sleep(if ready {
                probe.period
            } else {
                probe.period.min(EAGER)
            })
            .await;
        }
    }

    fn set(&self, change: impl FnOnce(&mut super::report::Container)) {
        self.pod.update(|report| {
            if let Some(container) = report.container(self.name()) {
                change(container);
            }
        });
    }
}

/// The probes of a container.
#[derive(Debug)]
struct Probes {
    startup: Option<Probe>,
    liveness: Option<Probe>,
    readiness: Option<Probe>,
}

/// Log of the present run.
pub(crate) fn log_file(pod: &PodShared, container: &str) -> PathBuf {
    pod.directory.join("logs").join(format!("{container}.log"))
}

/// Log of the run before.
fn previous_log_file(pod: &PodShared, container: &str) -> PathBuf {
    pod.directory
        .join("logs")
        .join(format!("{container}.previous.log"))
}

/// Run specification of a container.
pub(crate) fn run_file(pod: &PodShared, container: &str) -> PathBuf {
    pod.directory.join("run").join(format!("{container}.json"))
}

/// Tries until the probe turns good (none) or bad (why).
async fn until_turned(probe: &Probe, target: &Target) -> Option<String> {
    tokio::time::sleep(probe.delay).await;
    let mut streak = Streak::default();
    loop {
        let answer = attempt(probe, target).await;
        match (streak.take(probe, answer.is_ok()), answer) {
            (Some(true), _) => return None,
            (Some(false), Err(why)) => return Some(why),
            _ => tokio::time::sleep(probe.period).await,
        }
    }
}

/// Tries until the probe turns bad.
async fn until_bad(probe: &Probe, target: &Target) -> String {
    tokio::time::sleep(probe.delay).await;
    let mut streak = Streak::default();
    loop {
        let answer = attempt(probe, target).await;
        if let (Some(false), Err(why)) = (streak.take(probe, answer.is_ok()), answer) {
            return why;
        }
        tokio::time::sleep(probe.period).await;
    }
}

/// Ends when the pod has to stop.
async fn stop_signal(stop: &mut Stop) {
    // A dropped sender means that the pod's task is gone: stop as well.
    let _ = stop.wait_for(Option::is_some).await;
}

/// Whether the pod had to stop within a time.
async fn stopped_within(stop: &mut Stop, time: Duration) -> bool {
    tokio::time::timeout(time, stop_signal(stop)).await.is_ok()
}

/// SIGTERM, and SIGKILL when the grace is over.
async fn terminate(running: &mut Running, grace: Duration) -> ExitStatus {
    if !grace.is_zero() {
        processes::signal_group(running.pid, Signal::SIGTERM);
        if let Ok(status) = tokio::time::timeout(grace, running.child.wait()).await {
            return status.unwrap_or_default();
        }
    }
    processes::signal_group(running.pid, Signal::SIGKILL);
    running.child.wait().await.unwrap_or_default()
}

fn kill_inside(mounts: u64) {
    for pid in processes::inside(Namespace::Mount, &BTreeSet::from([mounts])) {
        processes::signal(pid, Signal::SIGKILL);
    }
}

fn ended(end: &End, started: SystemTime) -> Ended {
    use std::os::unix::process::ExitStatusExt;
    let (status, message) = match end {
        End::Exited(status) | End::Stopped(status) => (status, String::new()),
        End::Unhealthy(status, why) => (status, why.clone()),
    };
    let exit_code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(-1);
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    Ended {
        exit_code,
        reason: reason.to_owned(),
        message,
        started,
        finished: SystemTime::now(),
    }
}

/// Whether the program can be found, before anything is started. A path may lie in
/// a volume, so only bare names are looked up.
fn check_program(
    command: &[String],
    environment: &[(String, String)],
    field: &str,
) -> Result<(), String> {
    let Some(program) = command.first().filter(|program| !program.contains('/')) else {
        return Ok(());
    };
    let path = environment
        .iter()
        .rev()
        .find(|(key, _)| key == "PATH")
        .map_or("", |(_, value)| value);
    let found = path
        .split(':')
        .any(|directory| std::path::Path::new(directory).join(program).is_file());
    if found {
        return Ok(());
    }
    Err(format!(
        "{field}.command[0]: program {program:?} is not on this machine (PATH {path}); install it or \
         name another one"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_an_exit() {
        let check = |policy, role, code, expect| {
            assert_eq!(
                after_exit(policy, role, code),
                expect,
                "{policy} {role:?} {code}"
            );
        };
        check("Always", Role::Main, 0, Next::Again);
        check("Always", Role::Init, 0, Next::Over);
        check("Always", Role::Init, 1, Next::Again);
        check("OnFailure", Role::Main, 0, Next::Over);
        check("OnFailure", Role::Main, 1, Next::Again);
        check("Never", Role::Main, 1, Next::Over);
        check("Never", Role::Init, 1, Next::Over);
        check("Never", Role::Sidecar, 1, Next::Again);
    }

    #[test]
    fn a_missing_program_is_named_before_the_start() {
        let environment = vec![("PATH".to_owned(), "/bin:/usr/bin".to_owned())];
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        assert!(check_program(&words(&["sh", "-c"]), &environment, "f").is_ok());
        assert!(check_program(&words(&["/not/there"]), &environment, "f").is_ok());
        let error =
            check_program(&words(&["no-such-program"]), &environment, "f").expect_err("missing");
        assert!(error.contains("f.command[0]"), "{error}");
    }
}
