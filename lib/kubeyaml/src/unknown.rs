//! Fields that the typed form of an object did not take over.

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::{CronJob, Job},
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Node, Pod, Secret, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    networking::v1::NetworkPolicy,
};
use schemars::schema_for;
use serde_json::Value;

use crate::{
    kind::Kind,
    path::{FieldPath, Segment},
    words::closest,
};

/// A field without effect.
#[derive(Debug)]
pub(crate) struct UnknownField {
    pub(crate) path: FieldPath,
    pub(crate) suggestion: Option<String>,
}

/// Fields of `written` that are absent from `decoded`.
pub(crate) fn unknown_fields(kind: Kind, written: &Value, decoded: &Value) -> Vec<UnknownField> {
    let mut paths = Vec::new();
    compare(&FieldPath::root(), written, decoded, &mut paths);
    if paths.is_empty() {
        return Vec::new();
    }
    let schema = schema(kind);
    paths
        .into_iter()
        .map(|path| UnknownField {
            suggestion: suggestion(schema.as_ref(), &path),
            path,
        })
        .collect()
}

fn compare(path: &FieldPath, written: &Value, decoded: &Value, found: &mut Vec<FieldPath>) {
    match (written, decoded) {
        (Value::Object(written), Value::Object(decoded)) => {
            for (key, value) in written {
                match decoded.get(key) {
                    Some(other) => compare(&path.key(key), value, other, found),
                    None if value.is_null() => {}
                    None => found.push(path.key(key)),
                }
            }
        }
        (Value::Array(written), Value::Array(decoded)) => {
            for (index, (value, other)) in written.iter().zip(decoded).enumerate() {
                compare(&path.index(index), value, other, found);
            }
        }
        _ => {}
    }
}

fn schema(kind: Kind) -> Option<Value> {
    macro_rules! schemas {
        ($($kind:ident)+) => {
            match kind {
                $(Kind::$kind => Some(schema_for!($kind).to_value()),)+
                Kind::AuthorizationPolicy | Kind::PeerAuthentication => None,
            }
        };
    }
    schemas!(Namespace ServiceAccount Node Pod Service ConfigMap Secret EndpointSlice Lease
        Deployment ReplicaSet StatefulSet DaemonSet Job CronJob NetworkPolicy)
}

/// The known field of the same object that is most like the unknown one.
fn suggestion(schema: Option<&Value>, path: &FieldPath) -> Option<String> {
    let root = schema?;
    let (last, parents) = path.segments().split_last()?;
    let mut node = root;
    for segment in parents {
        node = match segment {
            Segment::Key(key) => {
                let object = resolve(root, node)?;
                match object.get("properties").and_then(|p| p.get(key)) {
                    Some(field) => field,
                    None => object.get("additionalProperties")?,
                }
            }
            Segment::Index(_) => resolve(root, node)?.get("items")?,
        };
    }
    let Segment::Key(word) = last else {
        return None;
    };
    let known = resolve(root, node)?.get("properties")?.as_object()?;
    closest(word, known.keys().map(String::as_str)).map(str::to_owned)
}

/// Follows references and optional types; bounded, since schemas may recurse.
fn resolve<'a>(root: &'a Value, mut node: &'a Value) -> Option<&'a Value> {
    for _ in 0..8 {
        let one_of = ["anyOf", "allOf", "oneOf"]
            .iter()
            .find_map(|key| node.get(key)?.as_array()?.first());
        node = match (node.get("$ref").and_then(Value::as_str), one_of) {
            (Some(reference), _) => root.pointer(reference.strip_prefix('#')?)?,
            (None, Some(first)) => first,
            (None, None) => return Some(node),
        };
    }
    None
}
