//! The loop: objects that changed are folded into the world, the world is
//! compiled, and what came out is published and told in statuses. A burst of
//! changes is compiled once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use culvert_kubeyaml::Kind;
use culvert_runtime::{Clock, ConditionHandle, DrainWatch};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    compile::{Compiled, Settings, compile},
    index::{Effect, World},
    metrics::DiscoveryMetrics,
    publish::ViewPublisher,
    status::StatusWriter,
    watch::{Batch, Event},
};

/// Batches that wait while one is compiled. The source waits when it is full,
/// and what it then reads is newer.
pub const BATCHES_MAX: usize = 16;
/// Looked at this often even if no lease seems to end: the wall clock may jump.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// A summary of the last compilation, for people.
#[derive(Debug, Default)]
pub struct Overview {
    objects: BTreeMap<Kind, usize>,
    faults: Vec<String>,
    compiled: Compiled,
}

impl Overview {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        let objects = self.objects.iter();
        let objects: BTreeMap<_, _> = objects.map(|(kind, count)| (kind.name(), count)).collect();
        let policy = |policy: &culvert_model::Policy| {
            json!({
                "name": policy.name.to_string(),
                "scope": format!("{:?}", policy.scope),
                "action": format!("{:?}", policy.action),
                "dryRun": policy.dry_run,
                "rules": policy.groups.len(),
                "origin": policy.origin.as_ref().map(|o| format!("{} {}/{}", o.kind, o.namespace, o.name)),
            })
        };
        let workload = |workload: &culvert_model::Workload| {
            let services = workload.services.keys().map(ToString::to_string);
            let policies = workload
                .authorization_policies
                .iter()
                .map(ToString::to_string);
            let egress = workload.egress_policies.iter().map(ToString::to_string);
            json!({
                "uid": workload.uid.as_str(),
                "identity": workload.identity.uri(),
                "addresses": workload.addresses,
                "node": &*workload.node,
                "tunnel": workload.is_meshed(),
                "health": format!("{:?}", workload.health),
                "services": services.collect::<Vec<_>>(),
                "policies": policies.collect::<Vec<_>>(),
                "egressPolicies": egress.collect::<Vec<_>>(),
                "peerSets": workload.peer_sets.iter().map(|set| &**set).collect::<Vec<_>>(),
            })
        };
        let services = self.compiled.services.values().map(|service| {
            let addresses = service.host_addresses().map(|ip| ip.to_string());
            json!({
                "name": service.name.to_string(),
                "addresses": addresses.collect::<Vec<_>>(),
                "ports": service.ports.iter().map(|port| port.service_port).collect::<Vec<_>>(),
            })
        });
        let rejected = self
            .compiled
            .statuses
            .iter()
            .filter(|(_, status)| !status.is_accepted());
        let rejected = rejected.map(|(key, status)| {
            let conditions = status
                .conditions()
                .filter(|condition| !condition.message.is_empty());
            let messages = conditions.map(|c| format!("{}: {}", c.reason, c.message));
            json!({"object": key.to_string(), "messages": messages.collect::<Vec<_>>()})
        });
        json!({
            "objects": objects,
            "faults": self.faults,
            "rejected": rejected.collect::<Vec<_>>(),
            "workloads": self.compiled.workloads.values().map(workload).collect::<Vec<_>>(),
            "services": services.collect::<Vec<_>>(),
            "policies": self.compiled.policies.values().map(policy).collect::<Vec<_>>(),
            "egressPolicies": self.compiled.egress_policies.values().map(policy).collect::<Vec<_>>(),
        })
    }
}

/// Everything that the loop holds.
#[derive(Debug)]
pub struct Engine {
    /// What is the same for the whole mesh.
    pub settings: Settings,
    /// Where the result goes.
    pub publisher: Arc<ViewPublisher>,
    /// Where statuses go.
    pub statuses: Option<StatusWriter>,
    /// The wall clock, for leases of nodes.
    pub clock: Arc<dyn Clock>,
    /// Whether the first load is over.
    pub ready: ConditionHandle,
    /// Counts.
    pub metrics: DiscoveryMetrics,
    /// A summary for people.
    pub overview: watch::Sender<Arc<Overview>>,
}

