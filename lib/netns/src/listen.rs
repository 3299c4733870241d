//! Listening sockets, opened in the namespace of the calling thread.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

/// Which addresses a listener takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// One socket for both families on the unspecified address; IPv4 alone where
    /// the kernel has IPv6 off.
    Dual,
    /// The unspecified IPv4 address.
    V4,
    /// The unspecified IPv6 address, IPv6 only.
    V6,
    /// One address.
    At(IpAddr),
}

/// How a listening socket is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenOptions {
    /// Which addresses.
    pub family: Family,
    /// Accept connections to foreign addresses (IP_TRANSPARENT), for TPROXY rules.
    pub transparent: bool,
    /// Share the port with other sockets of the same user (SO_REUSEPORT).
    pub reuse_port: bool,
    /// SO_MARK; accepted connections inherit it.
    pub mark: Option<u32>,
    /// Connections that may wait to be accepted; the kernel cuts it to
    /// net.core.somaxconn. No meaning for UDP.
    pub backlog: u16,
}

/// A listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} the {protocol} listener at {address}")]
pub struct ListenError {
    step: &'static str,
    protocol: &'static str,
    address: SocketAddr,
    #[source]
    source: io::Error,
}

impl ListenError {
    /// True when this namespace or kernel has no such address family or address
    /// (IPv6 off), which no retry will change.
    #[must_use]
    pub fn is_family_off(&self) -> bool {
        matches!(
            self.source.raw_os_error(),
            Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
        )
    }
}

/// Opens a non-blocking TCP listener in the calling thread's namespace.
///
/// # Errors
/// When the port is taken, the family is off (see [`Family::Dual`]), or a
/// capability for `transparent` or `mark` is missing.
pub fn listen_tcp(port: u16, options: &ListenOptions) -> Result<TcpListener, ListenError> {
    open(port, options, Kind::Tcp).map(Into::into)
}

/// Opens a non-blocking UDP socket in the calling thread's namespace.
///
/// # Errors
/// As [`listen_tcp`].
pub fn listen_udp(port: u16, options: &ListenOptions) -> Result<UdpSocket, ListenError> {
    open(port, options, Kind::Udp).map(Into::into)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Tcp,
    Udp,
}

fn open(port: u16, options: &ListenOptions, kind: Kind) -> Result<Socket, ListenError> {
    let any4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let any6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match options.family {
        Family::Dual => match open_at(SocketAddr::new(any6, port), options, kind) {
            Err(error) if error.is_family_off() => {
                open_at(SocketAddr::new(any4, port), options, kind)
            }
            other => other,
        },
        Family::V4 => open_at(SocketAddr::new(any4, port), options, kind),
        Family::V6 => open_at(SocketAddr::new(any6, port), options, kind),
        Family::At(ip) => open_at(SocketAddr::new(ip, port), options, kind),
    }
}

fn open_at(
    address: SocketAddr,
    options: &ListenOptions,
    kind: Kind,
) -> Result<Socket, ListenError> {
    let (style, protocol, name) = match kind {
        Kind::Tcp => (Type::STREAM, Protocol::TCP, "TCP"),
        Kind::Udp => (Type::DGRAM, Protocol::UDP, "UDP"),
    };
    let failed = |step| {
        move |source| ListenError {
            step,
            protocol: name,
            address,
            source,
        }
    };
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, style, Some(protocol)).map_err(failed("create"))?;
    if address.is_ipv6() {
        let both = options.family == Family::Dual;
        socket
            .set_only_v6(!both)
            .map_err(failed("set the family of"))?;
    }
    socket
        .set_reuse_address(true)
        .map_err(failed("share the address of"))?;
    if options.reuse_port {
        socket
            .set_reuse_port(true)
            .map_err(failed("share the port of"))?;
    }
    if options.transparent {
        transparent(&socket, address).map_err(failed("make transparent"))?;
    }
    if let Some(mark) = options.mark {
        socket.set_mark(mark).map_err(failed("mark"))?;
    }
    socket
        .set_nonblocking(true)
        .map_err(failed("make non-blocking"))?;
    socket.bind(&address.into()).map_err(failed("bind"))?;
    if kind == Kind::Tcp {
        // Accepted sockets inherit it.
        socket
            .set_tcp_nodelay(true)
            .map_err(failed("set TCP_NODELAY on"))?;
        socket
            .listen(i32::from(options.backlog))
            .map_err(failed("open"))?;
    }
    Ok(socket)
}

/// A dual-stack socket needs the option of both families.
pub(crate) fn transparent(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    socket.set_ip_transparent_v4(true)?;
    if address.is_ipv6() {
        socket.set_ip_transparent_v6(true)
    } else {
        Ok(())
    }
}
