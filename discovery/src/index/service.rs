//! Services.

use std::{collections::BTreeMap, net::IpAddr};

use culvert_kubeyaml::selector::Labels;
use culvert_model::{AppProtocol, IpFamilies};
use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::util::intstr::IntOrString};

/// Annotation of Services and Namespaces, understood beside the field.
const DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";

/// Which endpoints are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Those of the client's zone.
    SameZone,
    /// Those of the client's node, then of its zone.
    SameNode,
}

impl Distribution {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "PreferClose" | "PreferSameZone" => Some(Self::SameZone),
            "PreferSameNode" => Some(Self::SameNode),
            _ => None,
        }
    }

    pub(super) fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        Self::parse(annotations.get(DISTRIBUTION)?)
    }
}

/// Which port of a pod a service port leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// This one.
    Number(u16),
    /// The one of that name, which may differ between pods.
    Name(String),
}

/// A TCP port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; empty where a service has one port only.
    pub name: String,
    /// The port of the service.
    pub port: u16,
    /// The port of its pods.
    pub target: TargetPort,
    /// What is spoken.
    pub protocol: AppProtocol,
}

/// What the mesh needs of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Whether it is only another name for something outside.
    pub external_name: bool,
    /// Virtual addresses; none if headless.
    pub addresses: Vec<IpAddr>,
    /// Whether it was declared headless.
    pub headless: bool,
    /// TCP ports.
    pub ports: Vec<ServicePort>,
    /// Chooses its pods; without it someone else writes its endpoints.
    pub selector: Option<Labels>,
    /// Whether endpoints are used before they are ready.
    pub publish_not_ready: bool,
    /// `internalTrafficPolicy: Local`.
    pub local: bool,
    /// Preferred endpoints.
    pub distribution: Option<Distribution>,
    /// Address families.
    pub ip_families: IpFamilies,
}

impl From<&core::Service> for Service {
    fn from(service: &core::Service) -> Self {
        let default = core::ServiceSpec::default();
        let spec = service.spec.as_ref().unwrap_or(&default);
        let external_name = spec.type_.as_deref() == Some("ExternalName");
        let annotations = service.metadata.annotations.as_ref();
        let field = spec.traffic_distribution.as_deref();
        Self {
            external_name,
            addresses: if external_name {
                Vec::new()
            } else {
                addresses(spec)
            },
            headless: spec.cluster_ip.as_deref() == Some("None"),
            ports: spec.ports.iter().flatten().filter_map(port).collect(),
            selector: spec
                .selector
                .clone()
                .filter(|selector| !selector.is_empty()),
            publish_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
            local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            distribution: field
                .and_then(Distribution::parse)
                .or_else(|| annotations.and_then(Distribution::from_annotations)),
            ip_families: families(spec),
        }
    }
}

fn addresses(spec: &core::ServiceSpec) -> Vec<IpAddr> {
    let list = spec.cluster_ips.iter().flatten();
    let mut addresses: Vec<IpAddr> = list.filter_map(|ip| ip.parse().ok()).collect();
    if addresses.is_empty() {
        let single = spec.cluster_ip.as_ref();
        addresses.extend(single.and_then(|ip| ip.parse::<IpAddr>().ok()));
    }
    addresses
}

fn families(spec: &core::ServiceSpec) -> IpFamilies {
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let has = |family: &str| families.iter().any(|other| other == family);
    match (has("IPv4"), has("IPv6")) {
        (true, true) => IpFamilies::Dual,
        (true, false) => IpFamilies::Ipv4Only,
        (false, true) => IpFamilies::Ipv6Only,
        (false, false) => IpFamilies::Automatic,
    }
}

fn port(port: &core::ServicePort) -> Option<ServicePort> {
    if port
        .protocol
        .as_deref()
        .is_some_and(|protocol| protocol != "TCP")
    {
        return None;
    }
    let number = u16::try_from(port.port).ok()?;
    let name = port.name.clone().unwrap_or_default();
    Some(ServicePort {
        port: number,
        target: match &port.target_port {
            None => TargetPort::Number(number),
            Some(IntOrString::Int(target)) => TargetPort::Number(u16::try_from(*target).ok()?),
            Some(IntOrString::String(target)) => match target.parse() {
                Ok(target) => TargetPort::Number(target),
                Err(_) => TargetPort::Name(target.clone()),
            },
        },
        protocol: protocol(port.app_protocol.as_deref(), &name),
        name,
    })
}

/// `appProtocol` if it is set, otherwise the first part of the port's name.
fn protocol(app_protocol: Option<&str>, name: &str) -> AppProtocol {
    let word = match app_protocol {
        Some(word) => word,
        None => name.split('-').next().unwrap_or_default(),
    };
    match word.to_ascii_lowercase().as_str() {
        "http" | "kubernetes.io/ws" => AppProtocol::Http11,
        "http2" | "h2c" | "kubernetes.io/h2c" => AppProtocol::Http2,
        "grpc" => AppProtocol::Grpc,
        "tcp" => AppProtocol::Tcp,
        "tls" | "https" | "kubernetes.io/wss" => AppProtocol::Tls,
        _ => AppProtocol::Unknown,
    }
}