impl Engine {
    /// Runs until the source ends or the drain starts.
    ///
    /// # Cancel safety
    /// What was published stays published.
    pub async fn run(mut self, mut batches: mpsc::Receiver<Batch>, drain: DrainWatch) {
        let mut state = State::default();
        loop {
            let until_look = state.until_look(&*self.clock);
            let batch = tokio::select! {
                batch = batches.recv() => match batch {
                    Some(batch) => Some(batch),
                    None => return,
                },
                () = tokio::time::sleep(until_look) => None,
                _ = drain.started() => return,
            };
            let started = Instant::now();
            let mut dirty = batch.is_none() && state.lease_ended(&*self.clock);
            for batch in batch
                .into_iter()
                .chain(std::iter::from_fn(|| batches.try_recv().ok()))
            {
                dirty |= self.take(&mut state, batch);
            }
            if dirty && state.synced {
                self.compile(&mut state, started);
            }
        }
    }

    /// Whether anything has to be compiled.
    fn take(&self, state: &mut State, batch: Batch) -> bool {
        let now = self.clock.now();
        let mut dirty = false;
        for event in &batch.events {
            if let Event::Broken { key, message } = event {
                tracing::warn!(object = %key, message, "object cannot be read; its last good form stays");
            }
            dirty |= state.world.apply(event, now) == Effect::Some;
        }
        if batch.faults != state.faults {
            for fault in batch
                .faults
                .iter()
                .filter(|fault| !state.faults.contains(fault))
            {
                tracing::warn!(fault, "source");
            }
            self.metrics.source_faults(batch.faults.len());
            state.faults = batch.faults;
            dirty = true;
        }
        if batch.synced && !state.synced {
            state.synced = true;
            dirty = true;
        } else if !state.synced {
            let why = state.faults.first().cloned();
            self.ready
                .set_not_ready(why.unwrap_or_else(|| "objects are being read".to_owned()));
        }
        dirty
    }

    fn compile(&mut self, state: &mut State, started: Instant) {
        let now = self.clock.now();
        let compiled = compile(&state.world, &self.settings, now);
        state.compiled_at = Some(now);
        let changed = self.publisher.publish(&compiled);
        self.metrics.compiled(started.elapsed(), changed);
        self.metrics.objects(state.world.counts());
        let mut rejected: BTreeMap<Kind, usize> = BTreeMap::new();
        for (key, status) in &compiled.statuses {
            if !status.is_accepted() {
                *rejected.entry(key.kind).or_default() += 1;
            }
        }
        self.metrics.rejected_objects(&rejected);
        if let Some(statuses) = &mut self.statuses {
            statuses.write(&compiled.statuses, now);
        }
        tracing::debug!(changed, took = ?started.elapsed(), "compiled");
        self.overview.send_replace(Arc::new(Overview {
            objects: state.world.counts().clone(),
            faults: state.faults.clone(),
            compiled,
        }));
        self.ready.set_ready();
    }
}

#[derive(Default)]
struct State {
    world: World,
    faults: Vec<String>,
    synced: bool,
    /// The time that leases were compared with.
    compiled_at: Option<std::time::SystemTime>,
}

impl State {
    fn next_lease_end(&self) -> Option<std::time::SystemTime> {
        self.world.next_lease_end(self.compiled_at?)
    }

    fn until_look(&self, clock: &dyn Clock) -> Duration {
        let left = self
            .next_lease_end()
            .map(|end| end.duration_since(clock.now()));
        left.map_or(LOOK_INTERVAL, |left| {
            left.unwrap_or_default().min(LOOK_INTERVAL)
        })
    }

    /// Whether a lease that held when things were compiled has ended.
    fn lease_ended(&self, clock: &dyn Clock) -> bool {
        self.next_lease_end().is_some_and(|end| end <= clock.now())
    }
}
