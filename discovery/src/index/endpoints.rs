//! Endpoint slices.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::discovery::v1 as discovery;

const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// One endpoint of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// The pod behind it, if there is one.
    pub pod: Option<Arc<str>>,
    /// Its node.
    pub node: Option<Arc<str>>,
    /// Whether it takes new connections.
    pub ready: bool,
    /// Whether it is going away.
    pub terminating: bool,
}

/// A port of all endpoints of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    /// Name of the service's port.
    pub name: String,
    /// Port of the endpoints.
    pub port: u16,
}

/// What the mesh needs of an endpoint slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// TCP ports.
    pub ports: Vec<EndpointPort>,
}

/// The service that a slice belongs to.
pub(super) fn service_of(slice: &discovery::EndpointSlice) -> Option<&str> {
    let labels = slice.metadata.labels.as_ref()?;
    labels.get(SERVICE_LABEL).map(String::as_str)
}

impl From<&discovery::EndpointSlice> for Slice {
    fn from(slice: &discovery::EndpointSlice) -> Self {
        Self {
            endpoints: slice.endpoints.iter().map(endpoint).collect(),
            ports: slice
                .ports
                .iter()
                .flatten()
                .filter(|port| {
                    port.protocol
                        .as_deref()
                        .is_none_or(|protocol| protocol == "TCP")
                })
                .filter_map(|port| {
                    Some(EndpointPort {
                        name: port.name.clone().unwrap_or_default(),
                        port: u16::try_from(port.port?).ok()?,
                    })
                })
                .collect(),
        }
    }
}

fn endpoint(endpoint: &discovery::Endpoint) -> Endpoint {
    let conditions = endpoint.conditions.as_ref();
    let target = endpoint.target_ref.as_ref();
    let pod = target.filter(|target| target.kind.as_deref() == Some("Pod"));
    Endpoint {
        addresses: endpoint
            .addresses
            .iter()
            .filter_map(|ip| ip.parse().ok())
            .collect(),
        pod: pod.and_then(|pod| pod.name.as_deref()).map(Into::into),
        node: endpoint.node_name.as_deref().map(Into::into),
        // Unknown counts as ready, as Kubernetes defines it.
        ready: conditions.and_then(|c| c.ready).unwrap_or(true),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
    }
}
