//! Forms of names in Kubernetes.

/// RFC 1123 label: namespaces, containers.
pub(super) fn dns_label(name: &str) -> Result<(), String> {
    let expected = "expected a name of lower-case letters, digits and '-', \
                    beginning and ending with a letter or digit, at most 63 long";
    if is_label(name) {
        Ok(())
    } else {
        Err(format!("{expected}, found {name:?}"))
    }
}

/// RFC 1035 label: Services.
pub(super) fn dns_1035_label(name: &str) -> Result<(), String> {
    let expected = "expected a name of lower-case letters, digits and '-', \
                    beginning with a letter and ending with a letter or digit, at most 63 long";
    if is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase()) {
        Ok(())
    } else {
        Err(format!("{expected}, found {name:?}"))
    }
}

/// RFC 1123 subdomain: most objects.
pub(super) fn dns_subdomain(name: &str) -> Result<(), String> {
    let expected = "expected a name of lower-case letters, digits, '-' and '.', \
                    each part beginning and ending with a letter or digit, at most 253 long";
    if name.len() <= 253 && name.split('.').all(is_subdomain_part) {
        Ok(())
    } else {
        Err(format!("{expected}, found {name:?}"))
    }
}

fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_subdomain_part(name)
}

fn is_subdomain_part(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    bytes.iter().all(|b| plain(*b) || *b == b'-')
        && bytes.first().is_some_and(|b| plain(*b))
        && bytes.last().is_some_and(|b| plain(*b))
}

/// Keys of labels and annotations: `name` or `dns.prefix/name`.
pub(super) fn qualified_name(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    // Annotation keys may have capitals in the prefix of older objects.
    let prefix = prefix.map(str::to_ascii_lowercase);
    if prefix.is_none_or(|prefix| dns_subdomain(&prefix).is_ok())
        && is_value(name)
        && !name.is_empty()
    {
        return Ok(());
    }
    Err(format!(
        "expected a key such as app or example.com/app, each part at most 63 letters, digits, '-', '_' and '.', found {key:?}"
    ))
}

/// Values of labels.
pub(super) fn label_value(value: &str) -> Result<(), String> {
    if is_value(value) {
        return Ok(());
    }
    Err(format!(
        "expected at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, found {value:?}"
    ))
}

fn is_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.len() <= 63
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
        && bytes.first().is_none_or(u8::is_ascii_alphanumeric)
        && bytes.last().is_none_or(u8::is_ascii_alphanumeric)
}

/// Names of ports (IANA service names).
pub(super) fn port_name(name: &str) -> Result<(), String> {
    let letters = name.bytes().any(|b| b.is_ascii_lowercase());
    if name.len() <= 15 && is_subdomain_part(name) && letters && !name.contains("--") {
        return Ok(());
    }
    Err(format!(
        "expected at most 15 lower-case letters, digits and '-', with at least one letter, found {name:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        for (name, label, service, subdomain) in [
            ("web", true, true, true),
            ("web-1", true, true, true),
            ("1web", true, false, true),
            ("a.b", false, false, true),
            ("Web", false, false, false),
            ("-web", false, false, false),
            ("web-", false, false, false),
            ("we_b", false, false, false),
            ("a..b", false, false, false),
            ("", false, false, false),
        ] {
            assert_eq!(dns_label(name).is_ok(), label, "{name}");
            assert_eq!(dns_1035_label(name).is_ok(), service, "{name}");
            assert_eq!(dns_subdomain(name).is_ok(), subdomain, "{name}");
        }
        assert!(dns_label(&"a".repeat(64)).is_err());
        assert!(qualified_name("app.kubernetes.io/name").is_ok());
        assert!(qualified_name("app/").is_err());
        assert!(qualified_name("a b").is_err());
        assert!(label_value("").is_ok());
        assert!(label_value("v1.2_x").is_ok());
        assert!(label_value("a/b").is_err());
        assert!(port_name("http-1").is_ok());
        assert!(port_name("8080").is_err());
    }
}
