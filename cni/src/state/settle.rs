//! What is missing between what is and what should be.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    Action, AddFault, Added, Job, Membership, PodRules, ProbeTarget, Record, RequestId, RulesState,
    State, Status, Uid,
};

impl State {
    /// Gives every action that is due now.
    pub(super) fn settle(&mut self, actions: &mut Vec<Action>) {
        self.adopt_added(actions);
        self.forget_lost(actions);
        self.keep_sockets(actions);
        self.tell_proxies(actions);
        self.start_jobs(actions);
        self.write_probes(actions);
        self.save(actions);
        self.write_statuses(actions);
        self.answer_adds(actions);
    }

    /// Whether the pod's traffic passes the node proxy, by these rules.
    pub(super) fn is_enrolled(&self, uid: &str, rules: &PodRules) -> bool {
        self.pods.get(uid).is_some_and(|pod| {
            let present = matches!(&pod.rules, RulesState::Present(found) if found == rules);
            pod.opened && present && self.is_served(uid)
        })
    }

    /// Whether the pod's traffic cannot go past the node proxy: its rules were in
    /// place, and whatever the proxy does since, it stays so.
    pub(super) fn is_captured(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.captured)
    }

    /// Why a pod of the mesh is not enrolled.
    pub(super) fn why_not(&self, uid: &str) -> String {
        if let Membership::Out(reason) | Membership::Unknown(reason) = self.membership(uid) {
            return reason;
        }
        let Some(pod) = self.pods.get(uid) else {
            return "its network has not come through the CNI plugin (a pod older than the plugin must \
                    be restarted)"
                .to_owned();
        };
        if let Some(fault) = &pod.fault {
            return fault.reason.clone();
        }
        if let Some(error) = self.proxy_error(uid) {
            return format!("the node proxy cannot serve the pod: {error}");
        }
        if self.proxies.is_empty() {
            return "no node proxy is connected".to_owned();
        }
        if self.is_served(uid) {
            "its redirect rules are being written".to_owned()
        } else {
            "the node proxy has not answered yet".to_owned()
        }
    }

    /// Sandboxes of pending ADDs become those of their pods, once the pod is known.
    fn adopt_added(&mut self, actions: &mut Vec<Action>) {
        let unresolved: Vec<RequestId> = self
            .adds
            .iter()
            .filter(|(_, add)| add.uid.is_none())
            .map(|(request, _)| *request)
            .collect();
        for request in unresolved {
            let Some((uid, sandbox)) = self.resolve(request) else {
                continue;
            };
            if let Some(add) = self.adds.get_mut(&request) {
                add.uid = Some(Arc::clone(&uid));
            }
            self.adopt(&uid, &sandbox, actions);
        }
    }

    fn resolve(&self, request: RequestId) -> Option<(Uid, super::Sandbox)> {
        let objects = self.objects.as_ref()?;
        let sandbox = &self.adds.get(&request)?.sandbox;
        let uid = match &sandbox.uid {
            Some(uid) => objects.pods.get_key_value(uid).map(|(uid, _)| uid),
            None => objects.named(&sandbox.namespace, &sandbox.name),
        }?;
        // A runtime that mixes pods up must not be believed.
        let facts = objects.pods.get(uid)?;
        let same = facts.namespace == sandbox.namespace && facts.name == sandbox.name;
        same.then(|| (Arc::clone(uid), sandbox.clone()))
    }

    /// A pod without an object whose namespace is gone was deleted while no agent ran.
    fn forget_lost(&mut self, actions: &mut Vec<Action>) {
        let Some(objects) = self.objects.clone() else {
            return;
        };
        let lost: Vec<Uid> = self
            .pods
            .iter()
            .filter(|(uid, pod)| {
                let gone = pod.fault.as_ref().is_some_and(|fault| fault.gone);
                gone && !objects.pods.contains_key(*uid)
            })
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in lost {
            self.forget(&uid, actions);
        }
    }

    fn keep_sockets(&mut self, actions: &mut Vec<Action>) {
        let wanted: BTreeMap<Uid, u64> = self
            .pods
            .iter()
            .filter(|(uid, _)| self.is_announced(uid))
            .map(|(uid, pod)| (Arc::clone(uid), pod.generation))
            .collect();
        for (uid, generation) in &self.kept {
            if wanted.get(uid) != Some(generation) {
                actions.push(Action::DropSockets(Arc::clone(uid)));
            }
        }
        for (uid, generation) in &wanted {
            if self.kept.get(uid) != Some(generation) {
                actions.push(Action::KeepSockets(Arc::clone(uid)));
            }
        }
        self.kept = wanted;
    }

    fn start_jobs(&mut self, actions: &mut Vec<Action>) {
        let uids: Vec<Uid> = self.pods.keys().cloned().collect();
        for uid in uids {
            let Some(job) = self.next_job(&uid) else {
                continue;
            };
            let attempt = self.number();
            let Some(pod) = self.pods.get_mut(&uid) else {
                continue;
            };
            let rules = match &job {
                Job::Install { rules, .. } => Some(rules.clone()),
                Job::Open | Job::Uninstall => None,
            };
            pod.reassert = false;
            pod.job = Some((attempt, rules));
            actions.push(Action::Start {
                uid,
                attempt,
                sandbox: pod.sandbox.clone(),
                job,
            });
        }
    }

    fn next_job(&self, uid: &Uid) -> Option<Job> {
        let pod = self.pods.get(uid)?;
        if pod.job.is_some() || pod.fault.is_some() {
            return None;
        }
        match self.membership(uid) {
            Membership::In(_) | Membership::Unknown(_) if !pod.opened => {
                let wanted = matches!(self.membership(uid), Membership::In(_)) || pod.captured;
                wanted.then_some(Job::Open)
            }
            Membership::In(rules) => {
                let as_wanted = matches!(&pod.rules, RulesState::Present(found) if *found == rules);
                // A pod that was captured before stays so whatever its proxy does.
                let may = self.is_served(uid) || pod.captured;
                (may && (!as_wanted || pod.reassert)).then(|| Job::Install {
                    rules,
                    older: pod.older.clone(),
                })
            }
            Membership::Unknown(_) => None,
            Membership::Out(_) => {
                // Whether the rules of an earlier agent stand is not known.
                if pod.rules != RulesState::Absent {
                    return Some(Job::Uninstall);
                }
                // Without an object it may be a pod whose DEL was missed.
                let objects = self.objects.as_ref()?;
                let lost = pod.reassert && !objects.pods.contains_key(uid);
                lost.then_some(Job::Open)
            }
        }
    }

    fn write_probes(&mut self, actions: &mut Vec<Action>) {
        self.note_probe_ports();
        // Not before it is known which pods there are: a set written too early
        // would take probes of running pods to the proxy.
        if self.objects.is_none() || self.probes.in_flight.is_some() || self.probes.failed {
            return;
        }
        let mut targets: Vec<ProbeTarget> = self
            .pods
            .iter()
            .filter(|(uid, pod)| self.is_announced(uid) || pod.captured)
            .flat_map(|(uid, pod)| {
                pod.sandbox.ips.iter().flat_map(move |ip| {
                    pod.probe_ports.iter().map(move |port| ProbeTarget {
                        ip: *ip,
                        port: *port,
                        uid: uid.to_string(),
                    })
                })
            })
            .collect();
        targets.sort();
        // An address is some pod's for a moment longer than the pod lives.
        targets.dedup_by_key(|target| (target.ip, target.port));
        if self.probes.done.as_ref() != Some(&targets) {
            let attempt = self.number();
            self.probes.in_flight = Some((attempt, targets.clone()));
            actions.push(Action::SetProbes { attempt, targets });
        }
    }

    fn note_probe_ports(&mut self) {
        let Some(objects) = self.objects.clone() else {
            return;
        };
        for (uid, pod) in &mut self.pods {
            // The last known ports of a pod whose object is not there are kept.
            if let Some(facts) = objects.pods.get(uid) {
                pod.probe_ports.clone_from(&facts.probe_ports);
            }
        }
    }

    fn save(&mut self, actions: &mut Vec<Action>) {
        for (uid, pod) in &mut self.pods {
            let record = Record {
                uid: Arc::clone(uid),
                sandbox: pod.sandbox.clone(),
                captured: pod.captured,
                older: pod.older.clone().unwrap_or_default(),
            };
            if pod.saved.as_ref() != Some(&record) {
                pod.saved = Some(record.clone());
                actions.push(Action::Save(record));
            }
        }
    }

    fn write_statuses(&mut self, actions: &mut Vec<Action>) {
        let Some(objects) = self.objects.clone() else {
            return;
        };
        let mut wanted = BTreeMap::new();
        for (uid, facts) in &objects.pods {
            let (enrolled, mut reason) = match objects.membership(uid, &self.exempt) {
                Membership::In(_) if self.is_captured(uid) => (true, "enrolled".to_owned()),
                Membership::In(_) => (false, self.why_not(uid)),
                Membership::Out(reason) => (false, reason),
                Membership::Unknown(reason) => (self.is_captured(uid), reason),
            };
            for complaint in &facts.complaints {
                reason = format!("{reason}; {complaint}");
            }
            let status = Status {
                uid: Arc::clone(uid),
                namespace: facts.namespace.clone(),
                name: facts.name.clone(),
                enrolled,
                reason,
            };
            wanted.insert((facts.namespace.clone(), facts.name.clone()), status);
        }
        for (namespace, name) in self.statuses.keys() {
            if !wanted.contains_key(&(namespace.clone(), name.clone())) {
                actions.push(Action::RemoveStatus {
                    namespace: namespace.clone(),
                    name: name.clone(),
                });
            }
        }
        for (key, status) in &wanted {
            if self.statuses.get(key) != Some(status) {
                actions.push(Action::WriteStatus(status.clone()));
            }
        }
        self.statuses = wanted;
    }

    fn answer_adds(&mut self, actions: &mut Vec<Action>) {
        let requests: Vec<RequestId> = self.adds.keys().copied().collect();
        for request in requests {
            match self.add_outcome(request) {
                None => {}
                Some(Ok(added)) => self.answer(request, Ok(added), actions),
                Some(Err(fault)) => {
                    self.fail_add(request, fault, actions);
                    // The failed sandbox is gone; proxies and sockets follow.
                    self.keep_sockets(actions);
                    self.tell_proxies(actions);
                    self.write_statuses(actions);
                }
            }
        }
    }

    /// None while it is not decided.
    fn add_outcome(&self, request: RequestId) -> Option<Result<Added, AddFault>> {
        let add = self.adds.get(&request)?;
        let uid = add.uid.as_ref()?;
        let Some(pod) = self.pods.get(uid).filter(|pod| pod.sandbox == add.sandbox) else {
            return Some(Err(AddFault::Superseded));
        };
        match self.membership(uid) {
            Membership::Unknown(_) => None,
            Membership::Out(reason) => {
                // What is no concern of the mesh must not fail for its sake.
                let clean = pod.rules == RulesState::Absent || pod.fault.is_some();
                clean.then_some(Ok(Added::NotEnrolled(reason)))
            }
            Membership::In(rules) if self.is_enrolled(uid, &rules) => Some(Ok(Added::Enrolled)),
            Membership::In(_) => {
                let fault = match (&pod.fault, self.proxy_error(uid)) {
                    (Some(fault), _) => AddFault::Job(fault.reason.clone()),
                    (None, Some(error)) => AddFault::Proxy(error.to_owned()),
                    (None, None) => return None,
                };
                Some(Err(fault))
            }
        }
    }
}
