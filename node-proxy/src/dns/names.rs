//! Which names of the mesh a queried name may stand for.

/// Real search lists have a handful; the C library once took no more than six.
const SEARCH_MAX: usize = 16;

/// What the pod's programs may leave out of a name.
#[derive(Debug, Clone, Copy)]
pub struct NameScope<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The domain of services, such as `cluster.local`.
    pub domain: &'a str,
    /// Search domains beside those of Kubernetes.
    pub search: &'a [String],
}

/// A name to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The fully qualified name, lower case, without the last dot.
    pub host: String,
    /// What was left of the queried name after a search domain was taken off: the
    /// answer says then that the queried name is an alias of it.
    pub alias: Option<String>,
}

/// The names that a queried name (lower case, without the last dot) may stand for,
/// the likeliest first.
#[must_use]
pub fn candidates(name: &str, scope: &NameScope<'_>) -> Vec<Candidate> {
    let mut all = Vec::new();
    push(&mut all, name, None, scope);
    for suffix in search_domains(scope) {
        let rest = name
            .strip_suffix(suffix.as_str())
            .and_then(|rest| rest.strip_suffix('.'));
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            push(&mut all, rest, Some(rest), scope);
        }
    }
    all
}

fn push(all: &mut Vec<Candidate>, name: &str, alias: Option<&str>, scope: &NameScope<'_>) {
    let mut add = |host: String| {
        if all.iter().all(|other| other.host != host) {
            all.push(Candidate {
                host,
                alias: alias.map(str::to_owned),
            });
        }
    };
    add(name.to_owned());
    let NameScope {
        namespace, domain, ..
    } = scope;
    match name.split('.').count() {
        1 => add(format!("{name}.{namespace}.svc.{domain}")),
        2 => {
            add(format!("{name}.svc.{domain}"));
            // A pod of a headless service of the same namespace.
            add(format!("{name}.{namespace}.svc.{domain}"));
        }
        // service.namespace.svc, or pod.service.namespace.
        3 if name.ends_with(".svc") => add(format!("{name}.{domain}")),
        3 => add(format!("{name}.svc.{domain}")),
        4 if name.ends_with(".svc") => add(format!("{name}.{domain}")),
        _ => {}
    }
}

fn search_domains(scope: &NameScope<'_>) -> Vec<String> {
    let NameScope {
        namespace,
        domain,
        search,
    } = scope;
    let mut all = vec![
        format!("{namespace}.svc.{domain}"),
        format!("svc.{domain}"),
        (*domain).to_owned(),
    ];
    for suffix in search.iter().take(SEARCH_MAX) {
        if !all.contains(suffix) {
            all.push(suffix.clone());
        }
    }
    all
}

/// `*.parent` for each parent of a name, the nearest first, down to two labels: a
/// wildcard for a whole top-level domain would be a mistake.
pub fn wildcards(name: &str) -> impl Iterator<Item = String> {
    std::iter::successors(name.split_once('.').map(|(_, parent)| parent), |parent| {
        parent.split_once('.').map(|(_, parent)| parent)
    })
    .take_while(|parent| parent.contains('.'))
    .map(|parent| format!("*.{parent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(name: &str) -> Vec<(String, Option<String>)> {
        let search = ["corp.example".to_owned()];
        let scope = NameScope {
            namespace: "shop",
            domain: "cluster.local",
            search: &search,
        };
        candidates(name, &scope)
            .into_iter()
            .map(|c| (c.host, c.alias))
            .collect()
    }

    fn check(name: &str, expect: &[(&str, Option<&str>)]) {
        let expect: Vec<_> = expect
            .iter()
            .map(|(host, alias)| ((*host).to_owned(), alias.map(str::to_owned)))
            .collect();
        assert_eq!(hosts(name), expect, "{name}");
    }

    #[test]
    fn short_names_are_completed() {
        check(
            "cart",
            &[("cart", None), ("cart.shop.svc.cluster.local", None)],
        );
        check(
            "cart.other",
            &[
                ("cart.other", None),
                ("cart.other.svc.cluster.local", None),
                ("cart.other.shop.svc.cluster.local", None),
            ],
        );
        check(
            "cart.other.svc",
            &[
                ("cart.other.svc", None),
                ("cart.other.svc.cluster.local", None),
            ],
        );
    }

    #[test]
    fn search_domains_are_taken_off() {
        let found = hosts("www.example.com.svc.cluster.local");
        assert_eq!(
            found[0],
            ("www.example.com.svc.cluster.local".to_owned(), None)
        );
        assert!(found.contains(&(
            "www.example.com".to_owned(),
            Some("www.example.com".to_owned())
        )));
        let found = hosts("cart.other.corp.example");
        let wanted = (
            "cart.other.svc.cluster.local".to_owned(),
            Some("cart.other".to_owned()),
        );
        assert!(found.contains(&wanted), "{found:?}");
    }

    #[test]
    fn the_name_itself_comes_first_and_nothing_comes_twice() {
        let found = hosts("cart.shop.svc.cluster.local");
        assert_eq!(found[0], ("cart.shop.svc.cluster.local".to_owned(), None));
        let mut names: Vec<_> = found.iter().map(|(host, _)| host.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), found.len());
    }

    #[test]
    fn wildcards_go_up_to_two_labels() {
        let found: Vec<_> = wildcards("a.b.example.com").collect();
        assert_eq!(found, ["*.b.example.com", "*.example.com"]);
        assert_eq!(wildcards("example.com").count(), 0);
        assert_eq!(wildcards("com").count(), 0);
    }
}
