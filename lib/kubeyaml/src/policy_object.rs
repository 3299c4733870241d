//! The object around the spec of one of our policies.

use culvert_api::policy::{
    API_VERSION, AUTHORIZATION_POLICY, AuthorizationPolicySpec, PEER_AUTHENTICATION,
    PeerAuthenticationSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeStruct};
use serde_json::Value;

/// Gives the kind that belongs to a spec.
pub trait PolicySpec: Serialize + for<'de> Deserialize<'de> {
    /// `kind` of the object.
    const KIND: &'static str;
}

impl PolicySpec for AuthorizationPolicySpec {
    const KIND: &'static str = AUTHORIZATION_POLICY;
}

impl PolicySpec for PeerAuthenticationSpec {
    const KIND: &'static str = PEER_AUTHENTICATION;
}

/// A policy as a Kubernetes object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyObject<S> {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// What the person wrote.
    pub spec: S,
    /// What controllers wrote; not interpreted.
    pub status: Option<Value>,
}

impl<S: PolicySpec> Serialize for PolicyObject<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        let fields = 4 + usize::from(self.status.is_some());
        let mut object = serializer.serialize_struct("PolicyObject", fields)?;
        object.serialize_field("apiVersion", API_VERSION)?;
        object.serialize_field("kind", S::KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        object.serialize_field("spec", &self.spec)?;
        match &self.status {
            Some(status) => object.serialize_field("status", status)?,
            None => object.skip_field("status")?,
        }
        object.end()
    }
}

impl<'de, S: PolicySpec> Deserialize<'de> for PolicyObject<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Fields<S> {
            #[serde(rename = "apiVersion", default)]
            _api_version: Option<String>,
            #[serde(rename = "kind", default)]
            _kind: Option<String>,
            #[serde(default)]
            metadata: ObjectMeta,
            spec: S,
            #[serde(default)]
            status: Option<Value>,
        }
        let fields = Fields::deserialize(deserializer)?;
        Ok(Self {
            metadata: fields.metadata,
            spec: fields.spec,
            status: fields.status,
        })
    }
}
