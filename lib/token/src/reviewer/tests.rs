use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::*;
use crate::{Bound, TokenIssuer, TokenRequest};

const HOUR: Duration = Duration::from_secs(3600);

struct Bench {
    directory: tempfile::TempDir,
    issuer: TokenIssuer,
    reviewer: JwksReviewer,
    clock: Arc<Mutex<SystemTime>>,
    pod: Bound,
    node: Bound,
}

fn bench() -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let issuer = TokenIssuer::generate().unwrap();
    issuer
        .write_jwks(&directory.path().join("jwks.json"))
        .unwrap();
    let clock = Arc::new(Mutex::new(SystemTime::now()));
    let shared = Arc::clone(&clock);
    let now = Arc::new(move || *shared.lock().unwrap());
    let reviewer = JwksReviewer::with_time(directory.path().join("jwks.json"), now);
    let bound = |name: &str| Bound {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
    };
    Bench {
        directory,
        issuer,
        reviewer,
        clock,
        pod: bound("node-proxy-abc"),
        node: bound("node-1"),
    }
}

impl Bench {
    fn request(&self) -> TokenRequest<'_> {
        TokenRequest {
            namespace: "culvert-system",
            service_account: "culvert-node-proxy",
            pod: Some(&self.pod),
            node: Some(&self.node),
            audience: "culvert-ca",
            lifetime: HOUR,
        }
    }

    fn token(&self) -> String {
        self.issuer.issue(&self.request(), self.now()).unwrap()
    }

    fn now(&self) -> SystemTime {
        *self.clock.lock().unwrap()
    }

    fn advance(&self, by: Duration) {
        *self.clock.lock().unwrap() += by;
    }

    async fn reason(&self, token: &str) -> &'static str {
        match self.reviewer.review(token, "culvert-ca").await {
            Ok(caller) => panic!("accepted {caller:?}"),
            Err(error) => error.reason(),
        }
    }
}

fn header_of(token: &str) -> Value {
    let header = token.split('.').next().unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).unwrap()).unwrap()
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// The token with another header, its claims and signature kept.
fn with_header(token: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut header = header_of(token);
    change(&mut header);
    let rest = token.split_once('.').unwrap().1;
    format!("{}.{rest}", part(&header))
}

#[tokio::test]
async fn a_good_token_says_who_pod_and_node_are() {
    let bench = bench();
    let token = bench.token();
    assert_eq!(header_of(&token)["alg"], "ES256");
    let caller = bench.reviewer.review(&token, "culvert-ca").await.unwrap();
    let expected = Caller {
        namespace: "culvert-system".to_owned(),
        service_account: "culvert-node-proxy".to_owned(),
        pod: Some(bench.pod.clone()),
        node: Some(bench.node.clone()),
    };
    assert_eq!(caller, expected);
}

#[tokio::test]
async fn time_and_audience_are_checked() {
    let bench = bench();
    let token = bench.token();
    let other = bench.reviewer.review(&token, "culvert-discovery").await;
    assert_eq!(other.unwrap_err().reason(), "wrong_audience");
    bench.advance(HOUR + Duration::from_secs(5));
    assert!(
        bench.reviewer.review(&token, "culvert-ca").await.is_ok(),
        "leeway"
    );
    bench.advance(Duration::from_secs(5));
    assert_eq!(bench.reason(&token).await, "expired_token");
    let future = bench.now() + HOUR;
    let token = bench.issuer.issue(&bench.request(), future).unwrap();
    assert_eq!(bench.reason(&token).await, "token_not_yet_valid");
}

#[tokio::test]
async fn forged_tokens_are_refused() {
    let bench = bench();
    let token = bench.token();
    let other = TokenIssuer::generate().unwrap();
    let foreign = other.issue(&bench.request(), bench.now()).unwrap();
    assert_eq!(bench.reason(&foreign).await, "unknown_token_key");
    // The right key id on somebody else's signature.
    let kid = header_of(&token)["kid"].clone();
    let forged = with_header(&foreign, |header| header["kid"] = kid);
    assert_eq!(bench.reason(&forged).await, "bad_token_signature");
    let (head, signature) = token.rsplit_once('.').unwrap();
    let header = head.split_once('.').unwrap().0;
    let claims = json!({"sub": "system:serviceaccount:culvert-system:root", "exp": 9_999_999_999_u64,
        "aud": ["culvert-ca"], "kubernetes.io": {"namespace": "culvert-system", "serviceaccount": {"name": "root"}}});
    let swapped = format!("{header}.{}.{signature}", part(&claims));
    assert_eq!(bench.reason(&swapped).await, "bad_token_signature");
    assert_eq!(
        bench.reason(&format!("{head}.")).await,
        "bad_token_signature"
    );
}

#[tokio::test]
async fn the_key_decides_the_algorithm() {
    let bench = bench();
    let token = bench.token();
    for algorithm in ["none", "HS256", "ES384", "EdDSA", "PS256", "RS512"] {
        let changed = with_header(&token, |header| header["alg"] = json!(algorithm));
        let expected = "unsupported_token_algorithm";
        assert_eq!(bench.reason(&changed).await, expected, "{algorithm}");
    }
    // An accepted algorithm, but not this key's.
    let changed = with_header(&token, |header| header["alg"] = json!("RS256"));
    assert_eq!(bench.reason(&changed).await, "unsupported_token_algorithm");
    // The classic: the public key as the secret of an HMAC.
    let public = std::fs::read(bench.reviewer.path()).unwrap();
    let mut header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
    header.kid = Some(header_of(&token)["kid"].as_str().unwrap().to_owned());
    let secret = jsonwebtoken::EncodingKey::from_secret(&public).unwrap();
    let confused = jsonwebtoken::encode(&header, &json!({"exp": 1}), &secret).unwrap();
    assert_eq!(bench.reason(&confused).await, "unsupported_token_algorithm");
    let anonymous = with_header(&token, |header| {
        header.as_object_mut().unwrap().remove("kid");
    });
    assert_eq!(bench.reason(&anonymous).await, "unknown_token_key");
}

