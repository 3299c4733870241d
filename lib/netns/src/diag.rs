//! What the kernel tells of sockets that belong to others (NETLINK_SOCK_DIAG).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

/// SOCK_DIAG_BY_FAMILY.
const BY_FAMILY: u16 = 20;
const HEADER_BYTES: usize = 16;
/// `inet_diag_req_v2`: family, protocol, extensions, states, then the socket.
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Where the fields of `inet_diag_msg` stand in an answer.
const STATE_AT: usize = HEADER_BYTES + 1;
const TIMER_AT: usize = HEADER_BYTES + 2;
const EXPIRES_AT: usize = HEADER_BYTES + 52;
const ESTABLISHED: u8 = 1;
const KEEPALIVE_TIMER: u8 = 2;
/// Answers to earlier questions that failed half-way.
const STALE_MAX: usize = 4;

/// The kernel could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    /// There is no such channel in this kernel, or no descriptor left.
    #[error("cannot open a socket for socket diagnostics")]
    Open(#[source] io::Error),
    /// The question or its answer failed.
    #[error("cannot ask for a socket's state")]
    Ask(#[source] io::Error),
    /// The answer is none.
    #[error("the answer on a socket's state cannot be read")]
    Malformed,
}

/// Asks for TCP sockets of one namespace, by their exact addresses.
#[derive(Debug)]
pub struct SocketDiag {
    socket: OwnedFd,
    /// The last question's number; held from a question to its answer.
    sequence: Mutex<u32>,
}

impl SocketDiag {
    /// Opens the channel to the namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel has no such channel or descriptors have run out.
    pub fn open() -> Result<Self, DiagError> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkSockDiag,
        )
        .map_err(|errno| DiagError::Open(errno.into()))?;
        Ok(Self {
            socket,
            sequence: Mutex::new(0),
        })
    }

    /// When the established connection of a socket will be probed next if
    /// nothing arrives: right after the handshake its keepalive idle time. None
    /// when it has no keepalive, is busy at this moment, or does not exist.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn keepalive_in(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Option<Duration>, DiagError> {
        // The kernel answers while it is asked: nothing here waits.
        let mut sequence = self.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        *sequence = sequence.wrapping_add(1);
        let request = request(*sequence, local, remote);
        let socket = self.socket.as_raw_fd();
        let failed = |errno: Errno| DiagError::Ask(errno.into());
        send(socket, &request, MsgFlags::MSG_DONTWAIT).map_err(failed)?;
        let mut answer = [0; 512];
        for _ in 0..STALE_MAX {
            let length = recv(socket, &mut answer, MsgFlags::MSG_DONTWAIT).map_err(failed)?;
            let answer = answer.get(..length).ok_or(DiagError::Malformed)?;
            if word(answer, 8) == Some(*sequence) {
                return read(answer);
            }
        }
        Err(DiagError::Malformed)
    }
}

fn request(sequence: u32, local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    let length = u32::try_from(REQUEST_BYTES).expect("invariant: 72 fits");
    put(&length.to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    // NLM_F_REQUEST.
    put(&1_u16.to_ne_bytes());
    put(&sequence.to_ne_bytes());
    put(&0_u32.to_ne_bytes());
    let (family, tcp) = if local.is_ipv4() { (2, 6) } else { (10, 6) };
    put(&[family, tcp, 0, 0]);
    // All states.
    put(&u32::MAX.to_ne_bytes());
    put(&local.port().to_be_bytes());
    put(&remote.port().to_be_bytes());
    put(&octets(local.ip()));
    put(&octets(remote.ip()));
    put(&0_u32.to_ne_bytes());
    // No cookie.
    put(&[0xff; 8]);
    bytes
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut padded = [0; 16];
            padded[..4].copy_from_slice(&ip.octets());
            padded
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

fn read(answer: &[u8]) -> Result<Option<Duration>, DiagError> {
    let kind = answer.get(4..6).ok_or(DiagError::Malformed)?;
    if kind != BY_FAMILY.to_ne_bytes() {
        // NLMSG_ERROR with a negative error number.
        let error = word(answer, HEADER_BYTES).ok_or(DiagError::Malformed)?;
        return match error.cast_signed().wrapping_neg() {
            libc::ENOENT => Ok(None),
            code => Err(DiagError::Ask(io::Error::from_raw_os_error(code))),
        };
    }
    let expires = word(answer, EXPIRES_AT).ok_or(DiagError::Malformed)?;
    let armed = answer[STATE_AT] == ESTABLISHED && answer[TIMER_AT] == KEEPALIVE_TIMER;
    Ok(armed.then(|| Duration::from_millis(u64::from(expires))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_cut_short_are_faults() {
        for length in 0..EXPIRES_AT + 4 {
            let mut answer = vec![0; length];
            if length >= 6 {
                answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
            }
            let read = read(&answer);
            assert!(matches!(read, Err(DiagError::Malformed)), "{length}");
        }
    }

    #[test]
    fn an_error_is_told_and_a_missing_socket_is_none() {
        let answer = |errno: i32| {
            let mut answer = vec![0; HEADER_BYTES + 4];
            answer[4] = 2;
            answer[HEADER_BYTES..].copy_from_slice(&(-errno).to_ne_bytes());
            read(&answer)
        };
        assert!(matches!(answer(libc::ENOENT), Ok(None)));
        let refused = answer(libc::EPERM).expect_err("an error");
        let DiagError::Ask(error) = refused else {
            panic!("{refused}");
        };
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
}
