//! The mesh as a document: what a static state file holds and what the admin port
//! shows. The keys are those of ztunnel's local file; a few more are ours.
//!
//! The only serialisable form of the model in this program.

mod policy;
mod service;
mod workload;

use std::str::FromStr;

use culvert_identity::TrustDomain;
use culvert_model::{Change, GatewayAddress, GatewayDestination, NetworkAddress, ServiceName};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use policy::PolicyDocument;
pub use service::ServiceDocument;
pub use workload::WorkloadDocument;

/// A whole mesh.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshDocument {
    /// Workloads.
    pub workloads: Vec<WorkloadDocument>,
    /// Services.
    pub services: Vec<ServiceDocument>,
    /// Policies judged at the destination.
    pub policies: Vec<PolicyDocument>,
    /// Policies judged at the source.
    pub egress_policies: Vec<PolicyDocument>,
}

/// A document that does not describe a mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: {problem}")]
pub struct DocumentError {
    object: String,
    field: &'static str,
    problem: String,
}

/// What is wrong with one field; the object is named further up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    field: &'static str,
    problem: String,
}

impl FieldError {
    fn new(field: &'static str, problem: &dyn std::fmt::Display) -> Self {
        Self {
            field,
            problem: problem.to_string(),
        }
    }

    fn of(self, object: String) -> DocumentError {
        DocumentError {
            object,
            field: self.field,
            problem: self.problem,
        }
    }
}

impl MeshDocument {
    /// The document as changes to an empty snapshot.
    ///
    /// # Errors
    /// The first object that is not right, with the field and what is wrong with it.
    pub fn changes(self, trust_domain: &TrustDomain) -> Result<Vec<Change>, DocumentError> {
        let mut changes = Vec::new();
        for document in self.workloads {
            let object = format!("workload {}/{}", document.namespace, document.name);
            let workload = document
                .model(trust_domain)
                .map_err(|error| error.of(object))?;
            changes.push(Change::Workload(workload));
        }
        for document in self.services {
            let object = format!("service {}/{}", document.namespace, document.hostname);
            changes.push(Change::Service(
                document.model().map_err(|error| error.of(object))?,
            ));
        }
        for document in self.policies {
            let object = format!("policy {}/{}", document.namespace, document.name);
            changes.push(Change::Policy(
                document.model().map_err(|error| error.of(object))?,
            ));
        }
        for document in self.egress_policies {
            let object = format!("egress policy {}/{}", document.namespace, document.name);
            let policy = document.model().map_err(|error| error.of(object))?;
            changes.push(Change::EgressPolicy(policy));
        }
        Ok(changes)
    }

    /// A snapshot as a document, sorted by name.
    #[must_use]
    pub fn of(snapshot: &culvert_model::Snapshot) -> Self {
        let mut document = Self {
            workloads: snapshot
                .workloads()
                .map(|w| WorkloadDocument::of(w))
                .collect(),
            services: snapshot
                .services()
                .map(|s| ServiceDocument::of(s))
                .collect(),
            policies: snapshot.policies().map(|p| PolicyDocument::of(p)).collect(),
            egress_policies: snapshot
                .egress_policies()
                .map(|p| PolicyDocument::of(p))
                .collect(),
        };
        document.workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
        document
            .services
            .sort_by(|a, b| (&a.namespace, &a.hostname).cmp(&(&b.namespace, &b.hostname)));
        let by_name = |a: &PolicyDocument, b: &PolicyDocument| {
            (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
        };
        document.policies.sort_by(by_name);
        document.egress_policies.sort_by(by_name);
        document
    }
}

/// A waypoint or gateway: `network/IP`, or else `namespace/hostname`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayDocument {
    /// Where it is.
    pub destination: String,
    /// Its tunnel port.
    pub hbone_mtls_port: u16,
}

impl GatewayDocument {
    fn model(&self) -> Result<GatewayAddress, FieldError> {
        let text = &self.destination;
        let address = text
            .split_once('/')
            .and_then(|(network, ip)| Some((network, ip.parse().ok()?)));
        let destination = match address {
            Some((network, ip)) => GatewayDestination::Address {
                network: network.into(),
                ip,
            },
            None => GatewayDestination::Hostname(
                ServiceName::from_str(text).map_err(|e| FieldError::new("destination", &e))?,
            ),
        };
        Ok(GatewayAddress {
            destination,
            hbone_port: self.hbone_mtls_port,
        })
    }

    fn of(gateway: &GatewayAddress) -> Self {
        let destination = match &gateway.destination {
            GatewayDestination::Hostname(name) => name.to_string(),
            GatewayDestination::Address { network, ip } => format!("{network}/{ip}"),
        };
        Self {
            destination,
            hbone_mtls_port: gateway.hbone_port,
        }
    }
}

/// `network/IP`, or `network/IP/prefix length`.
fn network_address(text: &str) -> Result<NetworkAddress, FieldError> {
    let bad = || FieldError::new("vips", &format!("{text:?} is not of the form network/IP"));
    let (network, rest) = text.split_once('/').ok_or_else(bad)?;
    let net = match rest.parse() {
        Ok(ip) => IpNet::new_assert(ip, if ip.is_ipv4() { 32 } else { 128 }),
        Err(_) => rest.parse().map_err(|_| bad())?,
    };
    Ok(NetworkAddress {
        network: network.into(),
        net,
    })
}

fn network_address_text(address: &NetworkAddress) -> String {
    if address.is_host() {
        format!("{}/{}", address.network, address.net.addr())
    } else {
        format!("{}/{}", address.network, address.net)
    }
}

#[cfg(test)]
mod tests;
