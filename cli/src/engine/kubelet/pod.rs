//! One pod from its first moment on a node to its last.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use culvert_netns::Netns;
use culvert_runtime::{Backoff, chain};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Context;
use super::cni::Attachment;
use super::container::{ContainerTask, Role};
use super::probe::{Action, Probe, Target, attempt};
use super::report::{Report, State};
use super::{container, files, sandbox};
use crate::engine::object::{Key, Object, is_terminating, list, number, set, text, uid};

/// Pauses between tries to make a pod's network.
const SANDBOX_BACKOFF: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(5));
/// Time for the news that a pod leaves to reach everyone who sends to it, before
/// its containers are told to stop.
const LEAVE_DELAY: Duration = Duration::from_secs(1);

/// What the tasks of one pod share.
#[derive(Debug)]
pub(crate) struct PodShared {
    /// The kubelet.
    pub context: Arc<Context>,
    /// The pod's key.
    pub key: Key,
    /// The pod as it was taken on: its specification does not change.
    pub pod: Object,
    /// Its directory.
    pub directory: PathBuf,
    report: Mutex<Report>,
    /// The network that was made, so that it is taken away whatever happens.
    made: Mutex<Option<sandbox::Made>>,
}

/// Where a pod's containers run.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The node's namespace, from which probes are made.
    pub node: Netns,
    /// Path of the pod's namespace.
    pub netns: PathBuf,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// Files over the machine's.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, PathBuf>,
    /// The pod's place in the mesh, if there is a mesh.
    pub attachment: Option<Attachment>,
}

impl PodShared {
    /// Changes what is known of the pod and publishes the status that follows.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Report)) {
        // The status is written under the lock, so that an older one never comes
        // after a newer one.
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut report);
        let uid_here = uid(&self.pod);
        self.context.store.modify(&self.key, |pod| {
            if uid(pod) == uid_here {
                let status = report.status(pod, SystemTime::now());
                set(pod, &["status"], status);
            }
        });
    }

    /// The pod's network, if it was made.
    pub(crate) fn made(&self) -> Option<sandbox::Made> {
        self.made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Remembers the pod's network.
    pub(crate) fn set_made(&self, made: Option<sandbox::Made>) {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = made;
    }

    /// Ends when the pod is to go: with the time its containers may take.
    pub(crate) async fn deleted(&self) -> Duration {
        let mut revisions = self.context.store.watch();
        loop {
            revisions.mark_unchanged();
            match self.context.store.object(&self.key) {
                Some(pod) if uid(&pod) == uid(&self.pod) => {
                    if is_terminating(&pod) {
                        let grace = number(&pod, "/metadata/deletionGracePeriodSeconds");
                        return Duration::from_secs(grace.unwrap_or(30));
                    }
                }
                _ => return Duration::ZERO,
            }
            if revisions.changed().await.is_err() {
                return Duration::ZERO;
            }
        }
    }
}

/// Runs a pod until it is gone.
pub(crate) async fn run(context: Arc<Context>, pod: Object) {
    let node = context.node_ips(text(&pod, "/spec/nodeName").unwrap_or_default());
    let shared = Arc::new(PodShared {
        directory: context.state.pod(uid(&pod)),
        key: Key::of(&pod),
        report: Mutex::new(Report::new(&pod, node, SystemTime::now())),
        made: Mutex::default(),
        pod,
        context,
    });
    shared.update(|_| {});
    let finished = match make_sandbox(&shared).await {
        Some(sandbox) => run_in(&shared, &Arc::new(sandbox)).await,
        None => false,
    };
    sandbox::unmake(&shared).await;
    shared.update(|report| report.sandbox_ready = false);
    if finished {
        shared.deleted().await;
    }
    if let Err(error) = tokio::fs::remove_dir_all(&shared.directory).await
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(pod = %shared.key, %error, "remove the pod's directory");
    }
    let still_ours = |pod: Object| uid(&pod) == uid(&shared.pod);
    if shared
        .context
        .store
        .object(&shared.key)
        .is_some_and(still_ours)
    {
        shared.context.store.remove(&shared.key);
    }
}

/// Runs the containers; true when they ended by themselves.
async fn run_in(shared: &Arc<PodShared>, sandbox: &Arc<Sandbox>) -> bool {
    let (stop, stopping) = watch::channel(None);
    let containers = run_containers(shared, sandbox, stopping);
    tokio::pin!(containers);
    let grace = tokio::select! {
        () = &mut containers => return true,
        () = sandbox::follow_volumes(shared) => return true,
        grace = shared.deleted() => grace,
    };
    let leaving = async {
        if !grace.is_zero() {
            tokio::time::sleep(LEAVE_DELAY.min(grace / 2)).await;
            let _ = tokio::time::timeout(grace, pre_stop(shared, sandbox)).await;
        }
        stop.send_replace(Some(grace));
    };
    // The containers run on while others learn that the pod leaves.
    let ((), ()) = tokio::join!(leaving, containers);
    false
}

