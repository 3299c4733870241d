//! What the kubelet knows of a pod, and the status that follows from it. Pure.

use std::net::IpAddr;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::engine::object::{list, text, timestamp};

/// State of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Not running, for this reason.
    Waiting {
        /// One word.
        reason: String,
        /// What a person should know.
        message: String,
    },
    /// Running.
    Running {
        /// Since when.
        started: SystemTime,
    },
    /// Ended.
    Terminated(Ended),
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Exit code; 128 + number after a signal.
    pub exit_code: i32,
    /// One word.
    pub reason: String,
    /// What a person should know.
    pub message: String,
    /// When it started.
    pub started: SystemTime,
    /// When it ended.
    pub finished: SystemTime,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// Now.
    pub state: State,
    /// The run before this one.
    pub last: Option<Ended>,
    /// How often it was started again.
    pub restarts: u32,
    /// Whether its readiness probe holds, or it has none and runs.
    pub ready: bool,
    /// Whether its startup probe has held once, or it has none and runs.
    pub started: bool,
}

impl Container {
    fn new(container: &Value, reason: &str) -> Self {
        Self {
            name: text(container, "/name").unwrap_or_default().to_owned(),
            image: text(container, "/image").unwrap_or_default().to_owned(),
            state: State::Waiting {
                reason: reason.to_owned(),
                message: String::new(),
            },
            last: None,
            restarts: 0,
            ready: false,
            started: false,
        }
    }

    fn status(&self) -> Value {
        json!({
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state.status(),
            "lastState": match &self.last {
                Some(ended) => json!({"terminated": ended.status()}),
                None => json!({}),
            },
        })
    }

    fn ended(&self) -> Option<&Ended> {
        match &self.state {
            State::Terminated(ended) => Some(ended),
            _ => None,
        }
    }
}

impl State {
    fn status(&self) -> Value {
        match self {
            Self::Waiting { reason, message } if message.is_empty() => {
                json!({"waiting": {"reason": reason}})
            }
            Self::Waiting { reason, message } => {
                json!({"waiting": {"reason": reason, "message": message}})
            }
            Self::Running { started } => json!({"running": {"startedAt": timestamp(*started)}}),
            Self::Terminated(ended) => json!({"terminated": ended.status()}),
        }
    }
}

impl Ended {
    fn status(&self) -> Value {
        let mut status = json!({
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": timestamp(self.started),
            "finishedAt": timestamp(self.finished),
        });
        if !self.message.is_empty() {
            status["message"] = json!(self.message);
        }
        status
    }
}

/// All of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// Init containers in order.
    pub init: Vec<Container>,
    /// Containers in order.
    pub main: Vec<Container>,
    /// The pod's addresses, once it has them.
    pub addresses: Vec<IpAddr>,
    /// The node's addresses.
    pub node: Vec<IpAddr>,
    /// When the kubelet took the pod on.
    pub since: SystemTime,
    /// Why there is no network yet.
    pub sandbox_error: Option<String>,
    /// Whether the network is there.
    pub sandbox_ready: bool,
}

impl Report {
    /// A pod that has just been taken on.
    pub(crate) fn new(pod: &Value, node: Vec<IpAddr>, now: SystemTime) -> Self {
        let init = list(pod, "/spec/initContainers");
        let waiting = if init.is_empty() {
            "ContainerCreating"
        } else {
            "PodInitializing"
        };
        Self {
            init: init
                .iter()
                .map(|one| Container::new(one, "PodInitializing"))
                .collect(),
            main: list(pod, "/spec/containers")
                .iter()
                .map(|one| Container::new(one, waiting))
                .collect(),
            addresses: Vec::new(),
            node,
            since: now,
            sandbox_error: None,
            sandbox_ready: false,
        }
    }

    /// A container by name.
    pub(crate) fn container(&mut self, name: &str) -> Option<&mut Container> {
        self.init
            .iter_mut()
            .chain(&mut self.main)
            .find(|container| container.name == name)
    }

