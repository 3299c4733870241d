//! The sockets of a pod: inherited from the agent where it kept them, opened in the
//! pod's namespace otherwise.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use culvert_netns::{Family, ListenError, ListenOptions, Netns, NetnsError};
use socket2::SockRef;

use super::pod::{
    DNS_PORT, DnsSockets, INBOUND_PORT, OUTBOUND_PORT, PROXY_MARK, PodListeners, TUNNEL_PORT,
};

/// Connections that may wait while no proxy runs; the kernel's own default limit.
const BACKLOG: u16 = 4096;

/// Which socket of a pod it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SocketKind {
    /// One of the four ports.
    pub port: u16,
    /// UDP in place of TCP.
    pub udp: bool,
    /// IPv6, or both families.
    pub ipv6: bool,
}

/// A socket that the agent keeps.
#[derive(Debug)]
pub struct KeptSocket {
    /// Which one it is.
    pub kind: SocketKind,
    /// A duplicate of it.
    pub fd: OwnedFd,
}

/// Whether the pod's names are answered here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dns {
    /// Sockets on the DNS port are opened.
    On,
    /// None are.
    Off,
}

/// All sockets of a pod.
#[derive(Debug)]
pub struct PodSockets {
    /// For the workers.
    pub listeners: PodListeners,
    /// For the DNS proxy.
    pub dns: DnsSockets,
}

