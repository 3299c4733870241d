//! Sockets for outgoing connections, opened in the namespace of the calling thread
//! and connected wherever the caller likes: a socket stays in its namespace.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpSocket;

use crate::listen::transparent;

/// How an outgoing socket is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectOptions {
    /// The address that the peer is to see, which need not be one of this
    /// namespace. None: the kernel chooses.
    pub source: Option<IpAddr>,
    /// SO_MARK.
    pub mark: Option<u32>,
}

/// A socket could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Source and destination are of different families.
    #[error("source {source_ip} and destination {destination} are of different families")]
    Families {
        /// The wanted source.
        source_ip: IpAddr,
        /// Where the connection goes.
        destination: SocketAddr,
    },
    /// The kernel refused a step.
    #[error("cannot {step} a socket to {destination}")]
    Socket {
        /// What was tried.
        step: &'static str,
        /// Where the connection goes.
        destination: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl ConnectError {
    /// True when the process or the machine is out of descriptors or memory.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        let Self::Socket { source, .. } = self else {
            return false;
        };
        let code = source.raw_os_error();
        matches!(
            code,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
        )
    }
}

/// Prepares a non-blocking TCP socket; the caller connects it with a deadline.
/// TCP_NODELAY is on. The source port is chosen at connect time, so that one port
/// serves connections to many destinations.
///
/// # Errors
/// When a capability for `source` or `mark` is missing or descriptors have run out.
pub fn tcp_socket(
    destination: SocketAddr,
    options: &ConnectOptions,
) -> Result<TcpSocket, ConnectError> {
    let failed = |step| {
        move |source| ConnectError::Socket {
            step,
            destination,
            source,
        }
    };
    let socket = open(destination, options, Type::STREAM)?;
    socket
        .set_tcp_nodelay(true)
        .map_err(failed("set TCP_NODELAY on"))?;
    if let Some(source) = options.source {
        transparent(&socket, destination).map_err(failed("make transparent"))?;
        free_bind(&socket, source).map_err(failed("free the source address of"))?;
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)
            .map_err(|errno| failed("put off the port of")(errno.into()))?;
        let address = SocketAddr::new(source, 0);
        socket
            .bind(&address.into())
            .map_err(failed("bind the source address of"))?;
    }
    Ok(TcpSocket::from_std_stream(socket.into()))
}

/// Opens a non-blocking, unconnected UDP socket of the destination's family on a
/// random port, for exchanges such as DNS queries.
///
/// # Errors
/// As [`tcp_socket`].
pub fn udp_socket(
    destination: SocketAddr,
    options: &ConnectOptions,
) -> Result<std::net::UdpSocket, ConnectError> {
    let failed = |step| {
        move |source| ConnectError::Socket {
            step,
            destination,
            source,
        }
    };
    let socket = open(destination, options, Type::DGRAM)?;
    let any = match destination {
        SocketAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let local = SocketAddr::new(options.source.unwrap_or(any), 0);
    if options.source.is_some() {
        transparent(&socket, destination).map_err(failed("make transparent"))?;
    }
    socket.bind(&local.into()).map_err(failed("bind"))?;
    Ok(socket.into())
}

fn open(
    destination: SocketAddr,
    options: &ConnectOptions,
    style: Type,
) -> Result<Socket, ConnectError> {
    if let Some(source_ip) = options.source
        && source_ip.is_ipv4() != destination.is_ipv4()
    {
        return Err(ConnectError::Families {
            source_ip,
            destination,
        });
    }
    let failed = |step| {
        move |source| ConnectError::Socket {
            step,
            destination,
            source,
        }
    };
    let protocol = if style == Type::STREAM {
        Protocol::TCP
    } else {
        Protocol::UDP
    };
    let socket = Socket::new(Domain::for_address(destination), style, Some(protocol))
        .map_err(failed("create"))?;
    socket
        .set_nonblocking(true)
        .map_err(failed("make non-blocking"))?;
    if let Some(mark) = options.mark {
        socket.set_mark(mark).map_err(failed("mark"))?;
    }
    Ok(socket)
}

/// The source address may be of another machine.
fn free_bind(socket: &Socket, source: IpAddr) -> io::Result<()> {
    match source {
        IpAddr::V4(_) => socket.set_freebind_v4(true),
        IpAddr::V6(_) => socket.set_freebind_v6(true),
    }
}
