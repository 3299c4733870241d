//! From messages to the model. Every value is checked here, once; what passes
//! is used without further checks.

mod address;
mod authorization;
mod fault;
#[cfg(test)]
mod tests;

use culvert_api::proto::{discovery, security, workload};
use culvert_model::{Change, Policy, PolicyName, Scope};
use prost::Message;

use crate::kind::ResourceType;

pub use fault::{DecodeError, FieldError, FieldFault};

/// Reads an encoded `istio.workload.Address`: any bytes give a change or an error.
///
/// # Errors
/// Names the field that cannot be read.
pub fn address_bytes(bytes: &[u8]) -> Result<Change, FieldError> {
    let message = workload::Address::decode(bytes).map_err(FieldFault::NotProtobuf)?;
    match message.r#type {
        Some(workload::address::Type::Workload(workload)) => {
            address::workload(workload).map(Change::Workload)
        }
        Some(workload::address::Type::Service(service)) => {
            address::service(service).map(Change::Service)
        }
        None => Err(FieldError::new("type", FieldFault::Missing)),
    }
}

/// Reads an encoded `istio.security.Authorization`: any bytes give a policy or an error.
///
/// # Errors
/// Names the field that cannot be read.
pub fn authorization_bytes(bytes: &[u8]) -> Result<Policy, FieldError> {
    let message = security::Authorization::decode(bytes).map_err(FieldFault::NotProtobuf)?;
    authorization::policy(message)
}

/// Reads one resource of a response.
///
/// # Errors
/// Names the resource and its field.
pub fn resource(kind: ResourceType, resource: &discovery::Resource) -> Result<Change, DecodeError> {
    read(kind, resource).map_err(|error| DecodeError::new(&resource.name, error))
}

fn read(kind: ResourceType, resource: &discovery::Resource) -> Result<Change, FieldError> {
    let Some(any) = &resource.resource else {
        return Err(FieldError::new("resource", FieldFault::Missing));
    };
    // A policy's message is the same in both directions.
    let is_policy = any.type_url == ResourceType::Authorization.url();
    if any.type_url != kind.url() && !(kind == ResourceType::EgressAuthorization && is_policy) {
        let fault = FieldFault::TypeUrl(any.type_url.clone());
        return Err(FieldError::new("resource", fault));
    }
    let change = match kind {
        ResourceType::Address => address_bytes(&any.value)?,
        ResourceType::Authorization => Change::Policy(authorization_bytes(&any.value)?),
        ResourceType::EgressAuthorization => Change::EgressPolicy(authorization_bytes(&any.value)?),
    };
    let key = match &change {
        Change::Workload(workload) => workload.uid.to_string(),
        Change::Service(service) => service.name.to_string(),
        Change::Policy(policy) | Change::EgressPolicy(policy) => policy.name.to_string(),
        _ => return Ok(change),
    };
    // A removal names the resource: under another name it could not be found.
    if key != resource.name {
        return Err(FieldError::new("name", FieldFault::KeyMismatch(key)));
    }
    Ok(change)
}

/// What to do about a resource that cannot be read: for a policy, hold on to
/// what was known of it, or close its scope. `None` for anything else, and for
/// a policy that says of itself that it is not enforced.
pub fn unreadable(kind: ResourceType, resource: &discovery::Resource) -> Option<Change> {
    let name: PolicyName = resource.name.parse().ok()?;
    let body = resource.resource.as_ref().map_or(&[][..], |any| &any.value);
    let message = security::Authorization::decode(body).ok();
    if message.as_ref().is_some_and(|message| message.dry_run) {
        return None;
    }
    match kind {
        ResourceType::Address => None,
        ResourceType::EgressAuthorization => Some(Change::UnreadableEgressPolicy(name)),
        ResourceType::Authorization => {
            let scope = message.and_then(|message| authorization::scope(message.scope).ok());
            // Its name still tells the namespace, and it reaches no further.
            let scope = scope.unwrap_or(Scope::Namespace);
            Some(Change::UnreadablePolicy(name, scope))
        }
    }
}

/// Reads the name of a resource that is gone.
///
/// # Errors
/// When the name is not one of that type.
pub fn removed(kind: ResourceType, name: &str) -> Result<Change, DecodeError> {
    let policy = || {
        name.parse().map_err(|source| {
            DecodeError::new(name, FieldError::new("name", FieldFault::Name(source)))
        })
    };
    Ok(match kind {
        ResourceType::Address => Change::RemoveAddress(name.to_owned()),
        ResourceType::Authorization => Change::RemovePolicy(policy()?),
        ResourceType::EgressAuthorization => Change::RemoveEgressPolicy(policy()?),
    })
}
