//! Links, addresses, neighbours and routes of one network namespace, over netlink.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

use culvert_netns::{Netns, NetnsError};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressHeaderFlags, AddressScope};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth};
use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::{
    Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
};

/// A change of the network that the kernel did not make.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The namespace cannot be entered.
    #[error("cannot enter the network namespace")]
    Netns(#[from] NetnsError),
    /// No netlink socket.
    #[error("cannot open a netlink socket")]
    Socket(#[source] io::Error),
    /// One step failed.
    #[error("cannot {step}")]
    Step {
        /// What was tried.
        step: String,
        /// The kernel's answer.
        #[source]
        source: Box<rtnetlink::Error>,
    },
    /// An interface is not there.
    #[error("no interface {0}")]
    Missing(String),
    /// A kernel setting.
    #[error("cannot change a kernel setting")]
    Sysctl(#[from] culvert_netns::SysctlError),
    /// A table of address translation cannot be written.
    #[error("cannot write nf_tables rules")]
    Apply(#[from] culvert_nft::ApplyError),
    /// A table of address translation cannot be read.
    #[error("cannot read nf_tables rules")]
    Read(#[from] culvert_nft::ReadError),
}

/// Runs netlink work inside a namespace, on a thread of its own. The caller blocks
/// until it is done.
pub(crate) fn inside<T, F>(
    netns: &Netns,
    work: impl FnOnce(Links) -> F + Send,
) -> Result<T, LinkError>
where
    T: Send,
    F: Future<Output = Result<T, LinkError>>,
{
    netns.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(LinkError::Socket)?;
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().map_err(LinkError::Socket)?;
            tokio::select! {
                result = work(Links { handle }) => result,
                () = connection => Err(LinkError::Socket(io::ErrorKind::ConnectionAborted.into())),
            }
        })
    })?
}

/// The netlink socket of one namespace.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    handle: Handle,
}

/// The far end of a new pair of links.
#[derive(Debug)]
pub(crate) struct Peer<'a> {
    /// Where it goes.
    pub netns: &'a Netns,
    /// Its name there.
    pub name: &'a str,
    /// Its link-layer address, or one of the kernel's choice.
    pub mac: Option<[u8; 6]>,
}

/// A route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    /// Destination and prefix length.
    pub to: (IpAddr, u8),
    /// Next hop; none for what is on the link.
    pub via: Option<IpAddr>,
    /// Preferred source.
    pub source: Option<IpAddr>,
}

fn failed(step: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    let step = step.into();
    move |source| LinkError::Step {
        step,
        source: Box::new(source),
    }
}

impl Links {
    /// Number of an interface.
    pub(crate) async fn index(&self, name: &str) -> Result<u32, LinkError> {
        let found = self.handle.link().get().match_name(name).execute();
        let mut found = std::pin::pin!(found);
        match found.try_next().await {
            Ok(Some(link)) => Ok(link.header.index),
            _ => Err(LinkError::Missing(name.to_owned())),
        }
    }

    /// Makes a bridge.
    pub(crate) async fn add_bridge(&self, name: &str) -> Result<(), LinkError> {
        let message = LinkBridge::new(name).up().build();
        self.handle
            .link()
            .add(message)
            .execute()
            .await
            .map_err(failed(format!("add bridge {name}")))
    }

