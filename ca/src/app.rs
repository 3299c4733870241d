//! The program put together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use culvert_identity::Identity;
use culvert_runtime::{
    Clock, ConditionHandle, Drain, DrainWatch, Process, Readiness, SystemClock, chain,
};
use culvert_tls::ControlPlaneServer;
use culvert_token::JwksReviewer;
use tokio::net::TcpListener;

use crate::admin;
use crate::authorize::{Authorizer, Rules};
use crate::config::Config;
use crate::issue::{AuthorityFault, CertificateRequest, Issuer, OwnCertificate, Setting};
use crate::metrics::CaMetrics;
use crate::pods::{DirectoryPods, PodsByNode};
use crate::rotate::Wish;
use crate::serve::Server;
use crate::service::{CertificateService, Parts};
use crate::store::Store;

/// Certificates are renewed and rotation goes on by the wall clock, looked at
/// this often: a machine that slept is late by no more than this.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the program until it is told to stop.
///
/// # Errors
/// When it cannot start, or a critical task fails.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let mut process = Process::start("ca", env!("CARGO_PKG_VERSION"), &config.process)?;
    let metrics = CaMetrics::new(&process.metrics);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let ca = Arc::new(Ca::open(&config, clock, metrics)?);
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    let routes = admin::routes(Arc::clone(&ca), config.effective.clone());
    process
        .serve_admin(&config.process, config.effective.clone(), routes)
        .await?;
    let watch = process.drain.watch();
    tracing::info!(address = %listener.local_addr()?, "serving certificates");
    process
        .tasks
        .critical("serve", serve(ca.server(), listener, process.drain.clone()));
    let conditions = Conditions::new(&process.readiness);
    process
        .tasks
        .critical("reconcile", Arc::clone(&ca).keep(conditions, watch));
    Ok(process.wait().await?)
}

/// Serves until the drain, and ends it once the last request is answered.
async fn serve(server: Server, listener: TcpListener, drain: Drain) {
    server.run(listener, drain.watch()).await;
    drain.stop("every request is answered");
}

/// Everything of the CA but its ports.
#[derive(Debug)]
pub struct Ca {
    issuer: Arc<Issuer>,
    reviewer: Arc<JwksReviewer>,
    pods: Arc<DirectoryPods>,
    clock: Arc<dyn Clock>,
    metrics: CaMetrics,
    own: Own,
    server: Server,
}

/// The CA's own server certificate.
#[derive(Debug)]
struct Own {
    identity: Identity,
    dns_names: Vec<String>,
    tls: ControlPlaneServer,
    current: Mutex<OwnCertificate>,
}

impl Ca {
    /// Takes up the state, makes the server certificate.
    ///
    /// # Errors
    /// When the state cannot be read or written.
    pub fn open(
        config: &Config,
        clock: Arc<dyn Clock>,
        metrics: CaMetrics,
    ) -> anyhow::Result<Self> {
        let store = Store::open(&config.state_directory)?;
        let setting = Setting {
            trust_domain: config.trust_domain.clone(),
            lifetimes: config.lifetimes,
            bundle_file: config.bundle_file.clone(),
        };
        let now = clock.now();
        let issuer = Arc::new(Issuer::open(store, setting, now)?);
        issuer.reconcile(now)?;
        metrics.authority(&issuer.state());
        let own = Own::issue(config, &issuer, now)?;
        let reviewer = Arc::new(JwksReviewer::with_time(&config.jwks_file, {
            let clock = Arc::clone(&clock);
            Arc::new(move || clock.now())
        }));
        let pods = Arc::new(DirectoryPods::new(&config.objects_directory));
        let rules = Rules {
            trust_domain: config.trust_domain.clone(),
            node_accounts: config.node_accounts.clone(),
        };
        let service = CertificateService::new(Parts {
            reviewer: Arc::clone(&reviewer) as _,
            authorizer: Authorizer::new(rules, Arc::clone(&pods) as _, metrics.clone()),
            issuer: Arc::clone(&issuer),
            cluster_domain: config.process.cluster_domain.clone(),
            clock: Arc::clone(&clock),
            metrics: metrics.clone(),
        });
        Ok(Self {
            server: Server::new(own.tls.clone(), service, metrics.clone()),
            issuer,
            reviewer,
            pods,
            clock,
            metrics,
            own,
        })
    }

    /// What signs.
    #[must_use]
    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// The listening half.
    #[must_use]
    pub fn server(&self) -> Server {
        self.server.clone()
    }