async fn run_containers(
    shared: &Arc<PodShared>,
    sandbox: &Arc<Sandbox>,
    stopping: container::Stop,
) {
    let mut running: JoinSet<Option<i32>> = JoinSet::new();
    let task = |spec: &Value, field: String, role| ContainerTask {
        pod: Arc::clone(shared),
        sandbox: Arc::clone(sandbox),
        spec: spec.clone(),
        field,
        role,
    };
    for (index, spec) in list(&shared.pod, "/spec/initContainers").iter().enumerate() {
        let field = format!("spec.initContainers[{index}]");
        if text(spec, "/restartPolicy") == Some("Always") {
            running.spawn(task(spec, field, Role::Sidecar).run(stopping.clone()));
            if !sidecar_started(shared, spec, stopping.clone()).await {
                break;
            }
        } else if task(spec, field, Role::Init).run(stopping.clone()).await != Some(0) {
            break_off(&mut running).await;
            return;
        }
    }
    if stopping.borrow().is_none() {
        shared.update(|report| {
            for container in &mut report.main {
                let reason = "ContainerCreating".to_owned();
                container.state = State::Waiting {
                    reason,
                    message: String::new(),
                };
            }
        });
        let mains = list(&shared.pod, "/spec/containers");
        let mut main: JoinSet<Option<i32>> = JoinSet::new();
        for (index, spec) in mains.iter().enumerate() {
            let field = format!("spec.containers[{index}]");
            main.spawn(task(spec, field, Role::Main).run(stopping.clone()));
        }
        wait_all(shared, &mut main).await;
    }
    break_off(&mut running).await;
}

async fn wait_all(shared: &PodShared, tasks: &mut JoinSet<Option<i32>>) {
    while let Some(joined) = tasks.join_next().await {
        if let Err(error) = joined {
            tracing::error!(pod = %shared.key, %error, "a container's task broke");
        }
    }
}

/// Ends sidecars when the pod's own work is over: their processes go with the
/// pod's namespace.
async fn break_off(sidecars: &mut JoinSet<Option<i32>>) {
    sidecars.shutdown().await;
}

async fn sidecar_started(shared: &PodShared, spec: &Value, mut stopping: container::Stop) -> bool {
    let name = text(spec, "/name").unwrap_or_default();
    let mut revisions = shared.context.store.watch();
    loop {
        revisions.mark_unchanged();
        let started = {
            let mut report = shared.report.lock().unwrap_or_else(PoisonError::into_inner);
            report
                .container(name)
                .is_some_and(|container| container.started)
        };
        if started {
            return true;
        }
        tokio::select! {
            _ = revisions.changed() => {}
            _ = stopping.wait_for(Option::is_some) => return false,
        }
    }
}

/// Runs the preStop hooks of all containers at once.
async fn pre_stop(shared: &Arc<PodShared>, sandbox: &Arc<Sandbox>) {
    let hooks = list(&shared.pod, "/spec/containers")
        .iter()
        .filter_map(|spec| {
            let hook = spec.pointer("/lifecycle/preStop")?;
            Some((text(spec, "/name")?.to_owned(), hook.clone()))
        });
    let run = |(name, hook): (String, Value)| {
        let target = Target {
            node: sandbox.node.clone(),
            address: sandbox.addresses.first().copied(),
            run: (
                shared.context.program.clone(),
                container::run_file(shared, &name),
            ),
        };
        async move {
            if let Some(seconds) = number(&hook, "/sleep/seconds") {
                return tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            // A hook is tried once and may take as long as the grace period lasts.
            let as_probe = json!({"probe": hook});
            let Ok(Some(probe)) = Probe::read(&shared.pod, &as_probe, "probe") else {
                return;
            };
            let probe = Probe {
                timeout: Duration::from_secs(3600),
                ..probe
            };
            if matches!(probe.action, Action::Tcp { .. }) {
                return;
            }
            if let Err(why) = attempt(&probe, &target).await {
                tracing::warn!(pod = %shared.key, container = name, why, "preStop hook");
            }
        }
    };
    futures_util::future::join_all(hooks.map(run)).await;
}

/// Makes the pod's network and files; tries until it is done, or the pod is to go.
async fn make_sandbox(shared: &Arc<PodShared>) -> Option<Sandbox> {
    let mut backoff = Backoff::new(SANDBOX_BACKOFF.0, SANDBOX_BACKOFF.1, 0.2);
    loop {
        match sandbox::make(shared).await {
            Ok(sandbox) => {
                shared.update(|report| {
                    report.sandbox_ready = true;
                    report.sandbox_error = None;
                    report.addresses.clone_from(&sandbox.addresses);
                });
                return Some(sandbox);
            }
            Err(error) => sandbox_failed(shared, &chain(&*error)),
        }
        tokio::select! {
            () = backoff.wait() => {}
            _ = shared.deleted() => return None,
        }
    }
}

fn sandbox_failed(shared: &PodShared, message: &str) {
    tracing::warn!(pod = %shared.key, error = message, "make the pod's sandbox");
    shared.update(|report| {
        report.sandbox_error = Some(message.to_owned());
        for container in report.init.iter_mut().chain(&mut report.main) {
            let reason = "ContainerCreating".to_owned();
            container.state = State::Waiting {
                reason,
                message: message.to_owned(),
            };
        }
    });
}

/// Addresses for the hosts file of a pod that runs in its node's network.
pub(crate) fn host_addresses(shared: &PodShared) -> Vec<IpAddr> {
    let own = files::addresses(&shared.pod);
    if own.is_empty() {
        shared
            .context
            .node_ips(text(&shared.pod, "/spec/nodeName").unwrap_or_default())
    } else {
        own
    }
}
