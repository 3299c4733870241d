//! Critical tasks: the process does not live without them.

use std::any::Any;
use std::error::Error;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::chain;
use crate::drain::Drain;
use crate::worker::{WorkerError, spawn_worker};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// What a task may end with: nothing, or a result.
pub trait TaskOutput: Send + 'static {
    /// The end as the supervisor sees it.
    ///
    /// # Errors
    /// The task's own error.
    fn into_result(self) -> Result<(), Box<dyn Error + Send + Sync>>;
}

impl TaskOutput for () {
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError> + Send + 'static> TaskOutput for Result<(), E> {
    fn into_result(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}

/// A critical task ended although nobody asked the process to.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The task returned.
    #[error("task {name} ended unexpectedly")]
    Ended {
        /// The task's name.
        name: String,
    },
    /// The task returned an error.
    #[error("task {name} failed")]
    Failed {
        /// The task's name.
        name: String,
        /// Its error.
        #[source]
        source: BoxError,
    },
    /// The task panicked; also an error while draining.
    #[error("task {name} panicked: {message}")]
    Panicked {
        /// The task's name.
        name: String,
        /// The panic's message.
        message: String,
    },
}

pub(crate) enum End {
    Done(Result<(), BoxError>),
    Panicked(String),
}

/// The critical tasks of a process, by name.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<(String, End)>,
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done(result) => f.debug_tuple("Done").field(result).finish(),
            Self::Panicked(message) => f.debug_tuple("Panicked").field(message).finish(),
        }
    }
}

impl Tasks {
    /// No tasks yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a critical task on the current runtime. It should end once the
    /// drain is over; any earlier end drains and ends the process.
    pub fn critical<F>(&mut self, name: impl Into<String>, task: F)
    where
        F: Future<Output: TaskOutput> + Send + 'static,
    {
        let name = name.into();
        self.set.spawn(async move { (name, caught(task).await) });
    }

    /// Starts a critical single-threaded worker: a named OS thread with a local
    /// runtime, on which `body` runs.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn worker<B, F>(&mut self, name: impl Into<String>, body: B) -> Result<(), WorkerError>
    where
        B: FnOnce() -> F + Send + 'static,
        F: Future<Output: TaskOutput> + 'static,
    {
        let name = name.into();
        let worker = spawn_worker(&name, body)?;
        self.set.spawn(async move { (name, worker.end().await) });
        Ok(())
    }

    /// Waits for the end of the process: until the drain has started and every
    /// task has ended, or the drain's deadline is over (the rest is aborted).
    /// A task that ends earlier starts the drain.
    ///
    /// # Errors
    /// The first task that ended unexpectedly or panicked.
    pub async fn wait(mut self, drain: &Drain) -> Result<(), TaskError> {
        let watch = drain.watch();
        let mut first = None;
        loop {
            let stopped = async {
                watch.stopped().await;
                // Tasks that watch the same signal get a moment to return.
                tokio::time::sleep_until(Instant::now() + AFTER_STOP).await;
            };
            let joined = tokio::select! {
                joined = self.set.join_next() => joined,
                () = stopped => break,
            };
            let Some(joined) = joined else { break };
            // `caught` leaves only an abort to be seen here, which we never do.
            let Ok((name, end)) = joined else { continue };
            if let Some(error) = judge(name, end, watch.is_draining()) {
                tracing::error!(error = chain(&error), "critical task ended");
                drain.start("a critical task ended");
                first.get_or_insert(error);
            }
        }
        self.set.shutdown().await;
        first.map_or(Ok(()), Err)
    }
}

/// How long tasks that end by the stop signal itself may take to return:
/// enough for a scheduled wake-up on a loaded machine, short for a human.
const AFTER_STOP: std::time::Duration = std::time::Duration::from_millis(500);

fn judge(name: String, end: End, draining: bool) -> Option<TaskError> {
    match end {
        End::Panicked(message) => Some(TaskError::Panicked { name, message }),
        End::Done(Ok(())) if draining => None,
        End::Done(Ok(())) => Some(TaskError::Ended { name }),
        End::Done(Err(source)) if draining => {
            tracing::warn!(
                task = name,
                error = chain(&*source),
                "task failed while draining"
            );
            None
        }
        End::Done(Err(source)) => Some(TaskError::Failed { name, source }),
    }
}

pub(crate) async fn caught<F: Future<Output: TaskOutput>>(task: F) -> End {
    match AssertUnwindSafe(task).catch_unwind().await {
        Ok(output) => End::Done(output.into_result()),
        Err(panic) => End::Panicked(panic_message(&*panic)),
    }
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    #[derive(Debug, thiserror::Error)]
    #[error("socket lost")]
    struct Lost;

    #[tokio::test(start_paused = true)]
    async fn an_early_end_drains_and_is_the_error() {
        let drain = Drain::new(DEADLINE);
        let mut tasks = Tasks::new();
        let watch = drain.watch();
        tasks.critical("steady", async move { watch.stopped().await });
        tasks.critical("short", async {});
        let error = tasks.wait(&drain).await.expect_err("a task ended");
        assert_eq!(error.to_string(), "task short ended unexpectedly");
        assert!(drain.watch().is_draining());
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_names_task_and_cause() {
        let drain = Drain::new(DEADLINE);
        let mut tasks = Tasks::new();
        tasks.critical("accept", async { Err::<(), _>(Lost) });
        let error = tasks.wait(&drain).await.expect_err("a task failed");
        assert_eq!(chain(&error), "task accept failed: socket lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_an_error_also_while_draining() {
        let drain = Drain::new(DEADLINE);
        let mut tasks = Tasks::new();
        let watch = drain.watch();
        tasks.critical("accept", async move {
            watch.started().await;
            assert!(!watch.is_draining(), "boom");
        });
        drain.start("test");
        let error = tasks.wait(&drain).await.expect_err("a task panicked");
        assert_eq!(error.to_string(), "task accept panicked: boom");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_well_and_aborts_what_stays() {
        let drain = Drain::new(DEADLINE);
        let mut tasks = Tasks::new();
        tasks.critical("stuck", std::future::pending::<()>());
        let watch = drain.watch();
        tasks.critical("good", async move {
            watch.started().await;
        });
        drain.start("test");
        let begin = Instant::now();
        tasks.wait(&drain).await.expect("a drain is no error");
        assert!(begin.elapsed() >= DEADLINE);
    }

    #[tokio::test]
    async fn a_worker_is_supervised() {
        let drain = Drain::new(DEADLINE);
        let mut tasks = Tasks::new();
        tasks
            .worker("worker-0", || async {
                tokio::task::spawn_local(async {})
                    .await
                    .expect("runs on a local runtime");
                Err::<(), _>(Lost)
            })
            .expect("threads can be made");
        let error = tasks.wait(&drain).await.expect_err("the worker failed");
        assert_eq!(chain(&error), "task worker-0 failed: socket lost");
    }
}
