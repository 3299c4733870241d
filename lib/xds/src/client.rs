//! Keeps a snapshot equal to what discovery says, for as long as the process
//! lives.
//!
//! The last good snapshot stays while there is no connection. A reconnect asks
//! only for differences. Nothing is published before workloads and policies are
//! both complete: workloads without their policies would be open.

mod state;
mod stream;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use culvert_model::Snapshot;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::kind::ResourceType;
use crate::session::{Node, Rejection};

pub use stream::Termination;

use state::State;

/// An error of the caller's own.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Makes a connection to discovery. TLS, keep-alive and the choice of a replica
/// are the caller's.
pub trait Connector: Send + Sync {
    /// Makes one attempt.
    fn connect(&self) -> impl Future<Output = Result<Channel, BoxError>> + Send;
}

impl<F, R> Connector for F
where
    F: Fn() -> R + Send + Sync,
    R: Future<Output = Result<Channel, BoxError>> + Send,
{
    fn connect(&self) -> impl Future<Output = Result<Channel, BoxError>> + Send {
        self()
    }
}

/// Reads the bearer token. Asked for each attempt to connect, because token
/// files are replaced while the process lives.
pub trait TokenSource: Send + Sync {
    /// The token; `None` to connect without one.
    ///
    /// # Errors
    /// When there should be a token and it cannot be read.
    fn token(&self) -> Result<Option<String>, BoxError>;
}

impl<F: Fn() -> Result<Option<String>, BoxError> + Send + Sync> TokenSource for F {
    fn token(&self) -> Result<Option<String>, BoxError> {
        self()
    }
}

/// Hears what happens, for metrics and readiness.
pub trait Observer: Send + Sync {
    /// A stream was opened.
    fn connected(&self) {}
    /// An attempt or a stream came to its end.
    fn terminated(&self, _reason: Termination) {}
    /// A response came, of that size in bytes.
    fn received(&self, _type_url: &str, _bytes: usize) {}
    /// A resource was refused.
    fn rejected(&self, _kind: ResourceType, _rejection: &Rejection) {}
    /// The type was answered for the first time.
    fn answered(&self, _kind: ResourceType) {}
    /// The first complete snapshot was published: the view can be used.
    fn ready(&self) {}
}

impl Observer for () {}

/// How the client behaves.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Who asks.
    pub node: Node,
    /// The network in which addresses are looked up; empty for the default one.
    pub network: Arc<str>,
    /// The wait after the first failure; doubles with each further one.
    pub backoff_min: Duration,
    /// The longest wait between attempts.
    pub backoff_max: Duration,
    /// How long an attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long the first response of a stream may take, and handing over a reply.
    pub response_timeout: Duration,
    /// Changes are published when none has come for this long…
    pub burst_quiet: Duration,
    /// …and at the latest after this long.
    pub burst_max: Duration,
    /// How long to wait for a type that only our own servers answer.
    pub optional_grace: Duration,
}

impl ClientConfig {
    /// The usual behaviour.
    pub fn new(node: Node, network: impl Into<Arc<str>>) -> Self {
        Self {
            node,
            network: network.into(),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(10),
            // Servers that start answer only when they know the whole cluster.
            response_timeout: Duration::from_secs(30),
            // One event in a cluster makes several messages within milliseconds;
            // nobody waits for a change to within a tenth of a second.
            burst_quiet: Duration::from_millis(10),
            burst_max: Duration::from_millis(100),
            // Our servers answer all types at once, others never do.
            optional_grace: Duration::from_secs(2),
        }
    }
}

/// A client of discovery.
#[derive(Debug)]
pub struct Client<C, T, O> {
    /// How it behaves.
    pub config: ClientConfig,
    /// How it connects.
    pub connector: C,
    /// How it proves who it is.
    pub token: T,
    /// Who hears what happens.
    pub observer: O,
}

impl<C: Connector, T: TokenSource, O: Observer> Client<C, T, O> {
    /// Runs until nobody holds a receiver of the snapshots any more.
    ///
    /// # Cancel safety
    /// Dropping the future closes the stream; what was published stays.
    pub async fn run(self, snapshots: watch::Sender<Arc<Snapshot>>) {
        let readers = snapshots.clone();
        let mut state = State::new(&self.config, snapshots);
        let mut wait = self.config.backoff_min;
        loop {
            let answers_before = state.responses;
            let end = tokio::select! {
                end = self.stream(&mut state) => end,
                () = readers.closed() => return,
            };
            state.flush_at_end(&self.observer);
            self.observer.terminated(end);
            // A server that answered works: what ended the stream is likely over.
            if state.responses > answers_before {
                wait = self.config.backoff_min;
            }
            tokio::select! {
                () = sleep(jittered(wait)) => {}
                () = readers.closed() => return,
            }
            wait = (wait * 2).min(self.config.backoff_max);
        }
    }
}

/// Between half of the wait and all of it, so that proxies do not come back together.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(0.5..=1.0))
}
