use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn domain(name: &str) -> TrustDomain {
    name.parse().expect(name)
}

#[test]
fn refuses_what_is_not_exactly_a_workload_identity() {
    for text in [
        "",
        "spiffe://",
        "spiffe://td",
        "spiffe://td/",
        "spiffe:///ns/a/sa/b",
        "http://td/ns/a/sa/b",
        "td/ns/a/sa/b",
        "spiffe://td/ns/a",
        "spiffe://td/ns/a/sa",
        "spiffe://td/ns/a/sa/",
        "spiffe://td/ns//sa/b",
        "spiffe://td/ns/a/sa/b/",
        "spiffe://td/ns/a/sa/b/c",
        "spiffe://td/sa/b/ns/a",
        "spiffe://td/NS/a/SA/b",
        "spiffe://td/ns/a/sa/..",
        "spiffe://td/ns/a/sa/b%2f",
        "spiffe://td/ns/a/sa/b?q",
        "spiffe://td/ns/a/sa/b#f",
        "spiffe://td:80/ns/a/sa/b",
        "spiffe://u@td/ns/a/sa/b",
        " spiffe://td/ns/a/sa/b",
        "spiffe://td/ns/a/sa/b\0",
    ] {
        assert!(text.parse::<Identity>().is_err(), "{text:?} was accepted");
    }
    let long = format!("spiffe://td/ns/a/sa/{}", "b".repeat(4096));
    assert!(long.parse::<Identity>().is_err());
}

#[test]
fn refuses_names_that_would_change_the_shape() {
    let td = domain("td");
    for (namespace, account) in [
        ("", "b"),
        ("a", ""),
        ("a/sa/x", "b"),
        ("a", "b/c"),
        ("..", "b"),
        ("a", "é"),
    ] {
        assert!(
            Identity::new(&td, namespace, account).is_err(),
            "{namespace:?} {account:?}"
        );
    }
}

#[test]
fn refuses_trust_domains_in_other_forms() {
    for text in ["", "spiffe://td", "td/", "td:443", "t d", "td\n", "é"] {
        assert!(
            text.parse::<TrustDomain>().is_err(),
            "{text:?} was accepted"
        );
    }
}

#[test]
fn an_error_names_the_text_and_the_form() {
    let error = "spiffe://td/ns/a"
        .parse::<Identity>()
        .expect_err("no account");
    assert!(error.to_string().contains("spiffe://td/ns/a"));
    assert!(error.to_string().contains("/sa/<service account>"));
}

#[test]
fn has_the_parts_it_was_made_of() {
    let identity = Identity::new(&domain("cluster.local"), "shop", "cart").expect("valid");
    assert_eq!(identity.uri(), "spiffe://cluster.local/ns/shop/sa/cart");
    assert_eq!(identity.principal(), "cluster.local/ns/shop/sa/cart");
    assert_eq!(identity.trust_domain().as_str(), "cluster.local");
    assert_eq!(identity.namespace(), "shop");
    assert_eq!(identity.service_account(), "cart");
    assert_eq!(
        format!("{identity} {identity:?}"),
        format!("{0} {0}", identity.uri())
    );
}

#[test]
fn scheme_and_trust_domain_ignore_case_and_the_path_does_not() {
    let parse = |text: &str| text.parse::<Identity>().expect(text);
    assert_eq!(
        parse("SPIFFE://Cluster.Local/ns/a/sa/b"),
        parse("spiffe://cluster.local/ns/a/sa/b")
    );
    assert_ne!(
        parse("spiffe://cluster.local/ns/a/sa/B"),
        parse("spiffe://cluster.local/ns/a/sa/b")
    );
    assert_eq!(domain("TD"), domain("td"));
}

proptest! {
    #[test]
    fn text_and_parts_agree(td in "[a-z0-9._-]{1,30}", ns in "[a-z0-9][a-z0-9-]{0,20}", sa in "[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}") {
        let made = Identity::new(&domain(&td), &ns, &sa).expect("valid");
        let parsed: Identity = made.uri().parse().expect("valid");
        prop_assert_eq!(&made, &parsed);
        prop_assert_eq!(parsed.namespace(), ns);
        prop_assert_eq!(parsed.service_account(), sa);
        prop_assert_eq!(parsed.trust_domain(), made.trust_domain());
        prop_assert!(HashSet::from([made]).contains(&parsed));
    }

    #[test]
    fn any_text_parses_to_itself_or_not_at_all(text in "(?i:spiffe)?(://)?[a-zA-Z0-9./:_-]{0,60}") {
        if let Ok(identity) = text.parse::<Identity>() {
            let again: Identity = identity.uri().parse().expect("its own uri");
            prop_assert_eq!(again, identity);
        }
    }
}
