//! How an open connection is judged again when the mesh changes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use culvert_identity::Identity;
use culvert_model::{
    Denial, PeerConnection, Snapshot, Verdict, Workload, WorkloadUid, authorize, authorize_egress,
};

use super::Facts;
use crate::pods::Pod;
use crate::state::workload_in;
use crate::traffic::{DenialLabels, Reporter};

/// What has to hold for a connection, now and later.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    /// The destination's policies, where this proxy is the one to enforce them.
    pub(crate) ingress: Option<Ingress>,
    /// The source's own policies.
    pub(crate) egress: Option<Egress>,
}

/// A connection that a pod of ours accepts.
#[derive(Debug, Clone)]
pub(crate) struct Ingress {
    pub(crate) pod: Arc<Pod>,
    pub(crate) source_ip: IpAddr,
    pub(crate) source_identity: Option<Identity>,
    pub(crate) destination: SocketAddr,
}

/// A connection that a pod of ours makes.
#[derive(Debug, Clone)]
pub(crate) struct Egress {
    pub(crate) pod: Arc<Pod>,
    pub(crate) destination: SocketAddr,
    pub(crate) workload: Option<WorkloadUid>,
}

impl Ingress {
    /// Judges by the pod's record as it is in this snapshot.
    pub(crate) fn verdict(&self, snapshot: &Snapshot, destination: &Workload) -> Verdict {
        let source = snapshot.workload_at(self.source_ip);
        authorize(
            snapshot,
            destination,
            &PeerConnection {
                source_ip: self.source_ip,
                source_identity: self.source_identity.as_ref(),
                source_workload: source.map(|workload| &**workload),
                destination: self.destination,
            },
        )
    }
}

impl Egress {
    pub(crate) fn verdict(&self, snapshot: &Snapshot, source: &Workload) -> Verdict {
        let workload = self
            .workload
            .as_ref()
            .and_then(|uid| snapshot.workload(uid));
        authorize_egress(snapshot, source, self.destination, workload.map(|w| &**w))
    }
}

impl Check {
    /// The denial by a snapshot, if any. A pod whose record is missing for the
    /// moment keeps its connections: a gap in discovery is no policy.
    pub(crate) fn denial(&self, snapshot: &Snapshot) -> Option<Denial> {
        let ingress = self.ingress.as_ref().and_then(|ingress| {
            let destination = workload_in(snapshot, &ingress.pod)?;
            Some(ingress.verdict(snapshot, destination))
        });
        let egress = self.egress.as_ref().and_then(|egress| {
            let source = workload_in(snapshot, &egress.pod)?;
            Some(egress.verdict(snapshot, source))
        });
        [egress, ingress]
            .into_iter()
            .flatten()
            .find_map(|verdict| match verdict {
                Verdict::Deny(denial) => Some(denial),
                Verdict::Allow { .. } => None,
            })
    }
}

pub(super) fn denial_labels(reporter: Reporter, facts: &Facts, denial: &Denial) -> DenialLabels {
    let unknown = || Arc::<str>::from("unknown");
    // Only identities of the snapshot: a peer must not be able to make series.
    let principal = |workload: &Option<Arc<Workload>>| {
        workload
            .as_ref()
            .map_or_else(unknown, |w| Arc::from(w.identity.uri()))
    };
    let destination = facts.destination.as_ref();
    DenialLabels {
        reporter,
        policy: match &denial.policy {
            Some(policy) => Arc::from(policy.to_string()),
            None => Arc::from(denial.reason.reason()),
        },
        rule: denial.rule.map(|rule| rule.to_string()).unwrap_or_default(),
        source_principal: principal(&facts.source),
        destination_principal: principal(&facts.destination),
        destination_workload: destination.map_or_else(unknown, |w| w.workload_name.clone()),
        destination_namespace: destination.map_or_else(unknown, |w| w.namespace.clone()),
    }
}
