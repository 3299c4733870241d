//! Messages in plain words, and "did you mean".

/// The candidate that is most like `word`, if one is close.
pub(crate) fn closest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = word.to_lowercase();
    let limit = 1 + word.chars().count() / 4;
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, remove, replace) from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The unknown field and the known ones in a decoder's message.
pub(crate) fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field `")?;
    let (field, rest) = rest.split_once('`')?;
    let known = rest.split('`').skip(1).step_by(2).collect();
    Some((field, known))
}

/// A decoder's message in words that need no knowledge of Rust.
pub(crate) fn plain(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("invalid type: ")
        && let Some((found, wanted)) = rest.rsplit_once(", expected ")
    {
        let wanted = type_name(wanted);
        let scalar = found.starts_with("integer ")
            || found.starts_with("boolean ")
            || found.starts_with("floating point ");
        let found = found_name(found);
        return if scalar && wanted == "text" {
            format!("expected text, found {found}: write it in quotes")
        } else {
            format!("expected {wanted}, found {found}")
        };
    }
    if let Some(rest) = message.strip_prefix("invalid value: ")
        && let Some((found, wanted)) = rest.rsplit_once(", expected ")
    {
        return format!(
            "expected {}, found {}",
            type_name(wanted),
            found_name(found)
        );
    }
    if let Some(field) = message
        .strip_prefix("missing field `")
        .and_then(|rest| rest.strip_suffix('`'))
    {
        return format!("required field {field} is missing");
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        return format!("unknown value {rest}");
    }
    message.to_owned()
}

fn type_name(wanted: &str) -> String {
    match wanted {
        "i32" | "i64" | "u16" | "u32" | "u64" | "usize" => "a whole number".to_owned(),
        "f64" => "a number".to_owned(),
        "a string" | "string" => "text".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "IntOrString" | "data did not match any variant" => "a number or text".to_owned(),
        "Quantity" => "a quantity such as 100m or 1Gi".to_owned(),
        "Time" | "MicroTime" => "a time such as 2026-01-31T12:00:00Z".to_owned(),
        other => match other.strip_prefix("struct ").unwrap_or(other) {
            name if name.starts_with(|c: char| c.is_ascii_uppercase()) => {
                format!("an object ({name})")
            }
            name => name.to_owned(),
        },
    }
}

fn found_name(found: &str) -> String {
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        "null" | "unit value" => "nothing".to_owned(),
        other => match other.split_once(' ') {
            Some(("string", text)) => text.to_owned(),
            Some((_, value)) => value
                .trim_start_matches("point ")
                .trim_matches('`')
                .to_owned(),
            None => other.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_plain() {
        for (message, expect) in [
            (
                "invalid type: string \"three\", expected i32",
                "expected a whole number, found \"three\"",
            ),
            (
                "invalid type: integer `8080`, expected a string",
                "expected text, found 8080: write it in quotes",
            ),
            (
                "invalid type: boolean `true`, expected a string",
                "expected text, found true: write it in quotes",
            ),
            (
                "invalid type: sequence, expected DeploymentSpec",
                "expected an object (DeploymentSpec), found a list",
            ),
            (
                "invalid type: null, expected a sequence",
                "expected a list, found nothing",
            ),
            ("missing field `spec`", "required field spec is missing"),
            (
                "unknown variant `Deny`, expected `DENY`",
                "unknown value `Deny`, expected `DENY`",
            ),
        ] {
            assert_eq!(plain(message), expect);
        }
    }

    #[test]
    fn suggests_what_is_close() {
        let known = ["principals", "notPrincipals", "namespaces"];
        assert_eq!(closest("principal", known), Some("principals"));
        assert_eq!(closest("Namespaces", known), Some("namespaces"));
        assert_eq!(closest("ports", known), None);
        let (field, known) = unknown_field("unknown field `x`, expected one of `a`, `b`").unwrap();
        assert_eq!((field, known), ("x", vec!["a", "b"]));
    }
}
