//! Network namespaces on one bridge, with the redirect rules of the CNI agent.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};

use culvert_cni::redirect::{Older, install};
use culvert_cni::rules::PodRules;
use culvert_netns::{Netns, loopback_up};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth};
use rtnetlink::{Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth};

/// A bridge in a namespace of its own.
pub(crate) struct Lan {
    hub: Netns,
    hosts: usize,
}

/// Runs netlink requests in a namespace.
fn netlink<T: Send>(netns: &Netns, work: impl AsyncFnOnce(Handle) -> T + Send) -> T {
    netns
        .run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("runtime").block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().expect("netlink");
                let local = tokio::task::LocalSet::new();
                local.spawn_local(connection);
                local.run_until(work(handle)).await
            })
        })
        .expect("run as root")
}

async fn index(handle: &Handle, name: &str) -> u32 {
    let found = handle.link().get().match_name(name).execute();
    let mut found = std::pin::pin!(found);
    let link = found.try_next().await.expect("netlink").expect("the link");
    link.header.index
}

async fn up(handle: &Handle, name: &str) -> u32 {
    let index = index(handle, name).await;
    let message = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(message).execute().await.expect("up");
    index
}

impl Lan {
    pub(crate) fn new() -> Self {
        let hub = Netns::create().expect("run as root");
        netlink(&hub, async |handle| {
            let message = LinkBridge::new("br0").up().build();
            handle.link().add(message).execute().await.expect("bridge");
        });
        Self { hub, hosts: 0 }
    }

    /// A namespace with these addresses on the bridge.
    pub(crate) fn host(&mut self, addresses: &[IpAddr]) -> Netns {
        let netns = Netns::create().expect("run as root");
        netns.run(loopback_up).expect("enter").expect("loopback");
        self.hosts += 1;
        let name = format!("v{}", self.hosts);
        let fd = netns.as_fd().as_raw_fd();
        netlink(&self.hub, async |handle| {
            let far = LinkMessageBuilder::<LinkUnspec>::new()
                .name("eth0".to_owned())
                .setns_by_fd(fd);
            let near = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
                .name(name.clone())
                .set_info_data(InfoData::Veth(InfoVeth::Peer(far.build())));
            handle
                .link()
                .add(near.build())
                .execute()
                .await
                .expect("pair");
            let bridge = index(&handle, "br0").await;
            let near = index(&handle, &name).await;
            let message = LinkUnspec::new_with_index(near)
                .controller(bridge)
                .up()
                .build();
            handle.link().set(message).execute().await.expect("plug");
        });
        netlink(&netns, async |handle| {
            let eth0 = up(&handle, "eth0").await;
            for address in addresses {
                let prefix = if address.is_ipv4() { 24 } else { 64 };
                let mut request = handle.address().add(eth0, *address, prefix);
                request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
                request.execute().await.expect("address");
            }
            // Service addresses only need a way out of the application's socket.
            for to in ["10.96.0.0/16", "fd00:96::/64"] {
                let (net, length) = to.split_once('/').expect("prefix");
                let net: IpAddr = net.parse().expect("address");
                let route = rtnetlink::RouteMessageBuilder::<IpAddr>::new()
                    .destination_prefix(net, length.parse().expect("length"))
                    .expect("prefix")
                    .output_interface(eth0);
                if addresses.iter().any(|a| a.is_ipv4() == net.is_ipv4()) {
                    handle
                        .route()
                        .add(route.build())
                        .execute()
                        .await
                        .expect("route");
                }
            }
        });
        netns
    }
}

/// Puts the redirect rules of a pod in place.
pub(crate) fn enroll(netns: &Netns) {
    let installed = netns.run(|| {
        let kernel = culvert_nft::probe().expect("nf_tables");
        assert!(kernel.tproxy, "this kernel has no tproxy");
        let rules = PodRules {
            dns: false,
            ..PodRules::default()
        };
        install(&rules, kernel, &Older::KeepOpen).map(|_| ())
    });
    installed.expect("enter").expect("rules");
}

/// A listener inside a namespace.
pub(crate) fn listen_in(netns: &Netns, address: SocketAddr) -> TcpListener {
    let listener = netns
        .run(|| TcpListener::bind(address))
        .expect("enter")
        .expect("bind");
    listener.set_nonblocking(true).expect("non-blocking");
    listener
}
