//! Parts of matches.

use culvert_kubeyaml::policy::ip_block;
use culvert_model::{Match, Rules, ServiceAccount, StringMatch};
use ipnet::IpNet;

/// `*`, `prefix*`, `*suffix` or the text itself.
pub(super) fn strings(values: &[String]) -> Vec<StringMatch> {
    let values = values.iter();
    values
        .map(
            |value| match (value.strip_prefix('*'), value.strip_suffix('*')) {
                (Some(""), _) => StringMatch::Presence,
                (Some(suffix), _) => StringMatch::Suffix(suffix.into()),
                (None, Some(prefix)) => StringMatch::Prefix(prefix.into()),
                (None, None) => StringMatch::Exact(value.as_str().into()),
            },
        )
        .collect()
}

/// `name` in the policy's namespace, or `namespace/name`.
pub(super) fn accounts(namespace: &str, values: &[String]) -> Vec<ServiceAccount> {
    let values = values.iter();
    values
        .map(|value| {
            let (namespace, name) = value.split_once('/').unwrap_or((namespace, value));
            ServiceAccount {
                namespace: namespace.into(),
                name: name.into(),
            }
        })
        .collect()
}

/// Addresses and ranges; only values that passed the checks of objects come here.
pub(super) fn ips(values: &[String]) -> Vec<IpNet> {
    values.iter().filter_map(|value| ip_block(value)).collect()
}

/// Rules that hold when any of these matches holds.
pub(super) fn any(matches: Vec<Match>) -> Rules {
    Rules { matches }
}

/// The match that holds for peers without an identity.
pub(super) fn unauthenticated() -> Match {
    Match {
        not_principals: vec![StringMatch::Presence],
        ..Match::default()
    }
}