#[tokio::test]
async fn what_is_no_token_is_malformed() {
    let bench = bench();
    let long = format!("{}.{}", bench.token(), "a".repeat(TOKEN_BYTES_MAX));
    for text in ["", "a", "a.b", "a.b.c", "..", "Bearer x", &long] {
        assert_eq!(bench.reason(text).await, "malformed_token", "{text}");
    }
}

#[tokio::test]
async fn tokens_of_people_and_inconsistent_ones_are_not_service_accounts() {
    let bench = bench();
    let header = {
        let mut header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256);
        let token = bench.token();
        header.kid = Some(header_of(&token)["kid"].as_str().unwrap().to_owned());
        header
    };
    let pem = bench.issuer.key_pem().as_bytes();
    let key = jsonwebtoken::EncodingKey::from_ec_pem(pem).unwrap();
    let kubernetes = json!({"namespace": "shop", "serviceaccount": {"name": "web", "uid": "1"}});
    for (subject, kubernetes) in [
        ("alice", json!(null)),
        ("system:serviceaccount:shop:web", json!(null)),
        ("system:serviceaccount:shop:admin", kubernetes.clone()),
        ("system:serviceaccount:bank:web", kubernetes.clone()),
        ("system:node:node-1", kubernetes.clone()),
        ("", kubernetes.clone()),
    ] {
        let claims = json!({"aud": "culvert-ca", "exp": 9_999_999_999_u64, "sub": subject,
            "kubernetes.io": kubernetes});
        let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
        assert_eq!(
            bench.reason(&token).await,
            "not_a_service_account",
            "{subject}"
        );
    }
    let claims = json!({"aud": "culvert-ca", "exp": 9_999_999_999_u64,
        "sub": "system:serviceaccount:shop:web", "kubernetes.io": kubernetes});
    let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
    let caller = bench.reviewer.review(&token, "culvert-ca").await.unwrap();
    assert_eq!((caller.pod, caller.node), (None, None));
    let claims = json!({"aud": "culvert-ca", "sub": "system:serviceaccount:shop:web"});
    let eternal = jsonwebtoken::encode(&header, &claims, &key).unwrap();
    assert_eq!(bench.reason(&eternal).await, "malformed_token");
}

#[tokio::test]
async fn keys_are_read_again_and_the_last_good_ones_kept() {
    let bench = bench();
    let old = bench.token();
    assert!(bench.reviewer.review(&old, "culvert-ca").await.is_ok());
    let path = bench.directory.path().join("jwks.json");
    std::fs::write(&path, "half a f").unwrap();
    assert!(bench.reviewer.review(&old, "culvert-ca").await.is_ok());
    std::fs::remove_file(&path).unwrap();
    assert!(bench.reviewer.review(&old, "culvert-ca").await.is_ok());
    let next = TokenIssuer::generate().unwrap();
    next.write_jwks(&path).unwrap();
    let new = next.issue(&bench.request(), bench.now()).unwrap();
    assert!(bench.reviewer.review(&new, "culvert-ca").await.is_ok());
    assert_eq!(bench.reason(&old).await, "unknown_token_key");
}

#[tokio::test]
async fn keys_are_read_again_by_time_when_nothing_seems_changed() {
    let bench = bench();
    let old = bench.token();
    assert!(bench.reviewer.review(&old, "culvert-ca").await.is_ok());
    // The same file, the same length, the same time of change.
    let path = bench.directory.path().join("jwks.json");
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let next = TokenIssuer::generate().unwrap();
    std::fs::write(&path, next.jwks()).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(modified).unwrap();
    let new = next.issue(&bench.request(), bench.now()).unwrap();
    assert_eq!(bench.reason(&new).await, "unknown_token_key");
    bench.advance(REREAD_INTERVAL);
    assert!(bench.reviewer.review(&new, "culvert-ca").await.is_ok());
}

#[tokio::test]
async fn without_keys_nobody_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jwks.json");
    let reviewer = JwksReviewer::from_file(&path);
    let bench = bench();
    let token = bench.token();
    for content in [
        None,
        Some("[]"),
        Some("{\"keys\": []}"),
        Some("{\"keys\": [{}]}"),
    ] {
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let error = reviewer.review(&token, "culvert-ca").await.unwrap_err();
        assert_eq!(error.reason(), "no_token_keys", "{content:?}");
        assert!(reviewer.check().is_err());
    }
}

#[tokio::test]
async fn an_issuer_goes_on_after_a_restart() {
    let bench = bench();
    let again = TokenIssuer::from_key_pem(bench.issuer.key_pem()).unwrap();
    assert_eq!(again.jwks(), bench.issuer.jwks());
    let token = again.issue(&bench.request(), bench.now()).unwrap();
    assert!(bench.reviewer.review(&token, "culvert-ca").await.is_ok());
    assert!(TokenIssuer::from_key_pem("nothing").is_err());
    assert!(!format!("{again:?}").contains("PRIVATE"));
}
