//! Workloads in a document.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use culvert_identity::{Identity, TrustDomain};
use culvert_model::{
    AppProtocol, ApplicationProtocol, ApplicationTunnel, Health, Locality, NetworkMode, PolicyName,
    Port, ServiceName, TunnelProtocol, Workload, WorkloadType, WorkloadUid,
};
use serde::{Deserialize, Serialize};

use super::{FieldError, GatewayDocument};

/// A workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadDocument {
    /// Key; made from cluster, namespace and name when it is left out.
    #[serde(default)]
    pub uid: String,
    /// The pod's name.
    #[serde(default)]
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its addresses.
    pub workload_ips: Vec<IpAddr>,
    /// Its services, each with service port → target port.
    pub services: BTreeMap<String, BTreeMap<u16, u16>>,
    /// How it is reached.
    #[serde(default)]
    pub protocol: Protocol,
    /// Whose network namespace it has.
    #[serde(default)]
    pub network_mode: Mode,
    /// Empty for the mesh's own.
    #[serde(default)]
    pub trust_domain: String,
    /// Empty for `default`.
    #[serde(default)]
    pub service_account: String,
    /// The network of its addresses.
    #[serde(default)]
    pub network: String,
    /// The owner's name.
    #[serde(default)]
    pub workload_name: String,
    /// What owns it.
    #[serde(default)]
    pub workload_type: Owner,
    /// Application name.
    #[serde(default)]
    pub canonical_name: String,
    /// Application version.
    #[serde(default)]
    pub canonical_revision: String,
    /// Name to resolve where there are no addresses.
    #[serde(default)]
    pub hostname: String,
    /// Its node.
    #[serde(default)]
    pub node: String,
    /// Whether it terminates tunnels itself.
    #[serde(default)]
    pub native_tunnel: bool,
    /// The last hop to the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_tunnel: Option<TunnelDocument>,
    /// Policies that select it.
    #[serde(default)]
    pub authorization_policies: Vec<String>,
    /// Whether it may be picked.
    #[serde(default)]
    pub status: Status,
    /// Its cluster.
    #[serde(default = "default_cluster")]
    pub cluster_id: String,
    /// Where it runs.
    #[serde(default)]
    pub locality: LocalityDocument,
    /// Its waypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<GatewayDocument>,
    /// The way in from other networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_gateway: Option<GatewayDocument>,
    /// Its share of connections.
    #[serde(default = "default_capacity")]
    pub capacity: u32,
    /// Ours: policies that its own connections obey.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress_policies: Vec<String>,
    /// Ours: sets of peers that it is a member of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_sets: Vec<String>,
}

fn default_cluster() -> String {
    "Kubernetes".to_owned()
}

fn default_capacity() -> u32 {
    1
}

/// How a workload is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Protocol {
    /// Plainly.
    #[default]
    #[serde(rename = "TCP", alias = "NONE")]
    Tcp,
    /// Through a tunnel.
    #[serde(rename = "HBONE")]
    Hbone,
}

/// Whose network namespace a workload has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Mode {
    /// Its own.
    #[default]
    Standard,
    /// Its node's.
    HostNetwork,
}

/// Whether a workload may be picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Status {
    /// It may.
    #[default]
    Healthy,
    /// It may not.
    Unhealthy,
}

/// What owns a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// A Deployment.
    #[default]
    Deployment,
    /// A CronJob.
    Cronjob,
    /// Nothing but the pod.
    Pod,
    /// A Job.
    Job,
}

/// The last hop to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TunnelDocument {
    /// What precedes the application's bytes.
    #[serde(default)]
    pub protocol: TunnelKind,
    /// The port in place of the one asked for; 0 keeps it.
    #[serde(default)]
    pub port: u16,
}

/// What precedes the application's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TunnelKind {
    /// Nothing.
    #[default]
    None,
    /// A PROXY header.
    Proxy,
}

/// Where a workload runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LocalityDocument {
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Part of the zone.
    pub subzone: String,
}

impl WorkloadDocument {
    pub(super) fn model(self, mesh: &TrustDomain) -> Result<Workload, FieldError> {
        let identity = self.identity(mesh)?;
        let uid = if self.uid.is_empty() {
            format!("{}//Pod/{}/{}", self.cluster_id, self.namespace, self.name)
        } else {
            self.uid
        };
        let gateway =
            |gateway: Option<GatewayDocument>| gateway.map(|gateway| gateway.model()).transpose();
        let policies = |field, names: &[String]| {
            let parse = |name: &String| PolicyName::from_str(name);
            names
                .iter()
                .map(parse)
                .collect::<Result<_, _>>()
                .map_err(|e| FieldError::new(field, &e))
        };
        let LocalityDocument {
            region,
            zone,
            subzone,
        } = self.locality;
        Ok(Workload {
            services: services(&self.services)?,
            addresses: self.workload_ips,
            hostname: self.hostname.into(),
            network: self.network.into(),
            tunnel_protocol: match self.protocol {
                Protocol::Tcp => TunnelProtocol::None,
                Protocol::Hbone => TunnelProtocol::Hbone,
            },
            native_tunnel: self.native_tunnel,
            waypoint: gateway(self.waypoint)?,
            network_gateway: gateway(self.network_gateway)?,
            node: self.node.into(),
            cluster_id: self.cluster_id.into(),
            canonical_name: self.canonical_name.into(),
            canonical_revision: self.canonical_revision.into(),
            workload_type: match self.workload_type {
                Owner::Deployment => WorkloadType::Deployment,
                Owner::Cronjob => WorkloadType::CronJob,
                Owner::Pod => WorkloadType::Pod,
                Owner::Job => WorkloadType::Job,
            },
            workload_name: self.workload_name.into(),
            authorization_policies: policies(
                "authorizationPolicies",
                &self.authorization_policies,
            )?,
            egress_policies: policies("egressPolicies", &self.egress_policies)?,
            peer_sets: self.peer_sets.into_iter().map(Into::into).collect(),
            health: match self.status {
                Status::Healthy => Health::Healthy,
                Status::Unhealthy => Health::Unhealthy,
            },
            application_tunnel: self.application_tunnel.map(TunnelDocument::model),
            locality: Locality {
                region: region.into(),
                zone: zone.into(),
                subzone: subzone.into(),
            },
            network_mode: match self.network_mode {
                Mode::Standard => NetworkMode::Standard,
                Mode::HostNetwork => NetworkMode::HostNetwork,
            },
            capacity: self.capacity,
            ..Workload::new(WorkloadUid::new(uid), self.name, identity)
        })
    }

