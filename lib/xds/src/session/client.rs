//! The client's end: knows which version of what it holds.

use std::collections::{BTreeMap, HashMap};

use culvert_api::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node as WireNode, Status,
};
use culvert_model::Change;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::decode;
use crate::kind::ResourceType;

use super::rejection::Rejection;

/// Who asks, in the form that stock servers require.
#[derive(Debug, Clone)]
pub struct Node {
    /// An address of the proxy.
    pub ip: std::net::IpAddr,
    /// The proxy's pod.
    pub name: String,
    /// The proxy's namespace.
    pub namespace: String,
    /// The node that it serves.
    pub node_name: String,
    /// The cluster.
    pub cluster_id: String,
    /// Further entries of the metadata.
    pub metadata: BTreeMap<String, String>,
}

impl Node {
    /// The `id` on the wire.
    pub fn id(&self) -> String {
        let Self {
            ip,
            name,
            namespace,
            ..
        } = self;
        format!("ztunnel~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local")
    }

    fn to_wire(&self) -> WireNode {
        let own = [
            ("NAME", self.name.clone()),
            ("NAMESPACE", self.namespace.clone()),
            ("INSTANCE_IPS", self.ip.to_string()),
            ("NODE_NAME", self.node_name.clone()),
            ("CLUSTER_ID", self.cluster_id.clone()),
        ];
        let further = self
            .metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value.clone()));
        let value = |text| Value {
            kind: Some(Kind::StringValue(text)),
        };
        WireNode {
            id: self.id(),
            cluster: self.cluster_id.clone(),
            metadata: Some(Struct {
                fields: own
                    .into_iter()
                    .chain(further)
                    .map(|(key, text)| (key.to_owned(), value(text)))
                    .collect(),
            }),
        }
    }
}

/// What one response means.
#[derive(Debug)]
pub struct Received {
    /// The type, if it is one of ours.
    pub kind: Option<ResourceType>,
    /// What the response changes, in order.
    pub changes: Vec<Change>,
    /// Resources that cannot be read.
    pub rejected: Vec<Rejection>,
    /// What to answer.
    pub reply: DeltaDiscoveryRequest,
}

/// The client's end of a stream, and what it carries over to the next stream.
#[derive(Debug)]
pub struct ClientSession {
    node: WireNode,
    subscriptions: BTreeMap<ResourceType, Subscription>,
}

#[derive(Debug, Default)]
struct Subscription {
    /// Versions by name; empty for a resource that could not be read, so that
    /// the server sends it again or says that it is gone.
    known: HashMap<String, String>,
    answered: bool,
}

impl ClientSession {
    /// A session that knows nothing yet and asks for everything of each type.
    pub fn new(node: &Node) -> Self {
        Self {
            node: node.to_wire(),
            subscriptions: ResourceType::ALL
                .into_iter()
                .map(|kind| (kind, Subscription::default()))
                .collect(),
        }
    }

    /// The first requests on a new stream: everything of each type, less what is
    /// known from earlier streams.
    pub fn connect(&self) -> Vec<DeltaDiscoveryRequest> {
        let known = |kind| {
            let subscription = self.subscriptions.get(&kind);
            subscription.map_or_else(HashMap::new, |subscription| subscription.known.clone())
        };
        let request = |kind: ResourceType| DeltaDiscoveryRequest {
            node: Some(self.node.clone()),
            type_url: kind.url().to_owned(),
            initial_resource_versions: known(kind),
            ..DeltaDiscoveryRequest::default()
        };
        ResourceType::ALL.into_iter().map(request).collect()
    }

    /// Takes in one response. What can be read of it counts, whatever else is
    /// in it; the reply refuses the rest by name.
    pub fn receive(&mut self, response: &DeltaDiscoveryResponse) -> Received {
        let mut received = Received {
            kind: ResourceType::from_url(&response.type_url),
            changes: Vec::new(),
            rejected: Vec::new(),
            reply: DeltaDiscoveryRequest {
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                ..DeltaDiscoveryRequest::default()
            },
        };
        if let Some(kind) = received.kind {
            let subscription = self.subscriptions.entry(kind).or_default();
            subscription.receive(kind, response, &mut received);
        } else {
            tracing::warn!(type_url = response.type_url, "resources of an unknown type");
        }
        if !received.rejected.is_empty() {
            received.reply.error_detail = Some(Status {
                code: 0,
                message: Rejection::message(&received.rejected),
            });
        }
        received
    }

    /// Whether a response of the type was taken in, in this stream or an earlier one.
    pub fn is_answered(&self, kind: ResourceType) -> bool {
        self.subscriptions
            .get(&kind)
            .is_some_and(|subscription| subscription.answered)
    }

    /// Whether every type that all servers have was answered.
    pub fn is_complete(&self) -> bool {
        let required = |kind: &ResourceType| !kind.is_optional();
        ResourceType::ALL
            .into_iter()
            .filter(required)
            .all(|kind| self.is_answered(kind))
    }
}

impl Subscription {
    fn receive(
        &mut self,
        kind: ResourceType,
        response: &DeltaDiscoveryResponse,
        received: &mut Received,
    ) {
        self.answered = true;
        for name in &response.removed_resources {
            if self.known.remove(name).is_none() {
                continue;
            }
            match decode::removed(kind, name) {
                Ok(change) => received.changes.push(change),
                // Such a name was never read, so nothing of it is known.
                Err(error) => tracing::debug!(name, %error, "removal of an unreadable name"),
            }
        }
        for resource in &response.resources {
            match decode::resource(kind, resource) {
                Ok(change) => {
                    received.changes.push(change);
                    self.known
                        .insert(resource.name.clone(), resource.version.clone());
                }
                Err(error) => {
                    received.rejected.push(Rejection::of(&error));
                    received.changes.extend(decode::unreadable(kind, resource));
                    self.known.insert(resource.name.clone(), String::new());
                }
            }
        }
    }
}