/// Why a pod has no sockets.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// Its namespace.
    #[error("cannot work in the pod's network namespace")]
    Netns(#[source] NetnsError),
    /// A listener.
    #[error("cannot open a listener")]
    Listen(#[source] ListenError),
    /// A descriptor could not be duplicated.
    #[error("cannot duplicate a listener")]
    Duplicate(#[source] std::io::Error),
}

/// Takes over what the agent kept and opens the rest. Blocks for as long as a thread
/// takes to enter the namespace.
///
/// # Errors
/// When the namespace cannot be entered or a port is taken by another program.
pub fn open(netns: &Netns, dns: Dns, kept: Vec<KeptSocket>) -> Result<PodSockets, SocketsError> {
    let mut kept = usable(netns, kept);
    netns
        .run(|| {
            // Without it, connections that wait at a socket are reset when another
            // of the port closes (an old and a new proxy overlap). A kernel without
            // the setting works, only less smoothly.
            if let Err(error) = culvert_netns::write_sysctl("net.ipv4.tcp_migrate_req", "1") {
                tracing::debug!(error = culvert_runtime::chain(&error), "tcp_migrate_req");
            }
            let listeners = PodListeners {
                outbound: tcp(&mut kept, OUTBOUND_PORT, Family::Dual)?,
                inbound: tcp(&mut kept, INBOUND_PORT, Family::Dual)?,
                tunnel: tcp(&mut kept, TUNNEL_PORT, Family::Dual)?,
            };
            let dns = match dns {
                Dns::On => dns_sockets(&mut kept)?,
                Dns::Off => DnsSockets::default(),
            };
            Ok(PodSockets { listeners, dns })
        })
        .map_err(SocketsError::Netns)?
}

/// Names are asked for on loopback alone: the pod's rules bring queries there. A pod
/// may do without IPv6.
fn dns_sockets(kept: &mut Vec<KeptSocket>) -> Result<DnsSockets, SocketsError> {
    let mut sockets = DnsSockets::default();
    for ip in [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ] {
        match udp(kept, ip) {
            Ok(socket) => sockets.udp.push(socket),
            Err(SocketsError::Listen(error)) if ip.is_ipv6() && error.is_family_off() => break,
            Err(error) => return Err(error),
        }
        sockets.tcp.push(tcp(kept, DNS_PORT, Family::At(ip))?);
    }
    Ok(sockets)
}

fn tcp(kept: &mut Vec<KeptSocket>, port: u16, family: Family) -> Result<TcpListener, SocketsError> {
    let fits = |kind: SocketKind| {
        let family = match family {
            Family::At(ip) => ip.is_ipv6() == kind.ipv6,
            Family::Dual | Family::V4 | Family::V6 => true,
        };
        kind.port == port && !kind.udp && family
    };
    if let Some(fd) = take(kept, fits) {
        return Ok(fd.into());
    }
    culvert_netns::listen_tcp(port, &options(family, true)).map_err(SocketsError::Listen)
}

fn udp(kept: &mut Vec<KeptSocket>, ip: IpAddr) -> Result<UdpSocket, SocketsError> {
    let fits = |kind: SocketKind| kind.udp && kind.port == DNS_PORT && kind.ipv6 == ip.is_ipv6();
    if let Some(fd) = take(kept, fits) {
        return Ok(fd.into());
    }
    culvert_netns::listen_udp(DNS_PORT, &options(Family::At(ip), false))
        .map_err(SocketsError::Listen)
}

fn options(family: Family, transparent: bool) -> ListenOptions {
    // Shared, so that an old and a new proxy overlap also without a keeper.
    ListenOptions {
        family,
        transparent,
        reuse_port: true,
        mark: Some(PROXY_MARK),
        backlog: BACKLOG,
    }
}

fn take(kept: &mut Vec<KeptSocket>, fits: impl Fn(SocketKind) -> bool) -> Option<OwnedFd> {
    let index = kept.iter().position(|socket| fits(socket.kind))?;
    Some(kept.swap_remove(index).fd)
}

/// Leaves what is really such a socket of this very namespace: the pod may have been
/// given another since.
fn usable(netns: &Netns, kept: Vec<KeptSocket>) -> Vec<KeptSocket> {
    let good =
        |socket: &KeptSocket| is_such(socket) && netns.owns(&socket.fd).is_ok_and(|owned| owned);
    let before = kept.len();
    let kept: Vec<_> = kept.into_iter().filter(good).collect();
    if kept.len() < before {
        tracing::warn!(
            refused = before - kept.len(),
            "kept sockets that are not this pod's"
        );
    }
    kept
}

fn is_such(socket: &KeptSocket) -> bool {
    let fd = SockRef::from(&socket.fd);
    let bound = fd.local_addr().ok().and_then(|address| address.as_socket());
    let style = if socket.kind.udp {
        socket2::Type::DGRAM
    } else {
        socket2::Type::STREAM
    };
    let listens = socket.kind.udp || fd.is_listener().is_ok_and(|listens| listens);
    bound.is_some_and(|bound| {
        bound.port() == socket.kind.port && bound.is_ipv6() == socket.kind.ipv6
    }) && fd.r#type().is_ok_and(|found| found == style)
        && listens
        && fd.set_nonblocking(true).is_ok()
}

impl PodSockets {
    /// Duplicates of all of them, for the agent to keep.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn duplicates(&self) -> Result<Vec<KeptSocket>, SocketsError> {
        let PodListeners {
            outbound,
            inbound,
            tunnel,
        } = &self.listeners;
        let mut all = Vec::new();
        for listener in [outbound, inbound, tunnel].into_iter().chain(&self.dns.tcp) {
            all.push(duplicate(listener, listener.local_addr(), false)?);
        }
        for socket in &self.dns.udp {
            all.push(duplicate(socket, socket.local_addr(), true)?);
        }
        Ok(all)
    }
}

fn duplicate(
    socket: &impl AsFd,
    address: std::io::Result<SocketAddr>,
    udp: bool,
) -> Result<KeptSocket, SocketsError> {
    let address = address.map_err(SocketsError::Duplicate)?;
    let fd = socket
        .as_fd()
        .try_clone_to_owned()
        .map_err(SocketsError::Duplicate)?;
    let kind = SocketKind {
        port: address.port(),
        udp,
        ipv6: address.is_ipv6(),
    };
    Ok(KeptSocket { kind, fd })
}
