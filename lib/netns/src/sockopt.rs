//! Options of connected TCP sockets: original destination, keepalive, timeouts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::libc;
use socket2::{SockRef, TcpKeepalive};

/// A socket option could not be read or set.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {option}")]
pub struct SockoptError {
    verb: &'static str,
    option: &'static str,
    #[source]
    source: io::Error,
}

impl SockoptError {
    fn reading(option: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self {
            verb: "read",
            option,
            source,
        }
    }

    fn setting(option: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self {
            verb: "set",
            option,
            source,
        }
    }
}

/// The keepalive settings of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// SO_KEEPALIVE.
    pub enabled: bool,
    /// Silence before the first probe.
    pub idle: Duration,
    /// Between two probes.
    pub interval: Duration,
    /// Unanswered probes until the connection counts as dead.
    pub probes: u32,
}

/// An IPv4 peer of a dual-stack socket under its IPv4 address.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Where the client wanted to go before a NAT rule redirected it; none when no
/// rule did (a transparent listener has it as the local address of the socket).
///
/// # Errors
/// When the socket has no local address.
pub fn original_destination(socket: &impl AsFd) -> Result<Option<SocketAddr>, SockoptError> {
    let socket = SockRef::from(socket);
    let local = socket
        .local_addr()
        .map_err(SockoptError::reading("the local address"))?;
    let local = local.as_socket().map(canonical);
    let found = match local.map(|address| address.ip()) {
        Some(IpAddr::V4(_)) => socket.original_dst_v4(),
        Some(IpAddr::V6(_)) => socket.original_dst_v6(),
        None => return Ok(None),
    };
    match found {
        Ok(address) => Ok(address.as_socket().map(canonical)),
        Err(error) if is_no_entry(&error) => Ok(None),
        Err(error) => Err(SockoptError::reading("SO_ORIGINAL_DST")(error)),
    }
}

/// ENOENT: no NAT entry. ENOPROTOOPT: connection tracking is not even loaded.
fn is_no_entry(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOPROTOOPT))
}

/// Reads the keepalive settings (of the application's socket, to mirror them).
///
/// # Errors
/// When the descriptor is not a TCP socket.
pub fn keepalive(socket: &impl AsFd) -> Result<Keepalive, SockoptError> {
    let socket = SockRef::from(socket);
    let failed = SockoptError::reading;
    Ok(Keepalive {
        enabled: socket.keepalive().map_err(failed("SO_KEEPALIVE"))?,
        idle: socket
            .tcp_keepalive_time()
            .map_err(failed("TCP_KEEPIDLE"))?,
        interval: socket
            .tcp_keepalive_interval()
            .map_err(failed("TCP_KEEPINTVL"))?,
        probes: socket
            .tcp_keepalive_retries()
            .map_err(failed("TCP_KEEPCNT"))?,
    })
}

/// Sets the keepalive settings.
///
/// # Errors
/// When the descriptor is not a TCP socket or a value is out of the kernel's range.
pub fn set_keepalive(socket: &impl AsFd, wanted: &Keepalive) -> Result<(), SockoptError> {
    let socket = SockRef::from(socket);
    if !wanted.enabled {
        return socket
            .set_keepalive(false)
            .map_err(SockoptError::setting("SO_KEEPALIVE"));
    }
    let parameters = TcpKeepalive::new()
        .with_time(wanted.idle)
        .with_interval(wanted.interval)
        .with_retries(wanted.probes);
    socket
        .set_tcp_keepalive(&parameters)
        .map_err(SockoptError::setting("TCP_KEEPALIVE"))
}

/// Bounds how long sent data may stay unacknowledged before the connection ends.
///
/// # Errors
/// When the descriptor is not a TCP socket.
pub fn set_user_timeout(socket: &impl AsFd, timeout: Duration) -> Result<(), SockoptError> {
    SockRef::from(socket)
        .set_tcp_user_timeout(Some(timeout))
        .map_err(SockoptError::setting("TCP_USER_TIMEOUT"))
}

/// Makes the next close send a RST in place of a FIN.
///
/// # Errors
/// When the descriptor is not a socket.
pub fn abort_on_close(socket: &impl AsFd) -> Result<(), SockoptError> {
    SockRef::from(socket)
        .set_linger(Some(Duration::ZERO))
        .map_err(SockoptError::setting("SO_LINGER"))
}

/// Marks the packets of a socket (SO_MARK).
///
/// # Errors
/// Without CAP_NET_ADMIN in the socket's namespace.
pub fn set_mark(socket: &impl AsFd, mark: u32) -> Result<(), SockoptError> {
    SockRef::from(socket)
        .set_mark(mark)
        .map_err(SockoptError::setting("SO_MARK"))
}

/// Reads SO_MARK.
///
/// # Errors
/// When the descriptor is not a socket.
pub fn mark(socket: &impl AsFd) -> Result<u32, SockoptError> {
    SockRef::from(socket)
        .mark()
        .map_err(SockoptError::reading("SO_MARK"))
}

/// The number of the namespace that a socket belongs to, never used twice.
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length =
        libc::socklen_t::try_from(size_of::<u64>()).expect("invariant: 8 fits any length type");
    // SAFETY: `cookie` and `length` are valid for writes for the whole call, and
    // `length` is the size of `cookie`, which the kernel does not exceed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}
