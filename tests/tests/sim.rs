//! Level sim: discovery's server and a node proxy's client with a network between
//! them that fails by a seed. Whatever the order of failures, the client ends
//! with exactly the last view.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_model::{Change, Snapshot, Workload};
use culvert_xds::client::{BoxError, Client, ClientConfig};
use culvert_xds::server::{Authenticator, ClientNode, DiscoveryServer, Publisher, ServerLimits};
use culvert_xds::session::Node;
use culvert_xds::{ClientView, ResourceSet, encode};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::{Endpoint, Server};

const SEEDS: u64 = 6;
const CHANGES: usize = 60;
const LIMIT: Duration = Duration::from_secs(30);

struct Anyone;

impl Authenticator for Anyone {
    type Caller = ();

    async fn authenticate(&self, _metadata: &MetadataMap) -> Result<(), Status> {
        Ok(())
    }
}

/// The world: workloads by name, with one address each.
struct World {
    workloads: Mutex<BTreeMap<usize, u8>>,
    changed: watch::Sender<u64>,
}

fn workload(number: usize, host: u8) -> Workload {
    let identity = format!("spiffe://cluster.local/ns/shop/sa/a{number}");
    let uid = format!("c1//Pod/shop/p{number}").as_str().into();
    let mut workload = Workload::new(
        uid,
        format!("p{number}"),
        identity.parse().expect("an identity"),
    );
    let third = u8::try_from(number).expect("a small number");
    workload.addresses = vec![IpAddr::from([10, 244, third, host])];
    workload
}

impl World {
    fn change(&self, rng: &mut StdRng) {
        let mut workloads = self.workloads.lock().expect("not poisoned");
        let number = rng.random_range(0..40);
        if rng.random_ratio(1, 3) {
            workloads.remove(&number);
        } else {
            workloads.insert(number, rng.random_range(1..250));
        }
        drop(workloads);
        self.changed.send_modify(|version| *version += 1);
    }

    fn expected(&self) -> BTreeMap<String, Vec<IpAddr>> {
        let workloads = self.workloads.lock().expect("not poisoned");
        let described = workloads
            .iter()
            .map(|(number, host)| workload(*number, *host));
        described
            .map(|workload| (workload.uid.to_string(), workload.addresses))
            .collect()
    }
}

impl Publisher for World {
    type Caller = ();

    fn admit(&self, _client: &ClientNode<()>) -> Result<(), Status> {
        Ok(())
    }

    fn view(&self, _client: &ClientNode<()>) -> ClientView {
        let workloads = self.workloads.lock().expect("not poisoned");
        let resources = workloads
            .iter()
            .map(|(number, host)| Arc::new(encode::workload_resource(&workload(*number, *host))));
        let addresses: ResourceSet = resources.collect();
        ClientView {
            addresses: Arc::new(addresses),
            ..ClientView::default()
        }
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

fn seen(snapshot: &Snapshot) -> BTreeMap<String, Vec<IpAddr>> {
    let workloads = snapshot.workloads();
    workloads
        .map(|workload| (workload.uid.to_string(), workload.addresses.clone()))
        .collect()
}

/// A network that carries connections until it is told to cut them all.
async fn network(listener: TcpListener, server: SocketAddr, cut: watch::Receiver<u64>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let mut cut = cut.clone();
        cut.mark_unchanged();
        tokio::task::spawn_local(async move {
            let Ok(mut far) = TcpStream::connect(server).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => {}
                _ = cut.changed() => {}
            }
        });
    }
}

async fn any_port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

async fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let world = Arc::new(World {
        workloads: Mutex::default(),
        changed: watch::Sender::new(0),
    });
    let (server_listener, server_address) = any_port().await;
    let (network_listener, network_address) = any_port().await;
    let cut = watch::Sender::new(0_u64);
    let (_stop, stopped) = watch::channel(false);
    let service =
        DiscoveryServer::new(Anyone, Arc::clone(&world), ServerLimits::default(), stopped);
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(server_listener);
    tokio::task::spawn_local(
        Server::builder()
            .add_service(service.into_service())
            .serve_with_incoming(incoming),
    );
    tokio::task::spawn_local(network(network_listener, server_address, cut.subscribe()));

    let connector = move || async move {
        let endpoint = Endpoint::from_shared(format!("http://{network_address}"))?;
        Ok::<_, BoxError>(endpoint.connect().await?)
    };
    let node = Node {
        ip: IpAddr::from([10, 0, 0, 1]),
        name: "proxy".to_owned(),
        namespace: "culvert-system".to_owned(),
        node_name: "node-1".to_owned(),
        cluster_id: "c1".to_owned(),
        metadata: BTreeMap::new(),
    };
    let config = ClientConfig::new(node, "");
    let client = Client {
        config,
        connector,
        token: || Ok::<_, BoxError>(None),
        observer: (),
    };
    let (snapshots, mut snapshot) = watch::channel(Arc::new(Snapshot::empty()));
    tokio::task::spawn_local(client.run(snapshots));

    for _ in 0..CHANGES {
        world.change(&mut rng);
        match rng.random_range(0..6) {
            0 => cut.send_modify(|count| *count += 1),
            1 | 2 => tokio::time::sleep(Duration::from_millis(rng.random_range(0..30))).await,
            _ => tokio::task::yield_now().await,
        }
    }
    let expected = world.expected();
    let last = snapshot.wait_for(|snapshot| seen(snapshot) == expected);
    let arrived = tokio::time::timeout(LIMIT, last).await.is_ok();
    let now = seen(&snapshot.borrow());
    assert!(arrived, "seed {seed}: {now:#?} instead of {expected:#?}");
}

#[tokio::test]
async fn a_client_behind_a_failing_network_ends_with_the_last_view() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            for seed in 0..SEEDS {
                run(seed).await;
            }
        })
        .await;
}

#[test]
fn changes_apply_in_order_whatever_their_grouping() {
    let mut rng = StdRng::seed_from_u64(7);
    let changes: Vec<Change> = (0..200)
        .map(|_| {
            let number = rng.random_range(0..20);
            if rng.random_ratio(1, 4) {
                Change::RemoveAddress(format!("c1//Pod/shop/p{number}"))
            } else {
                Change::Workload(workload(number, rng.random_range(1..250)))
            }
        })
        .collect();
    let once = Snapshot::empty().apply(changes.clone());
    let mut grouped = Snapshot::empty();
    let mut rest = &changes[..];
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(rng.random_range(1..=rest.len().min(9)));
        grouped = grouped.apply(head.iter().cloned());
        rest = tail;
    }
    assert_eq!(seen(&once), seen(&grouped));
}
