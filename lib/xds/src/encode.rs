//! From the model to messages: the inverse of [`decode`](crate::decode).

mod address;
mod authorization;

use std::net::IpAddr;

use culvert_api::proto::workload as wire;
use culvert_model::{NetworkAddress, Policy, Service, Workload};
use prost::Message;

use crate::resource::Resource;

pub use address::{service, workload};
pub use authorization::policy;

/// A workload as a resource of type `Address`.
pub fn workload_resource(from: &Workload) -> Resource {
    let aliases = from
        .addresses
        .iter()
        .map(|ip| ip_alias(&from.network, *ip))
        .collect();
    let message = wire::Address {
        r#type: Some(wire::address::Type::Workload(workload(from))),
    };
    Resource::new(from.uid.as_str(), message.encode_to_vec(), aliases)
}

/// A service as a resource of type `Address`.
pub fn service_resource(from: &Service) -> Resource {
    let aliases = from.addresses.iter().map(address_alias).collect();
    let message = wire::Address {
        r#type: Some(wire::address::Type::Service(service(from))),
    };
    Resource::new(from.name.to_string(), message.encode_to_vec(), aliases)
}

/// A policy as a resource of type `Authorization` or `EgressAuthorization`.
pub fn policy_resource(from: &Policy) -> Resource {
    Resource::new(
        from.name.to_string(),
        policy(from).encode_to_vec(),
        Vec::new(),
    )
}

fn ip_alias(network: &str, ip: IpAddr) -> String {
    format!("{network}/{ip}")
}

fn address_alias(address: &NetworkAddress) -> String {
    if address.is_host() {
        ip_alias(&address.network, address.net.addr())
    } else {
        format!("{}/{}", address.network, address.net)
    }
}
