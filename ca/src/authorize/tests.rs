use std::sync::Mutex;

use culvert_runtime::Metrics;
use culvert_token::Bound;

use super::*;
use crate::pods::{LookUp, Node, Pod};

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";

/// Gives one placement after another, the last one for ever.
#[derive(Debug)]
struct Sequence(Mutex<Vec<Result<Arc<Placement>, ()>>>);

impl Sequence {
    fn of(placements: impl IntoIterator<Item = Placement>) -> Arc<Self> {
        let mut all: Vec<_> = placements.into_iter().map(|p| Ok(Arc::new(p))).collect();
        all.reverse();
        Arc::new(Self(Mutex::new(all)))
    }
}

impl PodsByNode for Sequence {
    fn placement(&self, _age_max: Duration) -> LookUp<'_> {
        let mut all = self.0.lock().unwrap();
        let next = if all.len() > 1 {
            all.pop()
        } else {
            all.last().cloned()
        };
        let next = next.unwrap_or(Err(()));
        Box::pin(async { next.map_err(|()| PodsError::Interrupted) })
    }
}

fn pod(name: &str, node: &str, account: &str) -> Pod {
    Pod {
        namespace: if account == "culvert-node-proxy" {
            "culvert-system"
        } else {
            "shop"
        }
        .to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        node: node.to_owned(),
        service_account: account.to_owned(),
    }
}

fn nodes() -> [Node; 2] {
    ["node-1", "node-2"].map(|name| Node {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
    })
}

/// `web` on node-1, `api` on node-2, a node proxy on each.
fn two_nodes() -> Placement {
    let pods = [
        pod("web-1", "node-1", "web"),
        pod("api-1", "node-2", "api"),
        pod("proxy-1", "node-1", "culvert-node-proxy"),
        pod("proxy-2", "node-2", "culvert-node-proxy"),
    ];
    Placement::new(pods, nodes())
}

fn bound(name: &str) -> Option<Bound> {
    Some(Bound {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
    })
}

fn proxy(pod: Option<Bound>, node: Option<Bound>) -> Caller {
    Caller {
        namespace: "culvert-system".to_owned(),
        service_account: "culvert-node-proxy".to_owned(),
        pod,
        node,
    }
}

fn authorizer(pods: Arc<Sequence>) -> Authorizer {
    let account = Account {
        namespace: "culvert-system".to_owned(),
        name: "culvert-node-proxy".to_owned(),
    };
    let rules = Rules {
        trust_domain: "cluster.local".parse().unwrap(),
        node_accounts: BTreeSet::from([account]),
    };
    Authorizer::new(rules, pods, CaMetrics::new(&Metrics::new()))
}

