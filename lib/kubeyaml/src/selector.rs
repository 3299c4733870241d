//! Label selectors, as Kubernetes defines them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Whether `selector` selects an object with these labels. An empty selector
/// selects everything; an operator that does not exist selects nothing.
pub fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let wanted = selector.match_labels.as_ref();
    contains(labels, wanted.unwrap_or(&Labels::new()))
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| holds(requirement, labels))
}

/// Whether `labels` has every entry of `wanted`.
pub fn contains(labels: &Labels, wanted: &Labels) -> bool {
    wanted
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn holds(requirement: &LabelSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    let listed = |value: &String| requirement.values.iter().flatten().any(|v| v == value);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(selector: &Value, labels: &Value, expect: bool) {
        let selector_: LabelSelector = serde_json::from_value(selector.clone()).unwrap();
        let labels_: Labels = serde_json::from_value(labels.clone()).unwrap();
        assert_eq!(selects(&selector_, &labels_), expect, "{selector} {labels}");
    }

    #[test]
    fn selects_as_kubernetes_does() {
        let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
        check(&json!({}), &json!({}), true);
        check(
            &json!({"matchLabels": {"a": "1"}}),
            &json!({"a": "1", "b": "2"}),
            true,
        );
        check(
            &json!({"matchLabels": {"a": "1"}}),
            &json!({"a": "2"}),
            false,
        );
        check(
            &expression("In", json!(["1", "2"])),
            &json!({"a": "2"}),
            true,
        );
        check(&expression("In", json!(["1"])), &json!({}), false);
        check(&expression("NotIn", json!(["1"])), &json!({}), true);
        check(
            &expression("NotIn", json!(["1"])),
            &json!({"a": "1"}),
            false,
        );
        check(&expression("Exists", json!(null)), &json!({"a": ""}), true);
        check(
            &expression("DoesNotExist", json!(null)),
            &json!({"a": ""}),
            false,
        );
        check(
            &expression("Equals", json!(["1"])),
            &json!({"a": "1"}),
            false,
        );
    }
}
