//! Names as people type them: kinds with short and plural forms, `KIND/NAME`,
//! `POD.NAMESPACE`.

use anyhow::{Result, anyhow, bail};
use culvert_kubeyaml::Kind;
use serde_json::Value;

use crate::client::Client;
use crate::engine::object::{controller_uid, is_terminating, labels, name, namespace, text, uid};

/// What `all` stands for.
const ALL: [&str; 6] = [
    "Pod",
    "Service",
    "DaemonSet",
    "Deployment",
    "StatefulSet",
    "Job",
];

/// A kind by any of its names. A kind that only objects of other people have is
/// found by its own name.
pub(crate) fn kind(typed: &str, present: &[String]) -> Result<String> {
    let lower = typed.to_lowercase();
    // `deployments.apps` and `authorizationpolicies.policy.culvert.dev` mean the same.
    let first = lower.split('.').next().unwrap_or_default();
    let known = Kind::ALL.iter().find(|kind| {
        kind.name().to_lowercase() == first
            || kind.plural() == first
            || kind.short_names().contains(&first)
    });
    if let Some(kind) = known {
        return Ok(kind.name().to_owned());
    }
    let other = present.iter().find(|kind| {
        let name = kind.to_lowercase();
        name == first || format!("{name}s") == first
    });
    other.cloned().ok_or_else(|| {
        let all: Vec<_> = Kind::ALL.iter().map(|kind| kind.plural()).collect();
        anyhow!("no kind {typed:?}; expected one of {}", all.join(", "))
    })
}

/// Kind and names: `pods`, `pod/web`, `pod web other`.
pub(crate) fn what(words: &[String], present: &[String]) -> Result<Vec<(String, Option<String>)>> {
    let Some((first, rest)) = words.split_first() else {
        bail!("expected a kind")
    };
    if words.iter().any(|word| word.contains('/')) {
        return words
            .iter()
            .map(|word| {
                let (typed, name) = word
                    .split_once('/')
                    .ok_or_else(|| anyhow!("{word:?}: expected KIND/NAME"))?;
                Ok((kind(typed, present)?, Some(name.to_owned())))
            })
            .collect();
    }
    let mut all = Vec::new();
    for typed in first.split(',') {
        if typed == "all" && rest.is_empty() {
            all.extend(ALL.iter().map(|kind| ((*kind).to_owned(), None)));
            continue;
        }
        let kind = kind(typed, present)?;
        if rest.is_empty() {
            all.push((kind, None));
        } else {
            all.extend(rest.iter().map(|name| (kind.clone(), Some(name.clone()))));
        }
    }
    Ok(all)
}

/// A name and its namespace: `NAME.NAMESPACE` where no object of that whole name is
/// in the given namespace.
pub(crate) async fn place(
    client: &Client,
    kind: &str,
    typed: &str,
    given: &str,
) -> Result<(String, String)> {
    if crate::engine::object::is_cluster_scoped(kind) {
        return Ok((typed.to_owned(), String::new()));
    }
    if let Some((wanted, space)) = typed.rsplit_once('.') {
        let whole = client.objects(kind, Some(given)).await?;
        if !whole.iter().any(|object| name(object) == typed) {
            return Ok((wanted.to_owned(), space.to_owned()));
        }
    }
    Ok((typed.to_owned(), given.to_owned()))
}

/// A pod as a person names it: `POD`, `POD.NAMESPACE`, `pod/POD`, or `KIND/NAME` for
/// one of the pods of an owner or a Service.
pub(crate) async fn pod(client: &Client, typed: &str, given: Option<&str>) -> Result<Value> {
    let pods = client.objects("Pod", None).await?;
    if let Some((owner_kind, owner)) = typed
        .split_once('/')
        .filter(|(kind, _)| !matches!(*kind, "pod" | "pods" | "po"))
    {
        return pod_of(
            client,
            &pods,
            (owner_kind, owner),
            given.unwrap_or("default"),
        )
        .await;
    }
    let typed = typed.rsplit('/').next().unwrap_or(typed);
    let matches =
        |pod: &&Value, wanted: &str, space: &str| name(pod) == wanted && namespace(pod) == space;
    let space = given.unwrap_or("default");
    if let Some(found) = pods.iter().find(|pod| matches(pod, typed, space)) {
        return Ok(found.clone());
    }
    if let (None, Some((wanted, space))) = (given, typed.rsplit_once('.'))
        && let Some(found) = pods.iter().find(|pod| matches(pod, wanted, space))
    {
        return Ok(found.clone());
    }
    let elsewhere: Vec<_> = pods
        .iter()
        .filter(|pod| name(pod) == typed)
        .map(|pod| format!("{typed}.{}", namespace(pod)))
        .collect();
    if elsewhere.is_empty() {
        bail!("no pod {typed:?} in namespace {space:?}; `culvert get pods -A` shows all");
    }
    bail!(
        "no pod {typed:?} in namespace {space:?}; there is {}",
        elsewhere.join(", ")
    )
}

