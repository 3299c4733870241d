//! Resources as a server holds them: encoded once, versioned by content.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use culvert_api::proto::discovery;

use crate::kind::ResourceType;

/// One encoded resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    name: Arc<str>,
    version: Arc<str>,
    body: Bytes,
    aliases: Vec<String>,
}

impl Resource {
    /// A resource whose version is taken from its content, so that every
    /// replica of a server gives it the same one.
    pub fn new(name: impl Into<Arc<str>>, body: impl Into<Bytes>, aliases: Vec<String>) -> Self {
        let body = body.into();
        Self {
            name: name.into(),
            version: content_version(&body),
            body,
            aliases,
        }
    }

    /// Its key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of its content.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The encoded message.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Other names by which clients may ask for it.
    pub fn aliases(&self) -> &[String] {
        &self.aliases
    }

    pub(crate) fn shared_version(&self) -> Arc<str> {
        self.version.clone()
    }

    pub(crate) fn to_wire(&self, type_url: &str) -> discovery::Resource {
        discovery::Resource {
            version: self.version.to_string(),
            resource: Some(prost_types::Any {
                type_url: type_url.to_owned(),
                value: self.body.to_vec(),
            }),
            name: self.name.to_string(),
            aliases: self.aliases.clone(),
        }
    }
}

/// 128 bits of a keyless hash. It may differ between builds of the compiler's
/// library, which costs one superfluous push after an upgrade.
fn content_version(body: &[u8]) -> Arc<str> {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(body);
        hasher.finish()
    };
    Arc::from(format!("{:016x}{:016x}", half(0), half(1)))
}

/// All resources of one type that a client sees.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResourceSet {
    by_name: BTreeMap<Arc<str>, Arc<Resource>>,
    by_alias: HashMap<String, Arc<str>>,
}

impl ResourceSet {
    /// The resource of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        self.by_name.get(name)
    }

    /// The resource of that name or alias.
    pub fn find(&self, key: &str) -> Option<&Arc<Resource>> {
        self.get(key).or_else(|| self.get(self.by_alias.get(key)?))
    }

    /// All resources, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.by_name.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

impl FromIterator<Arc<Resource>> for ResourceSet {
    /// Of two resources with one name the later stays; of two with one alias
    /// the first by name.
    fn from_iter<I: IntoIterator<Item = Arc<Resource>>>(resources: I) -> Self {
        let by_name: BTreeMap<_, _> = resources
            .into_iter()
            .map(|resource| (resource.name.clone(), resource))
            .collect();
        let mut by_alias = HashMap::new();
        for resource in by_name.values() {
            for alias in &resource.aliases {
                by_alias
                    .entry(alias.clone())
                    .or_insert_with(|| resource.name.clone());
            }
        }
        Self { by_name, by_alias }
    }
}

/// All that one client sees, from one moment: a policy that a workload of the
/// view names is in the view too.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientView {
    /// Workloads and services.
    pub addresses: Arc<ResourceSet>,
    /// Policies on what workloads accept.
    pub authorizations: Arc<ResourceSet>,
    /// Policies on what workloads may connect to.
    pub egress_authorizations: Arc<ResourceSet>,
}

impl ClientView {
    /// The resources of a type.
    pub fn resources(&self, kind: ResourceType) -> &Arc<ResourceSet> {
        match kind {
            ResourceType::Address => &self.addresses,
            ResourceType::Authorization => &self.authorizations,
            ResourceType::EgressAuthorization => &self.egress_authorizations,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_content() {
        let version = |body: &'static [u8]| Resource::new("a", body, Vec::new()).version;
        assert_eq!(version(b"x"), version(b"x"));
        assert_ne!(version(b"x"), version(b"y"));
        assert_ne!(version(b""), version(b"\0"));
    }

    #[test]
    fn finds_by_name_before_alias() {
        let resource = |name: &str, alias: &str| {
            Arc::new(Resource::new(
                name,
                name.as_bytes().to_vec(),
                vec![alias.to_owned()],
            ))
        };
        let set: ResourceSet = [resource("b", "x"), resource("a", "x"), resource("c", "a")]
            .into_iter()
            .collect();
        assert_eq!(set.find("a").map(|found| found.name()), Some("a"));
        assert_eq!(set.find("x").map(|found| found.name()), Some("a"));
        assert!(set.find("y").is_none());
    }
}