    /// Fulfils an operator's wish for a rotation.
    ///
    /// # Errors
    /// When it is not possible now.
    pub fn fulfil(&self, wish: Wish) -> Result<(), AuthorityFault> {
        let done = self.issuer.fulfil(wish, self.clock.now());
        self.after_change();
        done
    }

    /// Makes what is due: rotation steps, the bundle file, the server
    /// certificate.
    ///
    /// # Errors
    /// When the state cannot be kept or the bundle not published.
    pub fn reconcile(&self) -> Result<(), AuthorityFault> {
        let done = self.issuer.reconcile(self.clock.now());
        self.after_change();
        done
    }

    fn after_change(&self) {
        self.metrics.authority(&self.issuer.state());
        if let Err(error) = self.own.renew(&self.issuer, self.clock.now()) {
            // The certificate in use stays until it really expires.
            tracing::error!(error = chain(&error), "cannot renew the server certificate");
            self.metrics.reconcile_failed();
        }
        self.metrics.server_certificate(self.own.expires());
    }

    /// Reconciles until the drain starts, and keeps readiness true to life.
    ///
    /// # Cancel safety
    /// Every pass is complete in itself.
    pub async fn keep(self: Arc<Self>, conditions: Conditions, drain: DrainWatch) {
        let mut ticks = tokio::time::interval(RECONCILE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = drain.started() => return,
            }
            let outcome = self.reconcile();
            if let Err(error) = &outcome {
                self.metrics.reconcile_failed();
                tracing::error!(error = chain(error), "cannot reconcile the authority");
            }
            conditions.set(&self.conditions(outcome).await);
        }
    }

    async fn conditions(&self, reconciled: Result<(), AuthorityFault>) -> [Option<String>; 3] {
        let now = self.clock.now();
        let authority = match reconciled {
            Err(error) => Some(chain(&error)),
            Ok(()) if self.issuer.signs_until() <= now => Some("intermediate has expired".into()),
            Ok(()) => None,
        };
        let keys = self.reviewer.check().err().map(|error| chain(&error));
        let placement = self.pods.placement(RECONCILE_INTERVAL).await;
        let placement = placement.err().map(|error| chain(&error));
        [authority, keys, placement]
    }
}

impl Own {
    fn issue(config: &Config, issuer: &Issuer, now: SystemTime) -> anyhow::Result<Self> {
        let identity = Identity::new(&config.trust_domain, "culvert-system", "culvert-ca")?;
        let dns_names = config.server_names.clone();
        let request = CertificateRequest::own(&identity, &dns_names);
        let current = issuer
            .issue_own(&request, now)
            .context("cannot issue the server certificate")?;
        Ok(Self {
            tls: ControlPlaneServer::new(&current.certificate),
            current: Mutex::new(current),
            identity,
            dns_names,
        })
    }

    /// Issues another one at half life, or when something else signs now.
    fn renew(&self, issuer: &Issuer, now: SystemTime) -> Result<(), culvert_tls::ca::IssueError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let young = now < current.certificate.certificate().half_life();
        if young && current.signed_by == issuer.signed_by() {
            return Ok(());
        }
        let request = CertificateRequest::own(&self.identity, &self.dns_names);
        *current = issuer.issue_own(&request, now)?;
        self.tls.replace(&current.certificate);
        tracing::info!(
            serial = current.certificate.certificate().serial(),
            "renewed the server certificate"
        );
        Ok(())
    }

    fn expires(&self) -> SystemTime {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.certificate.certificate().not_after()
    }
}

/// The conditions of readiness, in the order of `Ca::conditions`.
#[derive(Debug)]
pub struct Conditions([ConditionHandle; 3]);

impl Conditions {
    /// Adds the conditions of the CA.
    #[must_use]
    pub fn new(readiness: &Readiness) -> Self {
        Self(["authority", "token-keys", "objects"].map(|name| readiness.condition(name)))
    }

    fn set(&self, unmet: &[Option<String>; 3]) {
        for (condition, reason) in self.0.iter().zip(unmet) {
            match reason {
                None => condition.set_ready(),
                Some(reason) => condition.set_not_ready(reason),
            }
        }
    }
}

impl<'a> CertificateRequest<'a> {
    fn own(identity: &'a Identity, dns_names: &'a [String]) -> Self {
        Self {
            identity,
            dns_names,
            lifetime: Duration::ZERO,
        }
    }
}
