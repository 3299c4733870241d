//! Serves pods on this node: opens their sockets and hands them to the workers and to
//! the DNS proxy.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use culvert_identity::{Identity, TrustDomain};
use culvert_model::WorkloadUid;
use culvert_netns::Netns;
use culvert_runtime::chain;

use super::client::Host;
use super::keeper::Keeper;
use super::packet::Addition;
use super::pod::{Pod, PodDiag, PodListeners};
use super::session::{SocketsKept, StopMode};
use super::sockets::{self, KeptSocket};
use crate::certs::Certificates;
use crate::dns::Dns;
use crate::workers::Workers;

/// The workers, as far as pods are concerned.
pub trait DataPath: Send + Sync + 'static {
    /// Starts to accept on a pod's listeners.
    fn add_pod(
        &self,
        pod: Arc<Pod>,
        listeners: PodListeners,
    ) -> impl Future<Output = Result<(), String>> + Send;

    /// Closes a pod's listeners, and in the end its connections. Fine for a pod that is
    /// not there.
    fn remove_pod(&self, uid: &Arc<str>, mode: StopMode) -> impl Future<Output = ()> + Send;
}

/// What all pods of a node have in common.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The mesh's trust domain.
    pub trust_domain: TrustDomain,
    /// The cluster, the first part of a workload's key.
    pub cluster_id: String,
}

/// Serves pods.
#[derive(Debug)]
pub struct NodeHost<D> {
    config: NodeConfig,
    data: D,
    certificates: Certificates,
    /// None when names are not answered here.
    dns: Option<Dns>,
    /// None when the agent keeps no sockets.
    keeper: Option<Keeper>,
    // Held for one map operation, never across an await.
    served: Mutex<HashMap<Arc<str>, Served>>,
}

#[derive(Debug)]
struct Served {
    identity: Identity,
    /// The certificate was asked for, so that it must be given back.
    acquired: bool,
    /// For an agent that comes back; closed with the pod.
    duplicates: Arc<[KeptSocket]>,
}

impl<D: DataPath> NodeHost<D> {
    /// A host with no pods.
    #[must_use]
    pub fn new(config: NodeConfig, data: D, certificates: Certificates) -> Self {
        let served = Mutex::default();
        Self {
            config,
            data,
            certificates,
            dns: None,
            keeper: None,
            served,
        }
    }

    /// Answers the names that pods ask for.
    #[must_use]
    pub fn with_dns(self, dns: Option<Dns>) -> Self {
        Self { dns, ..self }
    }

    /// Lets the agent keep sockets.
    #[must_use]
    pub fn with_keeper(self, keeper: Option<Keeper>) -> Self {
        Self { keeper, ..self }
    }

    fn served(&self) -> MutexGuard<'_, HashMap<Arc<str>, Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pod(&self, addition: &Addition<Netns>) -> Result<Pod, String> {
        let info = &addition.info;
        let NodeConfig {
            trust_domain,
            cluster_id,
        } = &self.config;
        let identity = Identity::new(trust_domain, &info.namespace, &info.service_account)
            .map_err(|error| chain(&error))?;
        let workload = format!("{cluster_id}//Pod/{}/{}", info.namespace, info.name);
        Ok(Pod {
            uid: addition.uid.clone(),
            name: info.name.clone(),
            namespace: info.namespace.clone(),
            identity,
            workload: WorkloadUid::new(workload),
            netns: addition.netns.clone(),
            diag: PodDiag::default(),
        })
    }

    async fn inherited(&self, uid: &str) -> Vec<KeptSocket> {
        let Some(keeper) = &self.keeper else {
            return Vec::new();
        };
        keeper.take(uid).await.unwrap_or_else(|error| {
            tracing::warn!(uid, error = chain(&error), "no sockets from the agent");
            Vec::new()
        })
    }

    async fn put(&self, uid: &str, duplicates: &[KeptSocket]) -> SocketsKept {
        // With nobody to keep them there is nothing to be tried again.
        let Some(keeper) = &self.keeper else {
            return SocketsKept(true);
        };
        match keeper.put(uid, duplicates).await {
            Ok(()) => SocketsKept(true),
            Err(error) => {
                tracing::warn!(
                    uid,
                    error = chain(&error),
                    "agent does not keep the sockets"
                );
                SocketsKept(false)
            }
        }
    }
}

impl<D: DataPath> Host for NodeHost<D> {
    async fn start(&self, addition: Addition<Netns>) -> Result<SocketsKept, String> {
        let pod = Arc::new(self.pod(&addition)?);
        let (uid, identity) = (pod.uid.clone(), pod.identity.clone());
        let served = Served {
            identity: identity.clone(),
            acquired: false,
            duplicates: Arc::default(),
        };
        self.served().insert(uid.clone(), served);
        // Asked for first: it takes longest.
        self.certificates.acquire(&identity).await;
        if let Some(served) = self.served().get_mut(&uid) {
            served.acquired = true;
        }
        let inherited = self.inherited(&uid).await;
        let dns = if self.dns.is_some() {
            sockets::Dns::On
        } else {
            sockets::Dns::Off
        };
        let sockets = sockets::open(&pod.netns, dns, inherited).map_err(|error| chain(&error))?;
        let duplicates: Arc<[KeptSocket]> = match &self.keeper {
            Some(_) => sockets.duplicates().map_err(|error| chain(&error))?.into(),
            None => Arc::default(),
        };
        if let Some(served) = self.served().get_mut(&uid) {
            served.duplicates = Arc::clone(&duplicates);
        }
        self.data
            .add_pod(Arc::clone(&pod), sockets.listeners)
            .await?;
        if let Some(dns) = &self.dns {
            dns.add_pod(pod, sockets.dns)
                .await
                .map_err(|error| chain(&error))?;
        }
        Ok(self.put(&uid, &duplicates).await)
    }

    async fn stop(&self, uid: Arc<str>, mode: StopMode) {
        let Some(served) = self.served().remove(&uid) else {
            return;
        };
        // The last copy but the workers': their listeners close for good.
        drop(served.duplicates);
        self.data.remove_pod(&uid, mode).await;
        if let Some(dns) = &self.dns {
            dns.remove_pod(uid).await;
        }
        if served.acquired {
            self.certificates.release(&served.identity).await;
        }
    }

    async fn keep(&self, uid: Arc<str>) -> SocketsKept {
        let duplicates = self
            .served()
            .get(&uid)
            .map(|served| Arc::clone(&served.duplicates));
        match duplicates {
            Some(duplicates) => self.put(&uid, &duplicates).await,
            None => SocketsKept(false),
        }
    }
}

impl DataPath for Arc<Workers> {
    async fn add_pod(&self, pod: Arc<Pod>, listeners: PodListeners) -> Result<(), String> {
        Workers::add_pod(self, pod, listeners)
            .await
            .map_err(|error| chain(&error))
    }

    async fn remove_pod(&self, uid: &Arc<str>, mode: StopMode) {
        Workers::remove_pod(self, uid, mode).await;
    }
}
