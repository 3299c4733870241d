//! Level direct: the libraries together in one process. A tunnel over mutual TLS
//! over a byte pipe, judged by the model's policy on the proven identity.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use culvert_hbone::{ConnectHead, OpenError, Settings, Windows, client, server};
use culvert_identity::{Identity, TrustDomain};
use culvert_model::{
    Action, Change, Group, Match, PeerConnection, Policy, PolicyName, Rules, Scope, Snapshot,
    StringMatch, Workload, authorize,
};
use culvert_tls::ca::{Authority, LeafRequest, Validity};
use culvert_tls::{Fault, IssuedCertificate, fault};
use http::StatusCode;
use rustls::pki_types::ServerName;
use tokio::io::DuplexStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const LIMIT: Duration = Duration::from_secs(10);
const DESTINATION: &str = "10.244.2.2:8080";

struct Mesh {
    root: Authority,
    trust_domain: TrustDomain,
}

impl Mesh {
    fn new(trust_domain: &str) -> Self {
        let trust_domain: TrustDomain = trust_domain.parse().expect("a trust domain");
        let validity = Validity::lasting(SystemTime::now(), Duration::from_secs(3600));
        Self {
            root: Authority::root(&trust_domain, validity).expect("a root"),
            trust_domain,
        }
    }

    fn identity(&self, account: &str) -> Identity {
        Identity::new(&self.trust_domain, "shop", account).expect("an identity")
    }

    fn certificate(&self, account: &str) -> IssuedCertificate {
        let validity = Validity::lasting(SystemTime::now(), Duration::from_secs(3600));
        let request = LeafRequest::new(&self.identity(account), validity);
        self.root
            .issue(&request, &[], self.root.certificate_pem())
            .expect("a certificate")
    }
}

/// Denies the account `mallory`, whoever asks.
fn snapshot(mesh: &Mesh) -> Snapshot {
    let name = PolicyName {
        namespace: "shop".into(),
        name: "not-mallory".into(),
    };
    let principal = mesh.identity("mallory").principal().into();
    let matched = Match {
        principals: vec![StringMatch::Exact(principal)],
        ..Match::default()
    };
    let group = Group {
        rules: vec![Rules {
            matches: vec![matched],
        }],
    };
    let policy = Policy::new(name, Scope::Namespace, Action::Deny, vec![group]);
    let server = Workload::new(
        "c1//Pod/shop/server".into(),
        "server",
        mesh.identity("server"),
    );
    Snapshot::empty().apply([Change::Policy(policy), Change::Workload(server)])
}

/// Serves one tunnel: judges every CONNECT and echoes what is allowed.
async fn serve(
    io: DuplexStream,
    certificate: IssuedCertificate,
    snapshot: Snapshot,
) -> Result<(), Fault> {
    let acceptor = TlsAcceptor::from(culvert_tls::server_config(&certificate));
    let tls = acceptor
        .accept(io)
        .await
        .map_err(|error| fault::classify_io(&error))?;
    let peer = culvert_tls::verified_peer(tls.get_ref().1)?;
    let mut tunnel = server::start(tls, &Settings::server(), &Windows::new(64 << 20))
        .await
        .expect("HTTP/2");
    // A stream that is dropped is reset: these live as long as the tunnel.
    let mut open = Vec::new();
    while let Some(Ok(incoming)) = tunnel.next().await {
        let connection = PeerConnection {
            source_ip: IpAddr::from([10, 244, 1, 2]),
            source_identity: Some(&peer),
            source_workload: None,
            destination: DESTINATION.parse::<SocketAddr>().expect("an address"),
        };
        let workload = snapshot.workloads().next().expect("the server");
        if authorize(&snapshot, workload, &connection).is_allowed() {
            open.push(incoming.accept(None).expect("a stream"));
        } else {
            incoming.refuse(StatusCode::UNAUTHORIZED, None);
        }
    }
    Ok(())
}

#[derive(Debug)]
enum Outcome {
    Opened,
    Refused(u16),
    Handshake(Fault),
}

