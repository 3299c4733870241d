//! Pods made from the template of a Deployment, StatefulSet, DaemonSet or Job.

use serde_json::{Value, json};

use crate::engine::object::{
    Object, content_hash, is_finished, is_terminating, namespace, owner_reference, set,
    set_default, suffix, uid,
};
use crate::engine::world::World;

/// Length of a template hash in a pod's name and label.
const HASH_LENGTH: usize = 10;
/// Length of the random end of a pod's name.
const RANDOM_LENGTH: usize = 5;

/// Hash of a pod template: it changes when the pods have to be replaced.
pub(crate) fn hash(owner: &Value) -> String {
    let template = owner.pointer("/spec/template").unwrap_or(&Value::Null);
    suffix(content_hash(template), HASH_LENGTH)
}

/// A random end of a name.
pub(crate) fn random_suffix() -> String {
    suffix(rand::random(), RANDOM_LENGTH)
}

/// A pod of the owner's template, with the extra labels.
pub(crate) fn pod(owner: &Value, name: &str, labels: &[(&str, &str)]) -> Value {
    let template = owner
        .pointer("/spec/template")
        .cloned()
        .unwrap_or_else(|| json!({}));
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template.get("metadata").cloned().unwrap_or_else(|| json!({})),
        "spec": template.get("spec").cloned().unwrap_or_else(|| json!({})),
    });
    set(&mut pod, &["metadata", "name"], json!(name));
    set(
        &mut pod,
        &["metadata", "namespace"],
        json!(namespace(owner)),
    );
    set(
        &mut pod,
        &["metadata", "ownerReferences"],
        json!([owner_reference(owner)]),
    );
    for (key, value) in labels {
        set(&mut pod, &["metadata", "labels", key], json!(value));
    }
    set_default(&mut pod, &["metadata", "annotations"], json!({}));
    crate::engine::defaults::pod(&mut pod);
    pod
}

/// The pods that an owner controls, oldest first within equal names.
pub(crate) fn owned<'a>(world: &'a World, owner: &Value) -> Vec<&'a Object> {
    let owner_uid = uid(owner).to_owned();
    world
        .in_namespace("Pod", namespace(owner))
        .filter(move |pod| crate::engine::object::controller_uid(pod) == Some(&owner_uid))
        .collect()
}

/// Whether a pod still counts as running or about to run.
pub(crate) fn is_active(pod: &Value) -> bool {
    !is_terminating(pod) && !is_finished(pod)
}

/// An absolute number or a percentage of a total.
pub(crate) fn int_or_percent(value: Option<&Value>, total: u64, round_up: Rounding) -> Option<u64> {
    let value = value?;
    if let Some(number) = value.as_u64() {
        return Some(number);
    }
    let percent: u64 = value.as_str()?.strip_suffix('%')?.parse().ok()?;
    Some(match round_up {
        Rounding::Up => (total * percent).div_ceil(100),
        Rounding::Down => total * percent / 100,
    })
}

/// What to do with a part of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rounding {
    /// Surge rounds up.
    Up,
    /// Unavailability rounds down.
    Down,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_follows_the_template_only() {
        let one = json!({"spec": {"replicas": 1, "template": {"spec": {"containers": []}}}});
        let two = json!({"spec": {"replicas": 5, "template": {"spec": {"containers": []}}}});
        let three = json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}});
        assert_eq!(hash(&one), hash(&two));
        assert_ne!(hash(&one), hash(&three));
        assert_eq!(hash(&one).len(), HASH_LENGTH);
    }

    #[test]
    fn percentages_round_as_kubernetes_does() {
        let quarter = json!("25%");
        assert_eq!(int_or_percent(Some(&quarter), 3, Rounding::Up), Some(1));
        assert_eq!(int_or_percent(Some(&quarter), 3, Rounding::Down), Some(0));
        assert_eq!(int_or_percent(Some(&json!(2)), 3, Rounding::Down), Some(2));
        assert_eq!(int_or_percent(Some(&json!("x")), 3, Rounding::Down), None);
        assert_eq!(int_or_percent(None, 3, Rounding::Down), None);
    }
}
