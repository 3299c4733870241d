//! Making the far leg of an outbound connection: route, judge, connect, and on
//! a failure another endpoint.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_hbone::ConnectHead;
use culvert_hbone::headers::{Forwarded, TraceParent};
use culvert_model::{
    Attempt, Denial, Hop, PlainRoute, Reject, Route, Service, Snapshot, TunnelRoute, Verdict,
    Workload, WorkloadUid, route_again,
};
use culvert_netns::{ConnectOptions, set_keepalive};
use culvert_runtime::chain;
use tokio::time::{Instant, timeout_at};

use super::{Connected, Leg, bare_facts, refuse};
use crate::connections::{Check, Egress, End, Facts, OpenConnection};
use crate::fault::LegError;
use crate::keepalive;
use crate::local;
use crate::pods::{PROXY_MARK, Pod};
use crate::redirect::is_own_port;
use crate::refusal::{Category, Refusal};
use crate::socket::{AbortOnDrop, KEEPALIVE, dial};
use crate::state::workload_in;
use crate::traffic::{Flag, Security};
use crate::tunnels::{CONNECT_LIMIT, Target, open_stream};
use crate::workers::Worker;

/// Endpoints that are tried for one connection.
const ATTEMPTS_MAX: usize = 4;
/// For all attempts together: about what a client's own connect bears.
const CONNECT_TOTAL: Duration = Duration::from_secs(15);
/// For a plain destination, which may be far away.
const PLAIN_LIMIT: Duration = Duration::from_secs(10);

/// One connection that is being made.
struct Making<'a> {
    worker: &'a Rc<Worker>,
    pod: &'a Arc<Pod>,
    client: SocketAddr,
    destination: SocketAddr,
    started: Instant,
    trace: (u128, u64),
}

/// An attempt that another endpoint may better.
struct Failed {
    workload: WorkloadUid,
    facts: Facts,
    error: Rc<LegError>,
}

/// Why one attempt gave no leg.
enum Missed {
    /// Another endpoint may do better.
    Retry(Box<Failed>),
    /// The connection is refused.
    Refused(Refusal),
}

/// Makes the far leg, or says what the client is told.
pub(super) async fn connect(
    worker: &Rc<Worker>,
    pod: &Arc<Pod>,
    client: SocketAddr,
    destination: SocketAddr,
) -> Result<Connected, Refusal> {
    let making = Making {
        worker,
        pod,
        client,
        destination,
        started: Instant::now(),
        trace: worker.random_trace(),
    };
    if let Err(error) = worker.shared.parts.state.wait_workload(pod).await {
        let facts = making.facts();
        let end = End::failed(Flag::NoRoute, error.to_string());
        return Err(refuse(worker, &facts, Category::Unavailable, end));
    }
    let deadline = making.started + CONNECT_TOTAL;
    match timeout_at(deadline, making.attempts()).await {
        Ok(result) => result,
        Err(_) => {
            let end = End::failed(Flag::Connect, "no endpoint answered in time");
            Err(refuse(worker, &making.facts(), Category::Unavailable, end))
        }
    }
}