async fn reason(caller: &Caller, requested: Option<&str>) -> &'static str {
    let authorizer = authorizer(Sequence::of([two_nodes()]));
    match authorizer.authorize(caller, requested).await {
        Ok(granted) => panic!("granted {granted:?}"),
        Err(denied) => denied.reason(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_nothing_of_another_node() {
    let caller = proxy(None, bound("node-2"));
    assert_eq!(reason(&caller, Some(WEB)).await, "pod_not_on_node");
    // Not even by naming another node's pod as its own.
    let caller = proxy(bound("proxy-1"), bound("node-2"));
    assert_eq!(reason(&caller, Some(WEB)).await, "unknown_pod");
}

#[tokio::test(start_paused = true)]
async fn every_binding_of_the_token_must_hold() {
    let stale = |name: &str| {
        Some(Bound {
            name: name.to_owned(),
            uid: "of-the-one-before".to_owned(),
        })
    };
    for (pod, node, expected) in [
        (None, None, "unbound_token"),
        (None, stale("node-1"), "unknown_node"),
        (None, bound("node-9"), "unknown_node"),
        (stale("proxy-1"), bound("node-1"), "unknown_pod"),
        (bound("proxy-9"), bound("node-1"), "unknown_pod"),
        (stale("proxy-1"), None, "unknown_pod"),
    ] {
        let caller = proxy(pod, node);
        assert_eq!(reason(&caller, Some(WEB)).await, expected, "{caller:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_node_accounts_ask_for_others_and_only_in_the_trust_domain() {
    let mut caller = proxy(None, bound("node-1"));
    for (requested, expected) in [
        (
            "spiffe://elsewhere.org/ns/shop/sa/web",
            "wrong_trust_domain",
        ),
        ("spiffe://cluster.local/ns/shop", "malformed_identity"),
        ("web", "malformed_identity"),
        ("", "malformed_identity"),
        ("spiffe://cluster.local/ns/shop/sa/api", "pod_not_on_node"),
        ("spiffe://cluster.local/ns/bank/sa/web", "pod_not_on_node"),
    ] {
        assert_eq!(
            reason(&caller, Some(requested)).await,
            expected,
            "{requested}"
        );
    }
    caller.namespace = "shop".to_owned();
    assert_eq!(reason(&caller, Some(WEB)).await, "not_a_node_account");
    let web = Caller {
        service_account: "web".to_owned(),
        ..caller
    };
    assert_eq!(reason(&web, Some(WEB)).await, "not_a_node_account");
}

#[tokio::test]
async fn a_node_gets_what_runs_on_it_and_anybody_its_own() {
    let authorizer = authorizer(Sequence::of([two_nodes()]));
    for caller in [
        proxy(None, bound("node-1")),
        proxy(bound("proxy-1"), bound("node-1")),
        proxy(bound("proxy-1"), None),
    ] {
        let granted = authorizer.authorize(&caller, Some(WEB)).await.unwrap();
        assert_eq!(granted.identity().uri(), WEB);
        assert!(matches!(granted, Granted::OnNode { node, .. } if node == "node-1"));
    }
    let discovery = Caller {
        namespace: "culvert-system".to_owned(),
        service_account: "culvert-discovery".to_owned(),
        pod: None,
        node: None,
    };
    let granted = authorizer.authorize(&discovery, None).await.unwrap();
    let expected = "spiffe://cluster.local/ns/culvert-system/sa/culvert-discovery";
    assert_eq!(granted.identity().uri(), expected);
    assert!(matches!(granted, Granted::Own(_)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_written_a_moment_later_is_waited_for() {
    let before = || Placement::new([], nodes());
    let late = [before(), before(), before(), two_nodes()];
    let authorizer = authorizer(Sequence::of(late));
    let caller = proxy(None, bound("node-1"));
    let started = Instant::now();
    authorizer.authorize(&caller, Some(WEB)).await.unwrap();
    assert_eq!(started.elapsed(), 3 * CATCH_UP_INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_pod_ends() {
    let authorizer = authorizer(Sequence::of([Placement::new([], nodes())]));
    let caller = proxy(None, bound("node-1"));
    let started = Instant::now();
    let denied = authorizer.authorize(&caller, Some(WEB)).await.unwrap_err();
    assert_eq!(denied.reason(), "pod_not_on_node");
    assert!(started.elapsed() >= CATCH_UP && started.elapsed() < 2 * CATCH_UP);
    // What no placement can change is refused at once.
    let started = Instant::now();
    let other = Some("spiffe://elsewhere.org/ns/shop/sa/web");
    authorizer.authorize(&caller, other).await.unwrap_err();
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn not_knowing_is_no_permission() {
    let nothing = Arc::new(Sequence(Mutex::new(Vec::new())));
    let caller = proxy(None, bound("node-1"));
    let denied = authorizer(nothing)
        .authorize(&caller, Some(WEB))
        .await
        .unwrap_err();
    assert_eq!(denied.reason(), "no_placement");
}

#[tokio::test(start_paused = true)]
async fn no_more_than_so_many_wait() {
    let authorizer = authorizer(Sequence::of([Placement::new([], nodes())]));
    let caller = proxy(None, bound("node-1"));
    let all = authorizer
        .waiting
        .try_acquire_many(u32::try_from(WAITING_MAX).unwrap());
    let started = Instant::now();
    let denied = authorizer.authorize(&caller, Some(WEB)).await.unwrap_err();
    assert_eq!(
        (denied.reason(), started.elapsed()),
        ("pod_not_on_node", Duration::ZERO)
    );
    drop(all);
}
