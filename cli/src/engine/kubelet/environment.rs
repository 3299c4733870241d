//! A container's environment, and `$(NAME)` in its command and arguments.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::Value;

use crate::engine::object::{Key, labels, list, name, namespace, pod_ips, string_map, text, uid};
use crate::engine::world::World;

/// Where programs are looked for when the container does not say.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of a container, in order, later entries over earlier ones.
///
/// # Errors
/// Names the reference that cannot be resolved.
pub(crate) fn environment(
    world: &World,
    pod: &Value,
    container: &Value,
    inherited_path: &str,
) -> Result<Vec<(String, String)>, String> {
    let mut all = Environment::default();
    all.set("PATH", inherited_path);
    all.set("HOSTNAME", &hostname(pod));
    all.set("HOME", "/root");
    for source in list(container, "/envFrom") {
        let prefix = text(source, "/prefix").unwrap_or_default();
        for (kind, field) in [("ConfigMap", "/configMapRef"), ("Secret", "/secretRef")] {
            let Some(reference) = source.pointer(field) else {
                continue;
            };
            for (key, value) in all_of(world, pod, kind, reference)? {
                all.set(&format!("{prefix}{key}"), &value);
            }
        }
    }
    for entry in list(container, "/env") {
        let Some(key) = text(entry, "/name") else {
            continue;
        };
        if let Some(value) = text(entry, "/value") {
            let value = all.expand(value);
            all.set(key, &value);
        } else if let Some(source) = entry.get("valueFrom") {
            let value =
                value_from(world, pod, source).map_err(|why| format!("env {key}: {why}"))?;
            if let Some(value) = value {
                all.set(key, &value);
            }
        } else {
            all.set(key, "");
        }
    }
    Ok(all.entries)
}

