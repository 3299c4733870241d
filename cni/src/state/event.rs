//! What goes into the state machine and what comes out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Request;
use crate::pods::Objects;
use crate::rules::{Connection as TcpConnection, PodRules, ProbeTarget};

/// A pod's UID.
pub type Uid = Arc<str>;
/// A CNI ADD in progress.
pub type RequestId = u64;
/// A connection of a node proxy; later ones have higher numbers.
pub type ConnectionId = u64;
/// Tells the sandboxes that a pod has had apart.
pub type Generation = u64;

/// A pod's network namespace as the container runtime announced it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// CNI_CONTAINERID.
    pub id: String,
    /// The pod's UID, where the runtime names it.
    pub uid: Option<Uid>,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Path of the network namespace.
    pub netns: PathBuf,
    /// The pod's addresses.
    pub ips: Vec<IpAddr>,
}

/// What the agent keeps on disk of a pod, so that its successor knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The pod.
    pub uid: Uid,
    /// Its network namespace.
    pub sandbox: Sandbox,
    /// Its rules were in place.
    pub captured: bool,
    /// Connections older than its enrolment.
    pub older: Vec<TcpConnection>,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// What an earlier agent left on disk. The first event.
    Restored(Vec<Record>),
    /// All objects of interest, as they are now.
    Objects(Arc<Objects>),
    /// CNI ADD.
    Add {
        /// To be answered once.
        request: RequestId,
        /// What the runtime says.
        sandbox: Sandbox,
    },
    /// CNI ADD has waited long enough.
    AddExpired(RequestId),
    /// CNI DEL of a sandbox.
    Removed(String),
    /// CNI GC: only these sandboxes are still there.
    Retain(BTreeSet<String>),
    /// A node proxy has connected and said hello.
    Connected(ConnectionId),
    /// Its connection is gone.
    Disconnected(ConnectionId),
    /// It has answered a request; an empty text is success.
    Acknowledged {
        /// Which proxy.
        connection: ConnectionId,
        /// Which request.
        sequence: u64,
        /// What it says.
        error: String,
    },
    /// A job has ended.
    JobDone {
        /// The pod.
        uid: Uid,
        /// Which job.
        attempt: u64,
        /// How.
        outcome: Result<JobDone, JobFault>,
    },
    /// The node's probe rules were written, or not.
    ProbesDone {
        /// Which writing.
        attempt: u64,
        /// Whether they stand.
        done: bool,
    },
    /// Time to try again what failed.
    Retry,
    /// Time to look at every pod again.
    Reassert,
}

/// Work inside one pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    /// Open the namespace and see that it is the pod's.
    Open,
    /// Bring the rules in.
    Install {
        /// Which.
        rules: PodRules,
        /// Older connections to spare: none means all that are open now.
        older: Option<Vec<TcpConnection>>,
    },
    /// Take the rules out.
    Uninstall,
}

/// A job's good end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobDone {
    /// The namespace is the pod's.
    Opened,
    /// The rules stand; these older connections are spared.
    Installed(Vec<TcpConnection>),
    /// No rule is left.
    Uninstalled,
}

/// A job's bad end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFault {
    /// Why.
    pub reason: String,
    /// The namespace does not exist any more.
    pub gone: bool,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write the record, before anything that follows.
    Save(Record),
    /// Remove the record of a sandbox.
    Forget(String),
    /// Close what is open of a pod's namespace.
    Release(Uid),
    /// Start a job; answer with [`Event::JobDone`].
    Start {
        /// The pod.
        uid: Uid,
        /// The number to answer with.
        attempt: u64,
        /// Its namespace.
        sandbox: Sandbox,
        /// What to do.
        job: Job,
    },
    /// Send a request to a node proxy; answer with [`Event::Acknowledged`].
    Send {
        /// Which proxy.
        connection: ConnectionId,
        /// The number to answer with.
        sequence: u64,
        /// What.
        request: Request,
    },
    /// Close the connection of a node proxy that does not keep to the protocol.
    Close(ConnectionId),
    /// Keep listening sockets of this pod when they come.
    KeepSockets(Uid),
    /// Close the kept sockets of this pod and take no more.
    DropSockets(Uid),
    /// Write the node's probe rules; answer with [`Event::ProbesDone`].
    SetProbes {
        /// The number to answer with.
        attempt: u64,
        /// All of them.
        targets: Vec<ProbeTarget>,
    },
    /// Tell the world whether a pod is enrolled.
    WriteStatus(Status),
    /// There is nothing to tell of this pod any more.
    RemoveStatus {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Answer a CNI ADD.
    Answer {
        /// Which.
        request: RequestId,
        /// How.
        answer: Result<Added, AddFault>,
    },
}

/// Whether a pod is enrolled, for people and for discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The pod.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its traffic passes the node proxy.
    pub enrolled: bool,
    /// Why, or why not.
    pub reason: String,
}

/// A CNI ADD that went well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Added {
    /// The pod is enrolled.
    Enrolled,
    /// It does not belong to the mesh, for this reason.
    NotEnrolled(String),
}

/// Why a CNI ADD failed; the runtime tries again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddFault {
    /// Work in the namespace failed.
    #[error("cannot redirect the pod's traffic: {0}")]
    Job(String),
    /// The node proxy cannot serve the pod.
    #[error("the node proxy cannot serve the pod: {0}")]
    Proxy(String),
    /// It took too long.
    #[error("not done in time: {0}")]
    Expired(String),
    /// The sandbox was deleted or replaced meanwhile.
    #[error("the sandbox was deleted or replaced meanwhile")]
    Superseded,
}

/// Numbers for metrics and readiness.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Pods whose traffic passes the node proxy.
    pub enrolled: usize,
    /// Pods that belong to the mesh but are not enrolled.
    pub not_captured: usize,
    /// Connections of node proxies.
    pub proxies: usize,
    /// The newest proxy knows of every pod.
    pub synchronized: bool,
}
