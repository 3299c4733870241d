//! Label selectors in both spellings: the plain map of a Service and the
//! `matchLabels`/`matchExpressions` of everything newer.

use std::collections::BTreeMap;

use serde_json::Value;

use super::object::{list, string_map, text};

/// Whether every pair of a plain map (a Service's `spec.selector`, a
/// `nodeSelector`) is among the labels.
pub(crate) fn map_matches(wanted: &BTreeMap<&str, &str>, labels: &BTreeMap<&str, &str>) -> bool {
    wanted
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether a LabelSelector matches. An empty selector matches everything; a
/// requirement that cannot be understood matches nothing.
pub(crate) fn matches(selector: &Value, labels: &BTreeMap<&str, &str>) -> bool {
    map_matches(&string_map(selector, "/matchLabels"), labels)
        && list(selector, "/matchExpressions")
            .iter()
            .all(|one| requirement(one, labels))
}

/// One `{key, operator, values}`.
pub(crate) fn requirement(expression: &Value, labels: &BTreeMap<&str, &str>) -> bool {
    let Some(key) = text(expression, "/key") else {
        return false;
    };
    let held = labels.get(key).copied();
    let mut values = list(expression, "/values").iter().filter_map(Value::as_str);
    let number = |text: &str| text.parse::<i64>().ok();
    match text(expression, "/operator") {
        Some("In") => held.is_some_and(|held| values.any(|value| value == held)),
        Some("NotIn") => held.is_none_or(|held| values.all(|value| value != held)),
        Some("Exists") => held.is_some(),
        Some("DoesNotExist") => held.is_none(),
        Some(operator @ ("Gt" | "Lt")) => {
            match (held.and_then(number), values.next().and_then(number)) {
                (Some(held), Some(bound)) if operator == "Gt" => held > bound,
                (Some(held), Some(bound)) => held < bound,
                _ => false,
            }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(selector: &Value, labels: &[(&str, &str)], expect: bool) {
        let labels = labels.iter().copied().collect();
        assert_eq!(
            matches(selector, &labels),
            expect,
            "{selector} on {labels:?}"
        );
    }

    #[test]
    fn selectors() {
        let labels = [("app", "cart"), ("tier", "2")];
        check(&json!({}), &labels, true);
        check(&json!({"matchLabels": {"app": "cart"}}), &labels, true);
        check(
            &json!({"matchLabels": {"app": "cart", "x": "y"}}),
            &labels,
            false,
        );
        let one = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "tier", "operator": operator, "values": values}]});
        check(&one("In", json!(["1", "2"])), &labels, true);
        check(&one("In", json!(["1"])), &labels, false);
        check(&one("NotIn", json!(["2"])), &labels, false);
        check(&one("NotIn", json!(["2"])), &[], true);
        check(&one("Exists", json!([])), &labels, true);
        check(&one("DoesNotExist", json!([])), &labels, false);
        check(&one("Gt", json!(["1"])), &labels, true);
        check(&one("Lt", json!(["1"])), &labels, false);
        check(&one("Like", json!(["1"])), &labels, false);
    }
}