/// Opens one stream as `account`, expecting the server to be `expected`.
async fn connect(
    io: DuplexStream,
    certificate: &IssuedCertificate,
    expected: &Identity,
) -> Outcome {
    let config = culvert_tls::client_config(certificate, std::slice::from_ref(expected));
    let name = ServerName::IpAddress(IpAddr::from([10, 244, 2, 2]).into());
    let tls = match TlsConnector::from(config).connect(name, io).await {
        Ok(tls) => tls,
        Err(error) => return Outcome::Handshake(fault::classify_io(&error)),
    };
    let windows = Windows::new(64 << 20);
    let (tunnel, driver) = match client::start(tls, &Settings::client(), &windows).await {
        Ok(started) => started,
        Err(_) => return Outcome::Handshake(Fault::Io),
    };
    let head = ConnectHead {
        authority: culvert_hbone::authority::parse(DESTINATION).expect("an authority"),
        baggage: None,
        forwarded: None,
        traceparent: None,
        keepalive: None,
    };
    let open = tunnel.lease().connect(&head);
    tokio::select! {
        opened = open => match opened {
            Ok(_) => Outcome::Opened,
            Err(OpenError::Refused { status, .. }) => Outcome::Refused(status),
            Err(_) => Outcome::Handshake(Fault::RefusedByPeer),
        },
        _ = driver => Outcome::Handshake(Fault::RefusedByPeer),
    }
}

async fn meet(
    server: (&Mesh, &str),
    client: (&Mesh, &str),
    expected: &Identity,
) -> (Outcome, Option<Fault>) {
    let (near, far) = tokio::io::duplex(256 * 1024);
    let (server_mesh, account) = server;
    let certificate = server_mesh.certificate(account);
    let mut serving = Box::pin(serve(far, certificate, snapshot(server_mesh)));
    let certificate = client.0.certificate(client.1);
    let mut connecting = Box::pin(connect(near, &certificate, expected));
    let both = async {
        // The client's outcome decides; the server's fault is asked for afterwards.
        let outcome = tokio::select! {
            outcome = &mut connecting => outcome,
            fault = &mut serving => return (connecting.await, fault.err()),
        };
        let fault = tokio::time::timeout(Duration::from_secs(1), serving).await;
        (outcome, fault.ok().and_then(Result::err))
    };
    tokio::time::timeout(LIMIT, both)
        .await
        .expect("an outcome in time")
}

#[tokio::test]
async fn a_denied_identity_gets_401_and_another_gets_through() {
    let mesh = Mesh::new("cluster.local");
    let server = mesh.identity("server");
    let (outcome, _) = meet((&mesh, "server"), (&mesh, "client"), &server).await;
    assert!(matches!(outcome, Outcome::Opened), "{outcome:?}");
    let (outcome, _) = meet((&mesh, "server"), (&mesh, "mallory"), &server).await;
    assert!(matches!(outcome, Outcome::Refused(401)), "{outcome:?}");
}

#[tokio::test]
async fn a_client_of_another_mesh_gets_nowhere() {
    let (mesh, other) = (Mesh::new("cluster.local"), Mesh::new("cluster.local"));
    let (outcome, fault) = meet(
        (&mesh, "server"),
        (&other, "client"),
        &mesh.identity("server"),
    )
    .await;
    assert!(matches!(outcome, Outcome::Handshake(_)), "{outcome:?}");
    // Each refuses the other; whoever speaks first decides what the other sees.
    assert!(
        matches!(fault, Some(Fault::UnknownCa | Fault::RefusedByPeer)),
        "{fault:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_somebody_else_is_not_spoken_to() {
    let mesh = Mesh::new("cluster.local");
    let (outcome, _) = meet(
        (&mesh, "other"),
        (&mesh, "client"),
        &mesh.identity("server"),
    )
    .await;
    assert!(
        matches!(outcome, Outcome::Handshake(Fault::WrongIdentity)),
        "{outcome:?}"
    );
}