impl Making<'_> {
    fn facts(&self) -> Facts {
        let snapshot = self.worker.shared.parts.state.snapshot();
        Facts {
            source: workload_in(&snapshot, self.pod).cloned(),
            source_identity: Some(self.pod.identity.clone()),
            started: self.started,
            trace: Some(self.trace.0),
            ..bare_facts(self.pod, self.client, self.destination)
        }
    }

    async fn attempts(&self) -> Result<Connected, Refusal> {
        let mut failed = self.worker.endpoints.ejected();
        let mut ejected = !failed.is_empty();
        let mut last: Option<(Box<Failed>, Route)> = None;
        for _ in 0..ATTEMPTS_MAX {
            let snapshot = self.worker.shared.parts.state.snapshot();
            let routed = match self.route(&snapshot, &failed) {
                // Better an endpoint that has just failed than none.
                Err(Reject::EndpointsExhausted) if ejected && last.is_none() => {
                    failed.clear();
                    ejected = false;
                    self.route(&snapshot, &failed)
                }
                routed => routed,
            };
            let route = match routed {
                Ok(route) => route,
                Err(Reject::EndpointsExhausted) if last.is_some() => break,
                Err(reject) => return Err(self.rejected(reject)),
            };
            match self.attempt(&snapshot, &route).await {
                Ok(connected) => return Ok(connected),
                Err(Missed::Refused(refusal)) => return Err(refusal),
                Err(Missed::Retry(missed)) => {
                    failed.push(missed.workload.clone());
                    last = Some((missed, route));
                }
            }
        }
        match last {
            Some((missed, route)) => self.other_family(missed, &route).await,
            None => Err(self.rejected(Reject::EndpointsExhausted)),
        }
    }

    /// No endpoint could be connected to: a service may have been named by an
    /// address of a family in which its application does not listen.
    async fn other_family(&self, missed: Box<Failed>, route: &Route) -> Result<Connected, Refusal> {
        let snapshot = self.worker.shared.parts.state.snapshot();
        let source = missed.facts.source.as_deref();
        let other = source.and_then(|source| route.in_other_family(source));
        let Some(other) = other.filter(|_| missed.error.is_unreachable()) else {
            return Err(self.leg_failed(&missed.facts, &missed.error));
        };
        match self.attempt(&snapshot, &other).await {
            Ok(connected) => Ok(connected),
            Err(Missed::Refused(refusal)) => Err(refusal),
            // What the application asked for is what is told.
            Err(Missed::Retry(_)) => Err(self.leg_failed(&missed.facts, &missed.error)),
        }
    }

    fn route(&self, snapshot: &Snapshot, failed: &[WorkloadUid]) -> Result<Route, Reject> {
        let source = workload_in(snapshot, self.pod).ok_or(Reject::NoUsableEndpoint)?;
        if is_own_port(self.destination.port()) && source.addresses.contains(&self.destination.ip())
        {
            return Err(Reject::NoServicePort);
        }
        let attempt = Attempt {
            source,
            destination: self.destination,
            failed,
        };
        let mut random = |end| self.worker.random_below(end);
        route_again(snapshot, &attempt, &*self.worker.endpoints, &mut random)
    }

    async fn attempt(&self, snapshot: &Arc<Snapshot>, route: &Route) -> Result<Connected, Missed> {
        match route {
            Route::Tunnel(route) => match local::target(self.worker, route) {
                Some(target) => self.hand_over(snapshot, route, target).await,
                None => self.tunnel(snapshot, route).await,
            },
            Route::Plain(PlainRoute {
                workload,
                service,
                address,
            }) => {
                let workload = Some(Arc::clone(workload));
                self.plain(snapshot, *address, workload, service.clone())
                    .await
            }
            Route::PassThrough(service) => {
                let service = service.clone();
                self.plain(snapshot, self.destination, None, service).await
            }
        }
    }

    fn tunnel_facts(&self, route: &TunnelRoute, security: Security) -> Facts {
        Facts {
            security,
            hop: route.address,
            authority: Some(route.authority),
            destination: Some(Arc::clone(&route.workload)),
            service: route.service.clone(),
            ..self.facts()
        }
    }

    async fn tunnel(
        &self,
        snapshot: &Arc<Snapshot>,
        route: &TunnelRoute,
    ) -> Result<Connected, Missed> {
        let facts = self.tunnel_facts(route, Security::MutualTls);
        let check = self.egress(route.authority, egress_peer(route));
        self.judge(snapshot, &facts, &check)?;
        let outstanding = self.worker.endpoints.enter(&route.workload.uid);
        let target = Target {
            pod: self.pod,
            client_ip: self.client.ip(),
            addresses: facts
                .source
                .as_ref()
                .map_or(&[], |source| &source.addresses),
            route,
        };
        let head = self.head(route, facts.source.as_deref());
        match open_stream(self.worker, &target, &head).await {
            Ok(stream) => {
                self.worker.endpoints.restore(&route.workload.uid);
                let open = self.open(snapshot, facts, check)?;
                Ok(Connected {
                    leg: Leg::Tunnel(stream),
                    open,
                    _outstanding: Some(outstanding),
                })
            }
            Err(error) => {
                drop(outstanding);
                Err(self.missed(&route.workload.uid, facts, error))
            }
        }
    }

    fn missed(&self, uid: &WorkloadUid, facts: Facts, error: Rc<LegError>) -> Missed {
        if error.blames_endpoint() {
            self.worker.shared.parts.traffic.totals().ejected();
            self.worker.endpoints.eject(uid);
        }
        if error.is_retryable() {
            return Missed::Retry(Box::new(Failed {
                workload: uid.clone(),
                facts,
                error,
            }));
        }
        Missed::Refused(self.leg_failed(&facts, &error))
    }

    fn head(&self, route: &TunnelRoute, source: Option<&Workload>) -> ConnectHead {
        let forwarded = Forwarded {
            client: Some(self.client),
            host: route.service.as_ref().map(|s| s.name.hostname.to_string()),
        };
        let trace = TraceParent {
            trace: self.trace.0,
            span: self.trace.1,
            flags: 0,
        };
        ConnectHead {
            authority: culvert_hbone::Authority::Address(route.authority),
            baggage: source.and_then(|source| crate::baggage::of(source).encode()),
            forwarded: forwarded.encode(),
            traceparent: Some(trace.encode()),
            keepalive: self.application_keepalive(),
        }
    }

    fn application_keepalive(&self) -> Option<Duration> {
        keepalive::of_application(self.worker, self.pod, self.client, self.destination)
    }

    async fn hand_over(
        &self,
        snapshot: &Arc<Snapshot>,
        route: &TunnelRoute,
        target: Arc<Pod>,
    ) -> Result<Connected, Missed> {
        let facts = self.tunnel_facts(route, Security::Local);
        let check = self.egress(route.authority, egress_peer(route));
        self.judge(snapshot, &facts, &check)?;
        let outstanding = self.worker.endpoints.enter(&route.workload.uid);
        let handed = local::connect(self.worker, snapshot, &target, &facts).await;
        match handed {
            Ok((far, inbound)) => {
                keepalive::mirror(&far, self.application_keepalive());
                let open = self.open(snapshot, facts, check)?;
                Ok(Connected {
                    leg: Leg::Local(far, inbound),
                    open,
                    _outstanding: Some(outstanding),
                })
            }
            Err(error) => {
                drop(outstanding);
                Err(self.missed(&route.workload.uid, facts, Rc::new(error)))
            }
        }
    }

    async fn plain(
        &self,
        snapshot: &Arc<Snapshot>,
        address: SocketAddr,
        workload: Option<Arc<Workload>>,
        service: Option<Arc<Service>>,
    ) -> Result<Connected, Missed> {
        let uid = workload.as_ref().map(|workload| workload.uid.clone());
        let facts = Facts {
            hop: address,
            destination: workload,
            service,
            ..self.facts()
        };
        let check = self.egress(address, uid.clone());
        self.judge(snapshot, &facts, &check)?;
        let outstanding = uid.as_ref().map(|uid| self.worker.endpoints.enter(uid));
        let options = ConnectOptions {
            source: None,
            mark: Some(PROXY_MARK),
        };
        let limit = if uid.is_some() {
            CONNECT_LIMIT
        } else {
            PLAIN_LIMIT
        };
        let home = &self.worker.shared.home;
        match dial(home, &self.pod.netns, address, &options, limit).await {
            Ok(stream) => {
                if let Err(error) = set_keepalive(&stream, &KEEPALIVE) {
                    tracing::debug!(%error, "a connection has no keepalive");
                }
                keepalive::mirror(&stream, self.application_keepalive());
                let open = self.open(snapshot, facts, check)?;
                Ok(Connected {
                    leg: Leg::Direct(AbortOnDrop::new(stream)),
                    open,
                    _outstanding: outstanding,
                })
            }
            Err(error) => {
                drop(outstanding);
                let error = Rc::new(LegError::Dial(error));
                match uid {
                    Some(uid) => Err(self.missed(&uid, facts, error)),
                    None => Err(Missed::Refused(self.leg_failed(&facts, &error))),
                }
            }
        }
    }

    fn egress(&self, destination: SocketAddr, workload: Option<WorkloadUid>) -> Check {
        Check {
            ingress: None,
            egress: Some(Egress {
                pod: Arc::clone(self.pod),
                destination,
                workload,
            }),
        }
    }

    /// The source's own policies.
    fn judge(&self, snapshot: &Snapshot, facts: &Facts, check: &Check) -> Result<(), Missed> {
        let Some((egress, source)) = check.egress.as_ref().zip(facts.source.as_ref()) else {
            return Ok(());
        };
        match egress.verdict(snapshot, source) {
            Verdict::Allow { dry_run, .. } => {
                crate::inbound::note_dry_run(facts, &dry_run);
                Ok(())
            }
            Verdict::Deny(denial) => Err(Missed::Refused(self.denied(facts, &denial))),
        }
    }

    fn denied(&self, facts: &Facts, denial: &Denial) -> Refusal {
        self.worker.connections.denied(facts, denial);
        let end = End::failed(Flag::Deny, denial.to_string());
        refuse(self.worker, facts, Category::Policy, end)
    }

    /// Opens the books. What was decided on a snapshot that has been replaced
    /// meanwhile is judged once more: the connection was not yet among those
    /// that are judged again by themselves.
    fn open(
        &self,
        decided_on: &Arc<Snapshot>,
        facts: Facts,
        check: Check,
    ) -> Result<OpenConnection, Missed> {
        let now = self.worker.shared.parts.state.snapshot();
        if !Arc::ptr_eq(&now, decided_on)
            && let Some(denial) = check.denial(&now)
        {
            return Err(Missed::Refused(self.denied(&facts, &denial)));
        }
        Ok(self.worker.connections.open(facts, check))
    }

    fn rejected(&self, reject: Reject) -> Refusal {
        self.worker.shared.parts.traffic.totals().rejected(reject);
        let end = End::failed(Flag::NoRoute, reject.to_string());
        refuse(self.worker, &self.facts(), Category::Unavailable, end)
    }

    fn leg_failed(&self, facts: &Facts, error: &LegError) -> Refusal {
        let end = End {
            refusal: error.refusal_id(),
            ..End::failed(error.flag(), chain(error).to_string())
        };
        refuse(self.worker, facts, error.category(), end)
    }
}

/// The workload that egress policies judge: behind a waypoint it is known only
/// when the application named it by its address.
fn egress_peer(route: &TunnelRoute) -> Option<WorkloadUid> {
    match route.hop {
        Hop::Endpoint => Some(route.workload.uid.clone()),
        Hop::Waypoint => route.named.as_ref().map(|workload| workload.uid.clone()),
    }
}
