//! The two ioctls that no safe crate offers.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

mod raw {
    use nix::libc;

    nix::ioctl_none_bad!(ns_type, libc::NS_GET_NSTYPE);
    nix::ioctl_read_bad!(interface_flags, libc::SIOCGIFFLAGS, libc::ifreq);
    nix::ioctl_write_ptr_bad!(set_interface_flags, libc::SIOCSIFFLAGS, libc::ifreq);
}

/// An interface could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot bring the loopback interface up")]
pub struct InterfaceError(#[source] io::Error);

/// True when the descriptor is a network namespace.
pub(crate) fn is_network_namespace(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: NS_GET_NSTYPE takes no argument and touches no memory of ours; on a
    // descriptor of another kind it fails with ENOTTY.
    let kind = unsafe { raw::ns_type(fd.as_raw_fd()) };
    kind == Ok(libc::CLONE_NEWNET)
}

/// Brings `lo` up in the calling thread's namespace.
///
/// # Errors
/// Without CAP_NET_ADMIN there.
pub fn loopback_up() -> Result<(), InterfaceError> {
    // Any socket does: it only names the namespace.
    let socket = UdpSocket::bind(("0.0.0.0", 0)).map_err(InterfaceError)?;
    // SAFETY: ifreq is plain old data (byte arrays, integers and a union of them),
    // for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: `request` is a valid, exclusively borrowed ifreq with a terminated
    // name; the kernel fills in its flags.
    unsafe { raw::interface_flags(socket.as_raw_fd(), &raw mut request) }
        .map_err(|errno| InterfaceError(errno.into()))?;
    // SAFETY: SIOCGIFFLAGS has just written this member of the union.
    unsafe { request.ifr_ifru.ifru_flags |= up_flag() };
    // SAFETY: `request` is valid for reads; the kernel copies it.
    unsafe { raw::set_interface_flags(socket.as_raw_fd(), &raw const request) }
        .map_err(|errno| InterfaceError(errno.into()))?;
    Ok(())
}

fn up_flag() -> libc::c_short {
    libc::c_short::try_from(libc::IFF_UP).expect("invariant: IFF_UP is 1")
}