    /// The pod's phase.
    pub(crate) fn phase(&self, pod: &Value) -> &'static str {
        let never = text(pod, "/spec/restartPolicy") != Some("Always");
        let ended: Vec<_> = self.main.iter().filter_map(Container::ended).collect();
        let broken_init = self
            .init
            .iter()
            .filter_map(Container::ended)
            .any(|one| one.exit_code != 0);
        if text(pod, "/spec/restartPolicy") == Some("Never") && broken_init {
            return "Failed";
        }
        if never && !self.main.is_empty() && ended.len() == self.main.len() {
            let failed = ended.iter().any(|ended| ended.exit_code != 0);
            return if failed { "Failed" } else { "Succeeded" };
        }
        let begun = self.main.iter().any(|container| {
            container.ended().is_some()
                || container.last.is_some()
                || matches!(container.state, State::Running { .. })
        });
        if begun { "Running" } else { "Pending" }
    }

    /// The pod's status. Conditions that others own are kept, and so are the times
    /// of those that did not change.
    pub(crate) fn status(&self, pod: &Value, now: SystemTime) -> Value {
        let phase = self.phase(pod);
        let initialized = phase == "Succeeded" || self.is_initialized(pod);
        let ready = phase == "Running" && self.main.iter().all(|container| container.ready);
        let gates = self.gates_hold(pod);
        let reason = if phase == "Succeeded" {
            "PodCompleted"
        } else {
            "ContainersNotReady"
        };
        let message = self.unready_message();
        let mut status = json!({
            "phase": phase,
            "startTime": timestamp(self.since),
            "qosClass": "BestEffort",
            "hostIP": self.node.first().map(ToString::to_string),
            "hostIPs": self.node.iter().map(|ip| json!({"ip": ip.to_string()})).collect::<Vec<_>>(),
            "containerStatuses": self.main.iter().map(Container::status).collect::<Vec<_>>(),
        });
        if !self.init.is_empty() {
            status["initContainerStatuses"] =
                Value::Array(self.init.iter().map(Container::status).collect());
        }
        if let Some(first) = self.addresses.first() {
            status["podIP"] = json!(first.to_string());
            let all = self
                .addresses
                .iter()
                .map(|ip| json!({"ip": ip.to_string()}));
            status["podIPs"] = Value::Array(all.collect());
        }
        let conditions = [
            (
                "PodReadyToStartContainers",
                self.sandbox_ready,
                "NetworkNotReady",
                self.sandbox_error.clone().unwrap_or_default(),
            ),
            (
                "Initialized",
                initialized,
                "ContainersNotInitialized",
                String::new(),
            ),
            ("ContainersReady", ready, reason, message.clone()),
            (
                "Ready",
                ready && gates,
                if ready {
                    "ReadinessGatesNotReady"
                } else {
                    reason
                },
                message,
            ),
        ];
        status["conditions"] = merge_conditions(pod, &conditions, now);
        status
    }

    fn is_initialized(&self, pod: &Value) -> bool {
        let sidecars = list(pod, "/spec/initContainers");
        self.init.iter().zip(sidecars).all(|(container, spec)| {
            let sidecar = text(spec, "/restartPolicy") == Some("Always");
            container.ended().is_some_and(|ended| ended.exit_code == 0)
                || (sidecar && container.started)
        })
    }

    fn gates_hold(&self, pod: &Value) -> bool {
        list(pod, "/spec/readinessGates").iter().all(|gate| {
            text(gate, "/conditionType")
                .is_some_and(|kind| crate::engine::object::condition(pod, kind) == Some("True"))
        })
    }

    fn unready_message(&self) -> String {
        let unready: Vec<_> = self
            .main
            .iter()
            .filter(|one| !one.ready)
            .map(|one| &one.name)
            .collect();
        if unready.is_empty() {
            String::new()
        } else {
            format!("containers with unready status: {unready:?}")
        }
    }
}