    /// Makes a pair of links: one here, the other in another namespace.
    pub(crate) async fn add_pair(
        &self,
        name: &str,
        mac: Option<[u8; 6]>,
        peer: &Peer<'_>,
    ) -> Result<(), LinkError> {
        let mut far = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer.name)
            .setns_by_fd(peer.netns.as_fd().as_raw_fd());
        if let Some(mac) = peer.mac {
            far = far.address(mac.to_vec());
        }
        let mut near = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(far.build())));
        if let Some(mac) = mac {
            near = near.address(mac.to_vec());
        }
        let step = format!("add the link pair {name}/{}", peer.name);
        self.handle
            .link()
            .add(near.build())
            .execute()
            .await
            .map_err(failed(step))
    }

    /// Brings an interface up.
    pub(crate) async fn up(&self, name: &str) -> Result<u32, LinkError> {
        let index = self.index(name).await?;
        let message = LinkUnspec::new_with_index(index).up().build();
        self.handle
            .link()
            .set(message)
            .execute()
            .await
            .map_err(failed(format!("set {name} up")))?;
        Ok(index)
    }

    /// Plugs an interface into a bridge.
    pub(crate) async fn plug(&self, name: &str, bridge: &str) -> Result<(), LinkError> {
        let (index, bridge) = (self.index(name).await?, self.index(bridge).await?);
        let message = LinkUnspec::new_with_index(index)
            .controller(bridge)
            .up()
            .build();
        self.handle
            .link()
            .set(message)
            .execute()
            .await
            .map_err(failed(format!("plug {name} in")))
    }

    /// Removes an interface; one that is not there is fine.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), LinkError> {
        let Ok(index) = self.index(name).await else {
            return Ok(());
        };
        self.handle
            .link()
            .del(index)
            .execute()
            .await
            .map_err(failed(format!("remove {name}")))
    }

    /// Adds an address, usable at once (no duplicate address detection: the engine
    /// hands out every address).
    pub(crate) async fn add_address(
        &self,
        index: u32,
        address: IpAddr,
        prefix: u8,
    ) -> Result<(), LinkError> {
        let mut request = self.handle.address().add(index, address, prefix).replace();
        let message = request.message_mut();
        message.header.flags |= AddressHeaderFlags::Nodad;
        if address == IpAddr::from(super::addresses::GATEWAY_V4) {
            message.header.scope = AddressScope::Link;
        }
        request
            .execute()
            .await
            .map_err(failed(format!("add address {address}/{prefix}")))
    }

    /// Tells where a neighbour is, so that nobody has to ask.
    pub(crate) async fn add_neighbour(
        &self,
        index: u32,
        address: IpAddr,
        mac: [u8; 6],
    ) -> Result<(), LinkError> {
        let request = self
            .handle
            .neighbours()
            .add(index, address)
            .link_layer_address(&mac)
            .replace();
        request
            .execute()
            .await
            .map_err(failed(format!("add neighbour {address}")))
    }

    /// Adds a route through an interface.
    pub(crate) async fn add_route(&self, index: u32, route: Route) -> Result<(), LinkError> {
        let (to, prefix) = route.to;
        let step = format!("add the route to {to}/{prefix}");
        let wrong = |step: &str| LinkError::Missing(step.to_owned());
        let mut builder = RouteMessageBuilder::<IpAddr>::new().output_interface(index);
        builder = builder
            .destination_prefix(to, prefix)
            .map_err(|_| wrong(&step))?;
        if let Some(via) = route.via {
            builder = builder.gateway(via).map_err(|_| wrong(&step))?.onlink();
        } else if to.is_ipv4() {
            builder = builder.scope(RouteScope::Link);
        }
        if let Some(source) = route.source {
            builder = builder.pref_source(source).map_err(|_| wrong(&step))?;
        }
        self.handle
            .route()
            .add(builder.build())
            .replace()
            .execute()
            .await
            .map_err(failed(step))
    }

    /// Refuses everything to a network that has no better route.
    pub(crate) async fn add_unreachable(&self, to: IpAddr, prefix: u8) -> Result<(), LinkError> {
        let step = format!("add the refusal of {to}/{prefix}");
        let mut message = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(to, prefix)
            .map_err(|_| LinkError::Missing(step.clone()))?
            .kind(RouteType::Unreachable)
            .build();
        let v4 = to.is_ipv4();
        message.header.address_family = if v4 {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        self.handle
            .route()
            .add(message)
            .replace()
            .execute()
            .await
            .map_err(failed(step))
    }

    /// Removes the routes to one address through an interface that is gone anyway
    /// go with it; this is for the loopback interface of a new namespace.
    pub(crate) async fn loopback_up(&self) -> Result<(), LinkError> {
        self.up("lo").await.map(|_| ())
    }
}

/// Any IPv4 destination.
pub(crate) const ANY_V4: (IpAddr, u8) = (IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
/// Any IPv6 destination.
pub(crate) const ANY_V6: (IpAddr, u8) = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