/// Replaces `$(NAME)` where the name is known; `$$` is a dollar sign.
pub(crate) fn expand(text: &str, environment: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            out.push('$');
            rest = after;
            continue;
        }
        let reference = rest
            .strip_prefix("$(")
            .and_then(|inner| inner.split_once(')'));
        let known = reference.and_then(|(name, after)| {
            let value = environment.iter().rev().find(|(key, _)| key == name)?;
            Some((&value.1, after))
        });
        match known {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => {
                out.push('$');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The pod's host name.
pub(crate) fn hostname(pod: &Value) -> String {
    let wanted = text(pod, "/spec/hostname").unwrap_or_else(|| name(pod));
    // The kernel takes 64 bytes, DNS 63.
    wanted
        .chars()
        .take(63)
        .collect::<String>()
        .trim_end_matches(['-', '.'])
        .to_owned()
}

#[derive(Debug, Default)]
struct Environment {
    entries: Vec<(String, String)>,
}

impl Environment {
    fn set(&mut self, key: &str, value: &str) {
        self.entries.retain(|(held, _)| held != key);
        self.entries.push((key.to_owned(), value.to_owned()));
    }

    fn expand(&self, value: &str) -> String {
        expand(value, &self.entries)
    }
}

fn value_from(world: &World, pod: &Value, source: &Value) -> Result<Option<String>, String> {
    if let Some(path) = text(source, "/fieldRef/fieldPath") {
        return field(pod, path).map(Some);
    }
    for (kind, pointer) in [
        ("ConfigMap", "/configMapKeyRef"),
        ("Secret", "/secretKeyRef"),
    ] {
        let Some(reference) = source.pointer(pointer) else {
            continue;
        };
        let key = text(reference, "/key").unwrap_or_default();
        let values = all_of(world, pod, kind, reference)?;
        let optional = reference.get("optional") == Some(&Value::Bool(true));
        return match values.get(key) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(format!(
                "{kind} {} has no key {key:?}",
                text(reference, "/name").unwrap_or_default()
            )),
        };
    }
    if source.get("resourceFieldRef").is_some() {
        // Nothing limits a container here, so it may use the machine.
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cpu =
            text(source, "/resourceFieldRef/resource").is_some_and(|one| one.ends_with("cpu"));
        return Ok(Some(if cpu { all.to_string() } else { "0".to_owned() }));
    }
    Err(
        "unknown valueFrom; expected fieldRef, configMapKeyRef, secretKeyRef or resourceFieldRef"
            .to_owned(),
    )
}

/// The value of a downward-API field.
pub(crate) fn field(pod: &Value, path: &str) -> Result<String, String> {
    let quoted = |prefix: &str| -> Option<&str> {
        path.strip_prefix(prefix)?
            .strip_prefix("['")?
            .strip_suffix("']")
    };
    if let Some(key) = quoted("metadata.labels") {
        return Ok(labels(pod).get(key).copied().unwrap_or_default().to_owned());
    }
    if let Some(key) = quoted("metadata.annotations") {
        let all = string_map(pod, "/metadata/annotations");
        return Ok(all.get(key).copied().unwrap_or_default().to_owned());
    }
    let ips = || {
        pod_ips(pod)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let at = |pointer: &str| text(pod, pointer).unwrap_or_default().to_owned();
    Ok(match path {
        "metadata.name" => name(pod).to_owned(),
        "metadata.namespace" => namespace(pod).to_owned(),
        "metadata.uid" => uid(pod).to_owned(),
        "spec.nodeName" => at("/spec/nodeName"),
        "spec.serviceAccountName" => at("/spec/serviceAccountName"),
        "status.hostIP" => at("/status/hostIP"),
        "status.podIP" => ips().into_iter().next().unwrap_or_default(),
        "status.podIPs" => ips().join(","),
        "metadata.labels" => pairs(&labels(pod)),
        "metadata.annotations" => pairs(&string_map(pod, "/metadata/annotations")),
        _ => return Err(format!("unknown field {path:?}")),
    })
}

fn pairs(map: &BTreeMap<&str, &str>) -> String {
    let lines: Vec<_> = map
        .iter()
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    lines.join("\n")
}

/// All values of a ConfigMap or Secret as text.
fn all_of(
    world: &World,
    pod: &Value,
    kind: &str,
    reference: &Value,
) -> Result<BTreeMap<String, String>, String> {
    let object = text(reference, "/name").unwrap_or_default();
    match contents(world, namespace(pod), kind, object) {
        Some(values) => {
            let as_text =
                |(key, value): (String, Vec<u8>)| Some((key, String::from_utf8(value).ok()?));
            Ok(values.into_iter().filter_map(as_text).collect())
        }
        None if reference.get("optional") == Some(&Value::Bool(true)) => Ok(BTreeMap::new()),
        None => Err(format!("{kind} {}/{object} not found", namespace(pod))),
    }
}

/// All values of a ConfigMap or Secret.
pub(crate) fn contents(
    world: &World,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Option<BTreeMap<String, Vec<u8>>> {
    let object = world.object(&Key::new(kind, namespace, name))?;
    let decode = |value: &str| base64::engine::general_purpose::STANDARD.decode(value).ok();
    let plain = |pointer: &str| -> Vec<(String, Vec<u8>)> {
        let map = string_map(object, pointer);
        map.into_iter()
            .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
            .collect()
    };
    let encoded = |pointer: &str| -> Vec<(String, Vec<u8>)> {
        let map = string_map(object, pointer);
        map.into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), decode(value)?)))
            .collect()
    };
    Some(match kind {
        "Secret" => encoded("/data")
            .into_iter()
            .chain(plain("/stringData"))
            .collect(),
        _ => plain("/data")
            .into_iter()
            .chain(encoded("/binaryData"))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::*;
    use crate::engine::world::Action;

    fn world() -> World {
        let mut world = World::default();
        for object in [
            json!({"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "shop"},
                   "data": {"level": "debug"}}),
            json!({"kind": "Secret", "metadata": {"name": "s", "namespace": "shop"},
                   "data": {"key": "c2VjcmV0"}, "stringData": {"plain": "text"}}),
        ] {
            world.apply(Action::Put(object), SystemTime::UNIX_EPOCH);
        }
        world
    }

    fn pod() -> Value {
        json!({"kind": "Pod", "metadata": {"name": "web-1", "namespace": "shop",
               "labels": {"app": "web"}},
               "spec": {"nodeName": "node-1", "serviceAccountName": "web"},
               "status": {"podIPs": [{"ip": "10.244.1.2"}, {"ip": "fd00::2"}]}})
    }

    fn value(container: &Value, key: &str) -> Option<String> {
        let all = environment(&world(), &pod(), container, PATH).expect("good");
        all.into_iter()
            .find(|(held, _)| held == key)
            .map(|(_, value)| value)
    }

    #[test]
    fn sources() {
        let container = json!({
            "envFrom": [{"prefix": "C_", "configMapRef": {"name": "c"}}],
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "value": "$(A)-$(C_level)-$(NOPE)-$$(A)"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
                {"name": "PLAIN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "plain"}}},
            ],
        });
        assert_eq!(
            value(&container, "B").as_deref(),
            Some("1-debug-$(NOPE)-$(A)")
        );
        assert_eq!(value(&container, "IP").as_deref(), Some("10.244.1.2"));
        assert_eq!(value(&container, "APP").as_deref(), Some("web"));
        assert_eq!(value(&container, "KEY").as_deref(), Some("secret"));
        assert_eq!(value(&container, "PLAIN").as_deref(), Some("text"));
        assert_eq!(value(&container, "HOSTNAME").as_deref(), Some("web-1"));
    }

    #[test]
    fn a_missing_reference_is_named() {
        let container = json!({"env": [{"name": "X",
            "valueFrom": {"configMapKeyRef": {"name": "c", "key": "nope"}}}]});
        let error = environment(&world(), &pod(), &container, PATH).expect_err("missing");
        assert!(
            error.contains("env X") && error.contains("\"nope\""),
            "{error}"
        );
    }
}
