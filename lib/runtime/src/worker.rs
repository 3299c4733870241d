//! Single-threaded workers: one OS thread with one local runtime. A connection
//! and all that belongs to it lives on one of them.

use std::future::Future;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;

use crate::tasks::{End, TaskOutput, caught};

/// A worker could not be started.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The thread could not be made.
    #[error("could not start the thread of worker {name}")]
    Thread {
        /// The worker's name.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The thread's runtime could not be made: the worker ends with this.
    #[error("could not make the runtime of worker {name}")]
    Runtime {
        /// The worker's name.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// A running worker.
#[derive(Debug)]
pub struct WorkerHandle {
    ended: oneshot::Receiver<End>,
}

/// Starts a thread called `name` (the kernel shows its first 15 bytes) and runs
/// `body` on its own local runtime. When `body` returns, what was spawned on the
/// runtime is dropped and the thread ends.
///
/// # Errors
/// When the thread cannot be made. A runtime that cannot be made is the end of
/// the worker.
pub fn spawn_worker<B, F>(name: &str, body: B) -> Result<WorkerHandle, WorkerError>
where
    B: FnOnce() -> F + Send + 'static,
    F: Future<Output: TaskOutput> + 'static,
{
    let (report, ended) = oneshot::channel();
    let of = name.to_owned();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let end = run(of, body);
            // Nobody may be waiting any more; the end is then of no interest.
            let _ = report.send(end);
        })
        .map_err(|source| WorkerError::Thread {
            name: name.to_owned(),
            source,
        })?;
    Ok(WorkerHandle { ended })
}

fn run<B, F>(name: String, body: B) -> End
where
    B: FnOnce() -> F,
    F: Future<Output: TaskOutput> + 'static,
{
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default());
    match runtime {
        Ok(runtime) => runtime.block_on(caught(async { body().await })),
        Err(source) => End::Done(Err(WorkerError::Runtime { name, source }.into())),
    }
}

impl WorkerHandle {
    pub(crate) async fn end(self) -> End {
        self.ended
            .await
            .unwrap_or_else(|_| End::Panicked("the thread was lost".to_owned()))
    }

    /// Waits for the worker's end.
    ///
    /// # Errors
    /// The error of `body`, or its panic.
    pub async fn join(self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.end().await {
            End::Done(result) => result,
            End::Panicked(message) => Err(format!("panicked: {message}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runs_on_its_own_named_thread() {
        let worker = spawn_worker("worker-7", || async {
            let name = std::thread::current().name().map(str::to_owned);
            if name.as_deref() == Some("worker-7") {
                Ok(())
            } else {
                Err(format!("{name:?}"))
            }
        })
        .expect("threads can be made");
        worker.join().await.expect("the right thread");
    }

    #[tokio::test]
    async fn a_panic_is_reported() {
        let worker = spawn_worker("worker-8", || async {
            assert!(std::thread::current().name().is_none(), "boom");
        })
        .expect("starts");
        let error = worker.join().await.expect_err("it panicked");
        assert_eq!(error.to_string(), "panicked: boom");
    }
}
