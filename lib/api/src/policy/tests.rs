use serde_json::json;

use super::*;

#[test]
fn unknown_field_is_refused_by_name() {
    let error = serde_json::from_value::<AuthorizationPolicySpec>(json!({
        "rules": [{"from": [{"source": {"principal": ["*"]}}]}]
    }))
    .unwrap_err()
    .to_string();
    assert!(error.contains("unknown field `principal`"), "{error}");
}

#[test]
fn actions_and_modes_use_known_words() {
    let spec: AuthorizationPolicySpec = serde_json::from_value(json!({"action": "AUDIT"})).unwrap();
    assert_eq!(spec.action, Action::Audit);
    assert!(serde_json::from_value::<AuthorizationPolicySpec>(json!({"action": "Deny"})).is_err());
    let spec: PeerAuthenticationSpec = serde_json::from_value(json!({
        "mtls": {"mode": "STRICT"}, "portLevelMtls": {"8080": {"mode": "PERMISSIVE"}}
    }))
    .unwrap();
    assert_eq!(spec.mtls.unwrap().mode, MutualTlsMode::Strict);
    assert_eq!(spec.port_level_mtls["8080"].mode, MutualTlsMode::Permissive);
}

#[test]
fn ports_are_numbers_or_text() {
    let port = |value| serde_json::from_value::<PortValue>(value).unwrap().port();
    assert_eq!(port(json!(80)), Some(80));
    assert_eq!(port(json!("80")), Some(80));
    for bad in [
        json!(0),
        json!(-1),
        json!(65536),
        json!("0"),
        json!("+1"),
        json!("http"),
        json!(""),
    ] {
        assert_eq!(port(bad.clone()), None, "{bad}");
    }
}

#[test]
fn schema_forbids_unknown_fields() {
    let schema = schemars::schema_for!(AuthorizationPolicySpec);
    assert_eq!(schema.as_value()["additionalProperties"], json!(false));
}
