//! Kubernetes objects as JSON values, and the few questions the engine asks of
//! them. The engine keeps every field that it does not know, so objects stay
//! values; typed reading happens where a whole spec is needed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

/// An object in the store: shared, never changed in place.
pub(crate) type Object = Arc<Value>;

/// What tells one object from all others. Cluster-scoped objects have an empty
/// namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    /// Kind, as written in the object.
    pub kind: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// A key from its parts.
    pub(crate) fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The key of an object.
    pub(crate) fn of(object: &Value) -> Self {
        Self::new(
            text(object, "/kind").unwrap_or_default(),
            text(object, "/metadata/namespace").unwrap_or_default(),
            text(object, "/metadata/name").unwrap_or_default(),
        )
    }

    /// Path below the objects directory.
    pub(crate) fn file(&self) -> String {
        let namespace = if self.namespace.is_empty() {
            "_"
        } else {
            &self.namespace
        };
        format!("{}/{namespace}.{}.json", self.kind, self.name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(formatter, "{} {}", self.kind, self.name)
        } else {
            write!(formatter, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// Kinds without a namespace among those the engine meets.
pub(crate) fn is_cluster_scoped(kind: &str) -> bool {
    matches!(
        kind,
        "Namespace"
            | "Node"
            | "GatewayClass"
            | "ClusterRole"
            | "ClusterRoleBinding"
            | "CustomResourceDefinition"
            | "PersistentVolume"
            | "StorageClass"
            | "PriorityClass"
            | "IngressClass"
            | "RuntimeClass"
    )
}

/// The string at a JSON pointer.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str)
}

/// The non-negative number at a JSON pointer.
pub(crate) fn number(object: &Value, pointer: &str) -> Option<u64> {
    object.pointer(pointer).and_then(Value::as_u64)
}

/// The list at a JSON pointer, or an empty one.
pub(crate) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Name of an object.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name").unwrap_or_default()
}

/// Namespace of an object, or an empty string.
pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace").unwrap_or_default()
}

/// Unique id of an object, or an empty string.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid").unwrap_or_default()
}

/// A map of strings at a JSON pointer.
pub(crate) fn string_map<'a>(object: &'a Value, pointer: &str) -> BTreeMap<&'a str, &'a str> {
    let Some(map) = object.pointer(pointer).and_then(Value::as_object) else {
        return BTreeMap::new();
    };
    map.iter()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .collect()
}

/// Labels of an object.
pub(crate) fn labels(object: &Value) -> BTreeMap<&str, &str> {
    string_map(object, "/metadata/labels")
}

/// One annotation of an object.
pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(key)?.as_str()
}

/// Whether the object is on its way out.
pub(crate) fn is_terminating(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

/// The unique id of the owner that controls the object.
pub(crate) fn controller_uid(object: &Value) -> Option<&str> {
    list(object, "/metadata/ownerReferences")
        .iter()
        .find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
        .and_then(|owner| text(owner, "/uid"))
}

/// An owner reference that makes `owner` the controller.
pub(crate) fn owner_reference(owner: &Value) -> Value {
    json!({
        "apiVersion": text(owner, "/apiVersion").unwrap_or("v1"),
        "kind": text(owner, "/kind").unwrap_or_default(),
        "name": name(owner),
        "uid": uid(owner),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Status of one condition of an object: `Some("True")`, ...
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    list(object, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == Some(kind))
        .and_then(|condition| text(condition, "/status"))
}

/// Whether a pod's Ready condition holds.
pub(crate) fn is_pod_ready(pod: &Value) -> bool {
    condition(pod, "Ready") == Some("True")
}

/// Phase of a pod; a pod that the kubelet has not seen is Pending.
pub(crate) fn phase(pod: &Value) -> &str {
    text(pod, "/status/phase").unwrap_or("Pending")
}

/// Whether a pod has run to its end.
pub(crate) fn is_finished(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Addresses of a pod.
pub(crate) fn pod_ips(pod: &Value) -> Vec<std::net::IpAddr> {
    list(pod, "/status/podIPs")
        .iter()
        .filter_map(|entry| text(entry, "/ip")?.parse().ok())
        .collect()
}

/// A time as Kubernetes writes it.
pub(crate) fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Time that has passed since a timestamp in an object.
pub(crate) fn age(object: &Value, pointer: &str, now: SystemTime) -> Option<Duration> {
    let at = humantime::parse_rfc3339(text(object, pointer)?).ok()?;
    Some(now.duration_since(at).unwrap_or_default())
}

/// Sets a value at a path of object keys, making the objects on the way.
pub(crate) fn set(object: &mut Value, path: &[&str], value: Value) {
    let mut place = object;
    for key in path {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[*key];
    }
    *place = value;
}

/// Sets a value unless something is there.
pub(crate) fn set_default(object: &mut Value, path: &[&str], value: Value) {
    let pointer = path
        .iter()
        .fold(String::new(), |pointer, key| format!("{pointer}/{key}"));
    if object.pointer(&pointer).is_none_or(Value::is_null) {
        set(object, path, value);
    }
}

/// Alphabet of generated names: no vowels, no letters that look like digits.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A name suffix from a number, as Kubernetes generates them.
pub(crate) fn suffix(mut number: u64, length: usize) -> String {
    let base = NAME_ALPHABET.len() as u64;
    let mut out = String::with_capacity(length);
    for _ in 0..length {
        let index = usize::try_from(number % base).unwrap_or_default();
        out.push(char::from(NAME_ALPHABET[index]));
        number /= base;
    }
    out
}

/// A number that depends on the content of a value only (FNV-1a, so that it is the
/// same in every run).
pub(crate) fn content_hash(value: &Value) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in canonical(value).bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

/// JSON with sorted keys.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<_, _> = map.iter().collect();
            let fields: Vec<_> = sorted
                .iter()
                .map(|(key, value)| format!("{key:?}:{}", canonical(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_its_file() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "shop"}});
        assert_eq!(Key::of(&pod).file(), "Pod/shop.a.json");
        assert_eq!(Key::new("Node", "", "node-1").file(), "Node/_.node-1.json");
    }

    #[test]
    fn hash_ignores_the_order_of_keys() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":{"c":2,"d":3}}"#).expect("json");
        let two: Value = serde_json::from_str(r#"{"b":{"d":3,"c":2},"a":1}"#).expect("json");
        assert_eq!(content_hash(&one), content_hash(&two));
        assert_ne!(content_hash(&one), content_hash(&json!({"a": 1})));
    }

    #[test]
    fn set_default_keeps_what_is_there() {
        let mut object = json!({"spec": {"type": "NodePort"}});
        set_default(&mut object, &["spec", "type"], json!("ClusterIP"));
        set_default(&mut object, &["spec", "affinity", "x"], json!(1));
        assert_eq!(
            object,
            json!({"spec": {"type": "NodePort", "affinity": {"x": 1}}})
        );
    }
}
