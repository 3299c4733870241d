//! The DNS proxy: answers the names of the mesh to the pods of this node and sends
//! everything else on, byte for byte.
//!
//! A thread of its own serves the sockets of all pods: names are neither control work
//! nor on the path of a connection's bytes. `answer` decides, without IO.

pub mod answer;
mod forward;
mod metrics;
pub mod names;
pub mod resolv;
mod serve;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use culvert_netns::{Netns, NetnsError};
use culvert_runtime::{ConnectionTracker, DrainWatch};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::pods::{DnsSockets, Pod};
use crate::state::State;
use forward::{Forwarder, MESSAGE_BYTES_MAX};
pub use metrics::DnsMetrics;
use resolv::ResolvFile;
use serve::Resolver;

/// Queries of one pod that wait for a server, and its connections. A pod whose server
/// is dead has this many under way at 25 new queries a second.
const IN_FLIGHT_MAX: usize = 256;
/// Pods come one at a time.
const COMMANDS_MAX: usize = 16;
/// Tasks that are aborted are gone at their next turn.
const STOP_DEADLINE: Duration = Duration::from_secs(1);

/// What the DNS proxy needs to know.
#[derive(Debug, Clone)]
pub struct DnsConfig {
    /// The domain of services.
    pub domain: Arc<str>,
    /// The machine's servers.
    pub resolv_conf: PathBuf,
}

/// Tells the DNS proxy's thread what to serve. Clones share it.
#[derive(Debug, Clone)]
pub struct Dns {
    commands: mpsc::Sender<Command>,
}

#[derive(Debug)]
enum Command {
    Add(Arc<Pod>, DnsSockets, oneshot::Sender<std::io::Result<()>>),
    Remove(Arc<str>, oneshot::Sender<()>),
}

/// Why a pod's names are not answered.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// A socket could not be used.
    #[error("cannot serve the DNS sockets of a pod")]
    Sockets(#[source] std::io::Error),
    /// The thread has ended.
    #[error("the DNS proxy is stopping")]
    Stopping,
}

impl Dns {
    /// The handle, and what the thread is to run.
    ///
    /// # Errors
    /// When the namespace of the process cannot be opened.
    pub fn new(
        config: DnsConfig,
        state: State,
        metrics: DnsMetrics,
    ) -> Result<(Self, DnsThread), NetnsError> {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let home = Netns::current()?;
        Ok((
            Self { commands: sender },
            DnsThread {
                commands,
                config,
                state,
                metrics,
                home,
            },
        ))
    }

    /// Answers the queries that come to a pod's sockets.
    ///
    /// # Errors
    /// When the sockets cannot be used.
    pub async fn add_pod(&self, pod: Arc<Pod>, sockets: DnsSockets) -> Result<(), DnsError> {
        let (answer, answered) = oneshot::channel();
        let command = Command::Add(pod, sockets, answer);
        self.commands
            .send(command)
            .await
            .map_err(|_| DnsError::Stopping)?;
        answered
            .await
            .map_err(|_| DnsError::Stopping)?
            .map_err(DnsError::Sockets)
    }

    /// Closes a pod's sockets; its queries under way stay unanswered.
    pub async fn remove_pod(&self, uid: Arc<str>) {
        let (answer, answered) = oneshot::channel();
        if self
            .commands
            .send(Command::Remove(uid, answer))
            .await
            .is_ok()
        {
            // An error means that the thread has ended, and with it the sockets.
            let _ = answered.await;
        }
    }
}

/// What the DNS proxy's thread runs.
#[derive(Debug)]
pub struct DnsThread {
    commands: mpsc::Receiver<Command>,
    config: DnsConfig,
    state: State,
    metrics: DnsMetrics,
    home: Netns,
}

impl DnsThread {
    /// Runs on a local runtime until the process stops: names are answered while it
    /// drains.
    pub async fn run(mut self, drain: DrainWatch) {
        let forwarder = Rc::new(Forwarder {
            file: RefCell::new(ResolvFile::new(self.config.resolv_conf.clone())),
            home: self.home.clone(),
            metrics: self.metrics.clone(),
            scratch: Rc::new(RefCell::new(vec![0; MESSAGE_BYTES_MAX])),
        });
        let mut pods: HashMap<Arc<str>, ConnectionTracker> = HashMap::new();
        loop {
            let command = tokio::select! {
                () = drain.stopped() => return,
                command = self.commands.recv() => command,
            };
            match command {
                // Nobody brings or takes pods any more; those that are here stay.
                None => return drain.stopped().await,
                Some(Command::Add(pod, sockets, answer)) => {
                    let uid = pod.uid.clone();
                    if let Some(before) = pods.remove(&uid) {
                        stop(&before).await;
                    }
                    let resolver = Resolver {
                        pod,
                        state: self.state.clone(),
                        domain: self.config.domain.clone(),
                        forwarder: Rc::clone(&forwarder),
                        tracker: ConnectionTracker::new(IN_FLIGHT_MAX),
                    };
                    let tracker = resolver.tracker.clone();
                    let result = serve(&Rc::new(resolver), sockets);
                    pods.insert(uid, tracker);
                    // Nobody waits any more only when the start took too long; a stop
                    // follows then.
                    let _ = answer.send(result);
                }
                Some(Command::Remove(uid, answer)) => {
                    if let Some(tracker) = pods.remove(&uid) {
                        stop(&tracker).await;
                    }
                    let _ = answer.send(());
                }
            }
        }
    }
}

/// Ends the loops of a pod, which closes its sockets.
async fn stop(tracker: &ConnectionTracker) {
    tracker.abort_all();
    tracker.wait_drained(Instant::now() + STOP_DEADLINE).await;
}

fn serve(resolver: &Rc<Resolver>, sockets: DnsSockets) -> std::io::Result<()> {
    // The loops live in the pod's own tracker, which is empty yet.
    let full = |_| std::io::Error::from(std::io::ErrorKind::QuotaExceeded);
    for socket in sockets.udp {
        let socket = UdpSocket::from_std(socket)?;
        resolver
            .tracker
            .spawn_local(Rc::clone(resolver).serve_udp(socket))
            .map_err(full)?;
    }
    for listener in sockets.tcp {
        let listener = TcpListener::from_std(listener)?;
        resolver
            .tracker
            .spawn_local(Rc::clone(resolver).serve_tcp(listener))
            .map_err(full)?;
    }
    Ok(())
}
