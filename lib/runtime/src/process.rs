//! The paved road: the parts that every program starts with, in order.

use axum::Router;

use crate::admin::{Admin, AdminError, BoundAddresses};
use crate::config::ProcessConfig;
use crate::drain::Drain;
use crate::limits::raise_file_limit;
use crate::logging::{LogHandle, init_logging};
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::tasks::{TaskError, Tasks};
use crate::{AdminListeners, chain};

/// What a running program is made of, besides its own modules.
#[derive(Debug)]
pub struct Process {
    /// The program's name, as in its metrics.
    pub component: &'static str,
    /// The log.
    pub log: LogHandle,
    /// The metrics registry, with process and build metrics in it.
    pub metrics: Metrics,
    /// Why the program is not ready, if it is not.
    pub readiness: Readiness,
    /// The end of the program; SIGTERM and SIGINT start it.
    pub drain: Drain,
    /// The critical tasks.
    pub tasks: Tasks,
}

/// A program could not start or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A critical task ended.
    #[error("stopped early")]
    Task(#[source] TaskError),
}

impl Process {
    /// Starts log, metrics and signal handling and raises the file limit.
    /// Must run inside a tokio runtime.
    ///
    /// # Errors
    /// None today; kept so that a start that can fail does not change callers.
    pub fn start(
        component: &'static str,
        version: &str,
        process_config: &ProcessConfig,
    ) -> Result<Self, ProcessError> {
        let log = init_logging(process_config.log_format, &process_config.log_level);
        tracing::info!(component, version, "starting");
        match raise_file_limit() {
            Ok(limit) => tracing::info!(before = limit.before, now = limit.now, "open file limit"),
            // Work goes on with the lower limit; the metric shows it.
            Err(error) => tracing::warn!(error = chain(&error), "open file limit"),
        }
        let metrics = Metrics::for_process(component, version, &log);
        let drain = Drain::new(process_config.drain_deadline);
        let mut tasks = Tasks::new();
        tasks.critical("signals", drain.clone().on_signals());
        Ok(Self {
            component,
            log,
            metrics,
            readiness: Readiness::new(),
            drain,
            tasks,
        })
    }

    /// Opens the admin, metrics and readiness ports and serves them as a
    /// critical task. `extra` is merged into the admin port's routes.
    ///
    /// # Errors
    /// When a port cannot be opened.
    pub async fn serve_admin(
        &mut self,
        process_config: &ProcessConfig,
        effective: serde_json::Value,
        extra: Router,
    ) -> Result<BoundAddresses, AdminError> {
        let listeners = AdminListeners::bind(&process_config.admin).await?;
        let addresses = listeners.addresses();
        let admin = Admin {
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            log: self.log.clone(),
            drain: self.drain.clone(),
            config: effective,
            extra,
        };
        self.tasks.critical("admin", listeners.serve(admin));
        Ok(addresses)
    }

    /// Waits for the end: see [`Tasks::wait`].
    ///
    /// # Errors
    /// When a critical task ended early: `main` returns it, so that the exit
    /// code is not zero.
    pub async fn wait(self) -> Result<(), ProcessError> {
        let ended = self.tasks.wait(&self.drain).await;
        tracing::info!(component = self.component, "stopped");
        ended.map_err(ProcessError::Task)
    }
}