/// Conditions of the kubelet; all others stay as they are.
fn merge_conditions(pod: &Value, ours: &[(&str, bool, &str, String)], now: SystemTime) -> Value {
    let before = list(pod, "/status/conditions");
    let old = |kind: &str| before.iter().find(|one| text(one, "/type") == Some(kind));
    let mut all: Vec<Value> = before
        .iter()
        .filter(|one| {
            !ours
                .iter()
                .any(|(kind, ..)| text(one, "/type") == Some(kind))
        })
        .cloned()
        .collect();
    for (kind, holds, reason, message) in ours {
        let held = if *holds { "True" } else { "False" };
        let since = old(kind)
            .filter(|one| text(one, "/status") == Some(held))
            .and_then(|one| text(one, "/lastTransitionTime").map(str::to_owned));
        let mut condition = json!({
            "type": kind, "status": held,
            "lastTransitionTime": since.unwrap_or_else(|| timestamp(now)),
        });
        if !holds {
            condition["reason"] = json!(reason);
            if !message.is_empty() {
                condition["message"] = json!(message);
            }
        }
        all.push(condition);
    }
    Value::Array(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::object::condition;

    fn pod(policy: &str) -> Value {
        json!({"spec": {"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]},
               "status": {"conditions": [{"type": "culvert.dev/enrolled", "status": "True"}]}})
    }

    fn report(policy: &str) -> Report {
        Report::new(&pod(policy), vec![], SystemTime::UNIX_EPOCH)
    }

    fn ended(exit_code: i32) -> State {
        let at = SystemTime::UNIX_EPOCH;
        State::Terminated(Ended {
            exit_code,
            reason: "Completed".to_owned(),
            message: String::new(),
            started: at,
            finished: at,
        })
    }

    fn check(policy: &str, states: [State; 2], expect: &str) {
        let mut report = report(policy);
        for (container, state) in report.main.iter_mut().zip(states) {
            container.state = state;
        }
        assert_eq!(report.phase(&pod(policy)), expect);
    }

    #[test]
    fn phases() {
        let waiting = || State::Waiting {
            reason: "x".to_owned(),
            message: String::new(),
        };
        let running = || State::Running {
            started: SystemTime::UNIX_EPOCH,
        };
        check("Always", [waiting(), waiting()], "Pending");
        check("Always", [running(), waiting()], "Running");
        check("Always", [ended(0), ended(1)], "Running");
        check("Never", [ended(0), ended(0)], "Succeeded");
        check("Never", [ended(0), ended(3)], "Failed");
        check("Never", [ended(0), running()], "Running");
    }

    #[test]
    fn ready_needs_every_container_and_keeps_foreign_conditions() {
        let pod = pod("Always");
        let mut report = report("Always");
        for container in &mut report.main {
            container.state = State::Running {
                started: SystemTime::UNIX_EPOCH,
            };
            container.ready = true;
        }
        let with = json!({"status": report.status(&pod, SystemTime::UNIX_EPOCH)});
        assert_eq!(condition(&with, "Ready"), Some("True"));
        assert_eq!(condition(&with, "culvert.dev/enrolled"), Some("True"));
        report.main[1].ready = false;
        let with = json!({"status": report.status(&pod, SystemTime::UNIX_EPOCH)});
        assert_eq!(condition(&with, "Ready"), Some("False"));
    }

    #[test]
    fn readiness_gates_count() {
        let mut pod = pod("Always");
        pod["spec"]["readinessGates"] = json!([{"conditionType": "example.org/go"}]);
        let mut report = report("Always");
        for container in &mut report.main {
            container.state = State::Running {
                started: SystemTime::UNIX_EPOCH,
            };
            container.ready = true;
        }
        let with = json!({"status": report.status(&pod, SystemTime::UNIX_EPOCH)});
        assert_eq!(condition(&with, "ContainersReady"), Some("True"));
        assert_eq!(condition(&with, "Ready"), Some("False"));
    }
}
