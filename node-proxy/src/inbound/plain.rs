//! A plain connection to a pod: no identity, so that its policies decide
//! whether it may come in at all.

use std::rc::Rc;
use std::sync::Arc;

use culvert_hbone::relay;
use culvert_model::Verdict;
use tokio::time::Instant;

use super::{Refused, dial_application, note_dry_run, open, refuse, target};
use crate::connections::{Check, Direction, Facts, Ingress, OpenConnection};
use crate::outbound::{closed_end, direct_end};
use crate::pods::{INBOUND_PORT, Pod};
use crate::redirect::{self, Accepted, is_own_port};
use crate::refusal::{self, Refusal};
use crate::socket::AbortOnDrop;
use crate::state::workload_in;
use crate::traffic::Security;
use crate::workers::Worker;

/// Serves a plain connection from its acceptance to its end.
pub(crate) async fn serve(worker: Rc<Worker>, pod: Arc<Pod>, accepted: Accepted) {
    let client = accepted.client;
    let near = AbortOnDrop::new(accepted.stream);
    let destination = match redirect::destination(&near, INBOUND_PORT) {
        Ok(destination) => destination,
        Err(error) => {
            tracing::debug!(?pod, %client, %error, "a plain connection has no destination");
            return;
        }
    };
    let facts = Facts {
        direction: Direction::Inbound,
        pod,
        security: Security::Plain,
        client,
        hop: destination,
        authority: None,
        source: None,
        destination: None,
        service: None,
        source_identity: None,
        started: Instant::now(),
        trace: None,
    };
    let (far, open) = match Box::pin(admit(&worker, facts)).await {
        Ok(admitted) => admitted,
        Err(refusal) => return Box::pin(refusal::answer(near, refusal)).await,
    };
    carry(near, far, open).await;
}

async fn carry(mut client: AbortOnDrop, mut application: AbortOnDrop, open: OpenConnection) {
    let end = {
        let record = &*open.record;
        tokio::select! {
            biased;
            reason = record.signal.closed() => closed_end(&reason),
            // The record counts from the application's side on the way in.
            outcome = relay::between(&mut *application, &mut *client, record) => {
                direct_end(outcome)
            }
        }
    };
    if end.error.is_none() {
        client.finish();
        application.finish();
    }
    open.end(end);
}

async fn admit(
    worker: &Rc<Worker>,
    facts: Facts,
) -> Result<(AbortOnDrop, OpenConnection), Refusal> {
    match try_admit(worker, facts).await {
        Ok(admitted) => Ok(admitted),
        Err((facts, why)) => Err(refuse(worker, &facts, &why).1),
    }
}

async fn try_admit(
    worker: &Rc<Worker>,
    mut facts: Facts,
) -> Result<(AbortOnDrop, OpenConnection), (Facts, Refused)> {
    if is_own_port(facts.hop.port()) {
        return Err((facts, Refused::OwnPort));
    }
    let state = &worker.shared.parts.state;
    let waited = state.wait_workload(&facts.pod).await;
    let snapshot = state.snapshot();
    let workload = workload_in(&snapshot, &facts.pod).filter(|_| waited.is_ok());
    let Some(workload) = workload else {
        return Err((facts, Refused::UnknownWorkload));
    };
    facts.destination = Some(Arc::clone(workload));
    facts.source = snapshot.workload_at(facts.client.ip()).cloned();
    facts.service = target::service(&snapshot, workload, None, facts.hop.port());
    let ingress = Ingress {
        pod: Arc::clone(&facts.pod),
        source_ip: facts.client.ip(),
        source_identity: None,
        destination: facts.hop,
    };
    match ingress.verdict(&snapshot, workload) {
        Verdict::Allow { dry_run, .. } => note_dry_run(&facts, &dry_run),
        Verdict::Deny(denial) => return Err((facts, Refused::Denied(Box::new(denial)))),
    }
    let dialled = dial_application(worker, &facts.pod, facts.hop, facts.client.ip()).await;
    let far = match dialled {
        Ok(stream) => AbortOnDrop::new(stream),
        Err(error) => return Err((facts, Refused::Application(error))),
    };
    let check = Check {
        ingress: Some(ingress),
        egress: None,
    };
    match open(worker, &snapshot, facts, check) {
        Ok(open) => Ok((far, open)),
        Err(denied) => {
            let (facts, denial) = *denied;
            Err((facts, Refused::Denied(Box::new(denial))))
        }
    }
}
