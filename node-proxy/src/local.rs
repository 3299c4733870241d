//! Two pods of one node: the connection is handed over inside the process,
//! under the same identity check, policies and metrics as over the wire.

use std::rc::Rc;
use std::sync::Arc;

use culvert_hbone::relay::{self, Meter};
use culvert_model::{Hop, Snapshot, TunnelRoute, Verdict};

use crate::connections::{Check, Direction, End, Facts, Ingress, OpenConnection, Record};
use crate::fault::LegError;
use crate::inbound::{self, Refused};
use crate::outbound::{closed_end, direct_end};
use crate::pods::Pod;
use crate::redirect::is_own_port;
use crate::socket::AbortOnDrop;
use crate::state::workload_in;
use crate::traffic::Security;
use crate::workers::Worker;

/// The pod to hand over to: of this node, the very one that discovery means,
/// with nothing between the proxy and its application.
pub(crate) fn target(worker: &Worker, route: &TunnelRoute) -> Option<Arc<Pod>> {
    let workload = &route.workload;
    if route.hop != Hop::Endpoint
        || workload.native_tunnel
        || workload.application_tunnel.is_some()
        || !workload.addresses.contains(&route.authority.ip())
    {
        return None;
    }
    let pod = worker.shared.local.load().get(&workload.uid).cloned()?;
    let expected = pod.identity == workload.identity && route.allowed.contains(&pod.identity);
    expected.then_some(pod)
}

/// Whether both pods could prove who they are at this moment. Nothing is proven
/// by a certificate that has expired, also not inside the process.
fn are_proven(worker: &Worker, source: &Pod, destination: &Pod) -> Result<(), LegError> {
    let parts = &worker.shared.parts;
    let now = parts.clock.now();
    for pod in [source, destination] {
        if parts
            .certificates
            .store()
            .usable(&pod.identity, now)
            .is_none()
        {
            return Err(LegError::Certificate(
                crate::certs::CertificateUnavailable {
                    identity: pod.identity.clone(),
                    reason: "none is valid at the moment".into(),
                },
            ));
        }
    }
    Ok(())
}

/// Judges as the destination and connects to its application.
pub(crate) async fn connect(
    worker: &Rc<Worker>,
    snapshot: &Arc<Snapshot>,
    pod: &Arc<Pod>,
    outbound: &Facts,
) -> Result<(AbortOnDrop, OpenConnection), LegError> {
    if are_proven(worker, &outbound.pod, pod).is_err() {
        // A pod that has just started gets its certificate first.
        for one in [&outbound.pod, pod] {
            let certificates = &worker.shared.parts.certificates;
            certificates
                .certificate(&one.identity)
                .await
                .map_err(LegError::Certificate)?;
        }
        are_proven(worker, &outbound.pod, pod)?;
    }
    let destination = outbound.target();
    let facts = Facts {
        direction: Direction::Inbound,
        pod: Arc::clone(pod),
        security: Security::Local,
        source_identity: Some(outbound.pod.identity.clone()),
        ..outbound.clone()
    };
    if is_own_port(destination.port()) {
        return Err(refused(worker, &facts, &Refused::OwnPort));
    }
    let Some(workload) = workload_in(snapshot, pod) else {
        return Err(refused(worker, &facts, &Refused::UnknownWorkload));
    };
    let ingress = Ingress {
        pod: Arc::clone(pod),
        source_ip: outbound.client.ip(),
        source_identity: Some(outbound.pod.identity.clone()),
        destination,
    };
    match ingress.verdict(snapshot, workload) {
        Verdict::Allow { dry_run, .. } => inbound::note_dry_run(&facts, &dry_run),
        Verdict::Deny(denial) => {
            return Err(refused(worker, &facts, &Refused::Denied(Box::new(denial))));
        }
    }
    let stream = inbound::dial_application(worker, pod, destination, outbound.client.ip()).await;
    let far = match stream {
        Ok(stream) => AbortOnDrop::new(stream),
        Err(error) => return Err(refused(worker, &facts, &Refused::Application(error))),
    };
    let check = Check {
        ingress: Some(ingress),
        egress: None,
    };
    match inbound::open(worker, snapshot, facts, check) {
        Ok(open) => Ok((far, open)),
        Err(denied) => {
            let (facts, denial) = *denied;
            Err(refused(worker, &facts, &Refused::Denied(Box::new(denial))))
        }
    }
}

fn refused(worker: &Worker, facts: &Facts, why: &Refused) -> LegError {
    let (status, refusal) = inbound::refuse(worker, facts, why);
    LegError::Refused {
        status: status.as_u16(),
        reason: Some(refusal.to_string()),
    }
}

/// The books of both sides.
struct Both<'a>(&'a Record, &'a Record);

impl Meter for Both<'_> {
    fn sent(&self, bytes: usize) {
        self.0.sent(bytes);
        // The inbound side's socket is the server's.
        self.1.received(bytes);
    }

    fn received(&self, bytes: usize) {
        self.0.received(bytes);
        self.1.sent(bytes);
    }
}

/// Relays until both directions have ended, or one side has to close.
pub(crate) async fn relay(
    mut near: AbortOnDrop,
    mut far: AbortOnDrop,
    outbound: OpenConnection,
    inbound: OpenConnection,
) {
    let ends = {
        let meter = Both(&outbound.record, &inbound.record);
        tokio::select! {
            biased;
            reason = outbound.record.signal.closed() => (closed_end(&reason), closed_end(&reason)),
            reason = inbound.record.signal.closed() => (closed_end(&reason), closed_end(&reason)),
            outcome = relay::between(&mut *near, &mut *far, &meter) => {
                let end = direct_end(outcome);
                let same = End {
                    flag: end.flag,
                    refusal: None,
                    error: end.error.clone(),
                };
                (end, same)
            }
        }
    };
    if ends.0.error.is_none() {
        near.finish();
        far.finish();
    }
    outbound.end(ends.0);
    inbound.end(ends.1);
}
