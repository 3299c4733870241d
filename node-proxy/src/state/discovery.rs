//! The state from discovery: the last good snapshot stays while discovery is away.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use culvert_runtime::{ConditionHandle, DrainWatch, Metrics};
use culvert_xds::ResourceType;
use culvert_xds::client::{
    BoxError, Client, ClientConfig, Connector, Observer, Termination, TokenSource,
};
use culvert_xds::session::{Node, Rejection};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::watch;
use tonic::transport::Channel;

use super::State;
use crate::token::TokenFile;

/// The namespace of the mesh's own programs.
const SYSTEM_NAMESPACE: &str = "culvert-system";

/// Who asks discovery, and for what.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// This node.
    pub node: String,
    /// This cluster.
    pub cluster_id: String,
    /// The network of this node's pods.
    pub network: String,
    /// Our token for discovery.
    pub token: TokenFile,
}

/// Keeps a [`State`] equal to what discovery says.
#[derive(Debug)]
pub struct Discovery {
    config: DiscoveryConfig,
    channel: Channel,
    state: State,
    observer: Observed,
}

#[derive(Debug)]
struct Observed {
    condition: ConditionHandle,
    terminations: Family<ReasonLabel, Counter>,
    messages: Family<UrlLabel, Counter>,
    bytes: Family<UrlLabel, Counter>,
    rejected: Family<UrlLabel, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UrlLabel {
    url: &'static str,
}

impl Discovery {
    /// A client over a channel that connects by itself. The condition is met once the
    /// first complete snapshot is in force.
    #[must_use]
    pub fn new(
        config: DiscoveryConfig,
        channel: Channel,
        state: State,
        condition: ConditionHandle,
        metrics: &Metrics,
    ) -> Self {
        condition.set_not_ready("discovery has not sent the whole mesh yet");
        let observer = Observed {
            condition,
            terminations: Family::default(),
            messages: Family::default(),
            bytes: Family::default(),
            rejected: Family::default(),
        };
        observer.register(metrics);
        Self {
            config,
            channel,
            state,
            observer,
        }
    }

    /// Runs until the process stops.
    pub async fn run(self, drain: DrainWatch) {
        let DiscoveryConfig {
            node,
            cluster_id,
            network,
            token,
        } = self.config;
        let node = Node {
            // Nobody connects to it; the form asks for one.
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            name: node.clone(),
            namespace: SYSTEM_NAMESPACE.to_owned(),
            node_name: node,
            cluster_id,
            metadata: std::collections::BTreeMap::new(),
        };
        let client = Client {
            config: ClientConfig::new(node, network),
            connector: Reach(self.channel),
            token: Proof(token),
            observer: self.observer,
        };
        let (sender, mut snapshots) = watch::channel(self.state.snapshot());
        let follow = async {
            while snapshots.changed().await.is_ok() {
                let snapshot = Arc::clone(&snapshots.borrow_and_update());
                self.state.replace(snapshot);
            }
        };
        tokio::select! {
            () = drain.stopped() => {}
            () = client.run(sender) => {}
            () = follow => {}
        }
    }
}

/// The channel connects by itself; each stream uses it again.
#[derive(Debug)]
struct Reach(Channel);

impl Connector for Reach {
    async fn connect(&self) -> Result<Channel, BoxError> {
        Ok(self.0.clone())
    }
}

#[derive(Debug)]
struct Proof(TokenFile);

impl TokenSource for Proof {
    fn token(&self) -> Result<Option<String>, BoxError> {
        Ok(Some(self.0.read()?))
    }
}

impl Observed {
    fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register(
                "istio_xds_connection_terminations",
                "Ends of streams from discovery by reason",
                self.terminations.clone(),
            );
            let mut by_url = |name, help, family: &Family<UrlLabel, Counter>| {
                registry.register(name, help, family.clone());
            };
            by_url(
                "istio_xds_message",
                "Messages from discovery",
                &self.messages,
            );
            by_url(
                "istio_xds_message_bytes",
                "Size of messages from discovery",
                &self.bytes,
            );
            by_url(
                "culvert_xds_resources_rejected",
                "Resources of discovery that could not be used",
                &self.rejected,
            );
        });
    }
}

impl Observer for Observed {
    fn connected(&self) {
        tracing::info!("connected to discovery");
    }

    fn terminated(&self, reason: Termination) {
        let reason = reason.as_str();
        tracing::debug!(reason, "stream from discovery ended");
        self.terminations
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    fn received(&self, type_url: &str, bytes: usize) {
        // Only what was subscribed to makes a series.
        let url = ResourceType::from_url(type_url).map_or("unknown", ResourceType::url);
        self.messages.get_or_create(&UrlLabel { url }).inc();
        self.bytes
            .get_or_create(&UrlLabel { url })
            .inc_by(bytes as u64);
    }

    fn rejected(&self, kind: ResourceType, rejection: &Rejection) {
        tracing::warn!(
            kind = kind.as_str(),
            ?rejection,
            "resource of discovery refused"
        );
        self.rejected
            .get_or_create(&UrlLabel { url: kind.url() })
            .inc();
    }

    fn ready(&self) {
        self.condition.set_ready();
    }
}