    fn identity(&self, mesh: &TrustDomain) -> Result<Identity, FieldError> {
        let domain = if self.trust_domain.is_empty() {
            mesh.clone()
        } else {
            let parsed = self.trust_domain.parse();
            parsed.map_err(|e| FieldError::new("trustDomain", &e))?
        };
        let account = match self.service_account.as_str() {
            "" => "default",
            account => account,
        };
        Identity::new(&domain, &self.namespace, account)
            .map_err(|e| FieldError::new("serviceAccount", &e))
    }

    pub(super) fn of(workload: &Workload) -> Self {
        let text = |text: &str| text.to_owned();
        let names = |names: &[PolicyName]| names.iter().map(ToString::to_string).collect();
        let ports = |ports: &[Port]| {
            ports
                .iter()
                .filter_map(|p| Some((p.service_port, p.target_port?)))
                .collect()
        };
        let Locality {
            region,
            zone,
            subzone,
        } = &workload.locality;
        Self {
            uid: workload.uid.to_string(),
            name: text(&workload.name),
            namespace: text(&workload.namespace),
            workload_ips: workload.addresses.clone(),
            services: workload
                .services
                .iter()
                .map(|(n, p)| (n.to_string(), ports(p)))
                .collect(),
            protocol: if workload.is_meshed() {
                Protocol::Hbone
            } else {
                Protocol::Tcp
            },
            network_mode: match workload.network_mode {
                NetworkMode::Standard => Mode::Standard,
                NetworkMode::HostNetwork => Mode::HostNetwork,
            },
            trust_domain: workload.identity.trust_domain().to_string(),
            service_account: text(workload.service_account()),
            network: text(&workload.network),
            workload_name: text(&workload.workload_name),
            workload_type: match workload.workload_type {
                WorkloadType::Deployment => Owner::Deployment,
                WorkloadType::CronJob => Owner::Cronjob,
                WorkloadType::Pod => Owner::Pod,
                WorkloadType::Job => Owner::Job,
            },
            canonical_name: text(&workload.canonical_name),
            canonical_revision: text(&workload.canonical_revision),
            hostname: text(&workload.hostname),
            node: text(&workload.node),
            native_tunnel: workload.native_tunnel,
            application_tunnel: workload.application_tunnel.map(TunnelDocument::of),
            authorization_policies: names(&workload.authorization_policies),
            status: match workload.health {
                Health::Healthy => Status::Healthy,
                Health::Unhealthy => Status::Unhealthy,
            },
            cluster_id: text(&workload.cluster_id),
            locality: LocalityDocument {
                region: text(region),
                zone: text(zone),
                subzone: text(subzone),
            },
            waypoint: workload.waypoint.as_ref().map(GatewayDocument::of),
            network_gateway: workload.network_gateway.as_ref().map(GatewayDocument::of),
            capacity: workload.capacity,
            egress_policies: names(&workload.egress_policies),
            peer_sets: workload.peer_sets.iter().map(|set| text(set)).collect(),
        }
    }
}

fn services(
    document: &BTreeMap<String, BTreeMap<u16, u16>>,
) -> Result<BTreeMap<ServiceName, Vec<Port>>, FieldError> {
    let mut services = BTreeMap::new();
    for (name, ports) in document {
        let name = ServiceName::from_str(name).map_err(|e| FieldError::new("services", &e))?;
        let ports = ports.iter().map(|(service_port, target_port)| Port {
            service_port: *service_port,
            target_port: (*target_port != 0).then_some(*target_port),
            app_protocol: AppProtocol::Unknown,
        });
        services.insert(name, ports.collect());
    }
    Ok(services)
}

impl TunnelDocument {
    fn model(self) -> ApplicationTunnel {
        ApplicationTunnel {
            protocol: match self.protocol {
                TunnelKind::None => ApplicationProtocol::None,
                TunnelKind::Proxy => ApplicationProtocol::Proxy,
            },
            port: (self.port != 0).then_some(self.port),
        }
    }

    fn of(tunnel: ApplicationTunnel) -> Self {
        Self {
            protocol: match tunnel.protocol {
                ApplicationProtocol::None => TunnelKind::None,
                ApplicationProtocol::Proxy => TunnelKind::Proxy,
            },
            port: tunnel.port.unwrap_or(0),
        }
    }
}
