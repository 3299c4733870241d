//! The one task that asks for certificates.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_identity::Identity;
use culvert_runtime::{Clock, DrainWatch, chain};
use culvert_tls::{CertificateStore, IssuedCertificate};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::authority::{Authority, IssueError};
use super::metrics::{CertificateMetrics, RequestResult};
use super::schedule::{Now, Schedule, renew_at};
use super::{COMMANDS_MAX, Command, Failures};

/// The wall clock may jump, or stand still while the machine sleeps: it is looked at
/// at least this often.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

type Answer = oneshot::Sender<Result<(), Arc<str>>>;
type Asking = Pin<Box<dyn Future<Output = Asked> + Send>>;

/// Connections of one pod that wait for its first certificate; the rest is refused.
const WAITERS_MAX: usize = 1024;

/// What came of a request.
struct Asked {
    identity: Identity,
    began: Instant,
    result: Result<IssuedCertificate, IssueError>,
}

/// Gets certificates until the process ends.
#[derive(Debug)]
pub struct CertificateTask<A> {
    authority: Arc<A>,
    commands: mpsc::Receiver<Command>,
    store: Arc<CertificateStore>,
    clock: Arc<dyn Clock>,
    metrics: Option<CertificateMetrics>,
    schedule: Schedule,
    waiting: HashMap<Identity, Vec<Answer>>,
    failures: Failures,
}

impl<A: Authority> CertificateTask<A> {
    pub(crate) fn new(
        authority: A,
        commands: mpsc::Receiver<Command>,
        store: Arc<CertificateStore>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            authority: Arc::new(authority),
            commands,
            store,
            clock,
            metrics: None,
            schedule: Schedule::default(),
            waiting: HashMap::new(),
            failures: Failures::default(),
        }
    }

    pub(crate) fn with_metrics(self, metrics: CertificateMetrics) -> Self {
        Self {
            metrics: Some(metrics),
            ..self
        }
    }

    pub(crate) fn failures(&self) -> Failures {
        self.failures.clone()
    }

    /// Runs until the process stops: also while it drains, since connections that
    /// still come need certificates.
    pub async fn run(mut self, drain: DrainWatch) {
        let mut asking = FuturesUnordered::new();
        let mut batch = Vec::new();
        loop {
            while let Some(identity) = self.schedule.next(self.now()) {
                asking.push(self.ask(identity));
            }
            let idle = self
                .schedule
                .idle(self.now())
                .unwrap_or(LOOK_AGAIN)
                .min(LOOK_AGAIN);
            tokio::select! {
                () = drain.stopped() => return,
                count = self.commands.recv_many(&mut batch, COMMANDS_MAX) => {
                    if count == 0 {
                        return;
                    }
                    for command in batch.drain(..) {
                        self.command(command);
                    }
                }
                Some(asked) = asking.next() => self.asked(asked),
                () = tokio::time::sleep(idle) => {}
            }
        }
    }

    fn now(&self) -> Now {
        Now {
            steady: Instant::now(),
            wall: self.clock.now(),
        }
    }

    fn ask(&self, identity: Identity) -> Asking {
        let authority = Arc::clone(&self.authority);
        if let Some(metrics) = &self.metrics {
            metrics.asked();
        }
        Box::pin(async move {
            let began = Instant::now();
            let result = authority.issue(&identity).await;
            Asked {
                identity,
                began,
                result,
            }
        })
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Acquire(identity) => self.schedule.acquire(&identity),
            Command::Release(identity) => {
                if self.schedule.release(&identity) {
                    self.store.forget(&identity);
                    self.failures.clear(&identity);
                    self.answer(&identity, &Err("its last pod is gone".into()));
                }
            }
            Command::Demand(identity, answer) => self.demand(identity, answer),
        }
    }

    fn demand(&mut self, identity: Identity, answer: Answer) {
        let refusal = if !self.schedule.contains(&identity) {
            "no pod of this node has it"
        } else if self.store.usable(&identity, self.clock.now()).is_some() {
            // It came while the demand was on its way.
            let _ = answer.send(Ok(()));
            return;
        } else {
            self.schedule.demand(&identity);
            let waiting = self.waiting.entry(identity).or_default();
            waiting.retain(|waiter| !waiter.is_closed());
            if waiting.len() < WAITERS_MAX {
                waiting.push(answer);
                return;
            }
            "too many connections wait for it"
        };
        // A caller that has gone needs no answer.
        let _ = answer.send(Err(refusal.into()));
    }

    fn asked(
        &mut self,
        Asked {
            identity,
            began,
            result,
        }: Asked,
    ) {
        let result = self.take(&identity, result);
        if let Some(metrics) = &self.metrics {
            let label = result
                .as_ref()
                .map_or_else(IssueError::result, |()| RequestResult::issued);
            metrics.answered(label, began.elapsed().as_secs_f64());
        }
        match result {
            Ok(()) => {
                self.failures.clear(&identity);
                self.answer(&identity, &Ok(()));
            }
            Err(error) => {
                let text = chain(&error);
                tracing::warn!(%identity, error = text, "certificate request failed");
                self.schedule.failed(&identity, self.now());
                if self.is_waited_for(&identity) {
                    self.schedule.demand(&identity);
                }
                if self.schedule.contains(&identity) {
                    self.failures.note(identity, text.into());
                }
            }
        }
    }

    /// Whether a connection still waits for a certificate.
    fn is_waited_for(&self, identity: &Identity) -> bool {
        let waiting = self.waiting.get(identity);
        waiting.is_some_and(|waiting| waiting.iter().any(|waiter| !waiter.is_closed()))
    }

    /// Takes an answer into use, if it is better than what there is.
    fn take(
        &mut self,
        identity: &Identity,
        result: Result<IssuedCertificate, IssueError>,
    ) -> Result<(), IssueError> {
        let issued = result?;
        let now = self.now();
        issued.check(now.wall).map_err(IssueError::Useless)?;
        if !self.schedule.contains(identity) {
            return Ok(());
        }
        let certificate = issued.certificate();
        let (from, until) = (certificate.not_before(), certificate.not_after());
        let serial = certificate.serial().to_owned();
        self.store
            .set(issued)
            .map_err(|error| IssueError::Answer(culvert_tls::AnswerError::Roots(error)))?;
        self.schedule
            .issued(identity, renew_at(from, until, rand::random()), now);
        tracing::info!(%identity, serial, "certificate issued");
        Ok(())
    }

    fn answer(&mut self, identity: &Identity, result: &Result<(), Arc<str>>) {
        for waiter in self.waiting.remove(identity).unwrap_or_default() {
            let _ = waiter.send(result.clone());
        }
    }
}