async fn pod_of(
    client: &Client,
    pods: &[Value],
    (typed, owner): (&str, &str),
    space: &str,
) -> Result<Value> {
    let kind = kind(typed, &[])?;
    let (owner, space) = match owner.split_once('.') {
        Some((owner, space)) => (owner, space),
        None => (owner, space),
    };
    let all = client.objects(&kind, Some(space)).await?;
    let Some(object) = all.iter().find(|object| name(object) == owner) else {
        bail!("no {kind} {owner:?} in namespace {space:?}");
    };
    let selector = crate::engine::object::string_map(object, "/spec/selector");
    let belongs = |pod: &&Value| {
        let mine = match kind.as_str() {
            "Service" => {
                !selector.is_empty()
                    && crate::engine::selector::map_matches(&selector, &labels(pod))
            }
            _ => controller_uid(pod) == Some(uid(object)),
        };
        mine && namespace(pod) == space && !is_terminating(pod)
    };
    let ready = |pod: &&Value| crate::engine::object::is_pod_ready(pod);
    let own: Vec<_> = pods.iter().filter(belongs).collect();
    let chosen = own.iter().find(|pod| ready(pod)).or(own.first());
    chosen
        .map(|pod| Value::clone(pod))
        .ok_or_else(|| anyhow!("{kind} {space}/{owner} has no pods"))
}

/// A container of a pod: the named one, or the first.
pub(crate) fn container(pod: &Value, given: Option<&str>) -> Result<String> {
    let all: Vec<_> = ["containers", "initContainers"]
        .iter()
        .flat_map(|field| crate::engine::object::list(pod, &format!("/spec/{field}")))
        .filter_map(|container| text(container, "/name"))
        .collect();
    match given {
        None => all
            .first()
            .map(|first| (*first).to_owned())
            .ok_or_else(|| anyhow!("the pod has no containers")),
        Some(wanted) if all.contains(&wanted) => Ok(wanted.to_owned()),
        Some(wanted) => bail!(
            "pod {} has no container {wanted:?}; there is {}",
            name(pod),
            all.join(", ")
        ),
    }
}

/// A label selector as kubectl takes it: `a=b,c!=d,e,!f`.
pub(crate) fn label_selector(text: &str) -> impl Fn(&Value) -> bool + use<> {
    let terms: Vec<String> = text.split(',').map(|term| term.trim().to_owned()).collect();
    move |object| {
        let labels = labels(object);
        terms.iter().all(|term| {
            if let Some((key, value)) = term.split_once("!=") {
                labels.get(key) != Some(&value)
            } else if let Some((key, value)) = term.split_once('=') {
                labels.get(key) == Some(&value.trim_start_matches('='))
            } else if let Some(key) = term.strip_prefix('!') {
                !labels.contains_key(key)
            } else {
                labels.contains_key(term.as_str())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn kinds() {
        for typed in ["po", "pods", "Pod", "pod"] {
            assert_eq!(kind(typed, &[]).expect("known"), "Pod");
        }
        assert_eq!(kind("deploy", &[]).expect("known"), "Deployment");
        assert_eq!(
            kind("authorizationpolicies.policy.culvert.dev", &[]).expect("known"),
            "AuthorizationPolicy"
        );
        assert_eq!(
            kind("widgets", &["Widget".to_owned()]).expect("present"),
            "Widget"
        );
        assert!(
            kind("widgets", &[])
                .expect_err("unknown")
                .to_string()
                .contains("pods")
        );
    }

    #[test]
    fn kinds_and_names() {
        let pod = |name: Option<&str>| ("Pod".to_owned(), name.map(str::to_owned));
        assert_eq!(what(&words(&["pods"]), &[]).expect("good"), [pod(None)]);
        assert_eq!(
            what(&words(&["pod", "a", "b"]), &[]).expect("good"),
            [pod(Some("a")), pod(Some("b"))]
        );
        assert_eq!(
            what(&words(&["pod/a"]), &[]).expect("good"),
            [pod(Some("a"))]
        );
        assert_eq!(what(&words(&["po,svc"]), &[]).expect("good").len(), 2);
        assert!(what(&words(&["pod/a", "b"]), &[]).is_err());
    }

    #[test]
    fn selectors() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "1"}}});
        let check =
            |text: &str, expect: bool| assert_eq!(label_selector(text)(&object), expect, "{text}");
        check("app=web", true);
        check("app==web,tier=1", true);
        check("app!=web", false);
        check("tier", true);
        check("!tier", false);
    }
}
