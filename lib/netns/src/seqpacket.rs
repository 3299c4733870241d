//! Unix sockets that keep packets apart and carry descriptors, blocking and for
//! tokio.

use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

/// Descriptors in one packet: all sockets of a pod (seven) with room to spare.
pub const FDS_MAX: usize = 16;

/// Connections that may wait to be accepted: only a handful of programs ever connect.
const BACKLOG: i32 = 16;

/// One packet with the descriptors that came along.
#[derive(Debug)]
pub struct Packet {
    /// The bytes, never empty.
    pub bytes: Vec<u8>,
    /// The descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Why a socket or a packet failed.
#[derive(Debug, thiserror::Error)]
pub enum SeqPacketError {
    /// The socket file could not be used.
    #[error("cannot {step} {path}")]
    Socket {
        /// What was tried.
        step: &'static str,
        /// The file, or what the socket is.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Sending failed.
    #[error("cannot send a packet")]
    Send(#[source] io::Error),
    /// Receiving failed.
    #[error("cannot receive a packet")]
    Receive(#[source] io::Error),
    /// The peer's packet was longer than the reader takes.
    #[error("a packet of more than {0} bytes")]
    Truncated(usize),
    /// The peer sent more descriptors than the reader takes.
    #[error("a packet with more than {FDS_MAX} descriptors")]
    DescriptorsTruncated,
    /// More descriptors than one packet carries, or no bytes to carry them.
    #[error("a packet needs at least one byte and at most {FDS_MAX} descriptors")]
    Unsendable,
}

/// A listening socket.
#[derive(Debug)]
pub struct SeqPacketListener {
    fd: OwnedFd,
}

/// One connection.
#[derive(Debug)]
pub struct SeqPacket {
    fd: OwnedFd,
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its user when it connected.
    pub uid: u32,
    /// Its process when it connected.
    pub pid: i32,
}

impl SeqPacketListener {
    /// Listens at a path. A socket file that is already there is replaced; anything
    /// else there is left alone.
    ///
    /// # Errors
    /// When the path is taken by something else, too long, or not writable.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, SeqPacketError> {
        let path = path.as_ref();
        let failed = failure(path);
        if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
            std::fs::remove_file(path).map_err(failed("replace"))?;
        }
        let address = SocketAddrUnix::new(path).map_err(|errno| failed("name")(errno.into()))?;
        let fd = open(SocketFlags::CLOEXEC).map_err(failed("create a socket for"))?;
        rustix::net::bind(&fd, &address).map_err(|errno| failed("bind")(errno.into()))?;
        // Only the owner: whoever connects gets or gives descriptors.
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed("protect"))?;
        rustix::net::listen(&fd, BACKLOG).map_err(|errno| failed("listen at")(errno.into()))?;
        Ok(Self { fd })
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn accept(&self) -> Result<SeqPacket, SeqPacketError> {
        accept(&self.fd, SocketFlags::CLOEXEC)
            .map(|fd| SeqPacket { fd })
            .map_err(failure("the listener")("accept at"))
    }

    /// The same listener for tokio.
    ///
    /// # Errors
    /// When it cannot be registered.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn into_async(self) -> Result<AsyncSeqPacketListener, SeqPacketError> {
        let failed = failure("the listener")("register");
        rustix::io::ioctl_fionbio(&self.fd, true).map_err(|errno| failed(errno.into()))?;
        Ok(AsyncSeqPacketListener {
            fd: register(self.fd, Interest::READABLE).map_err(failed)?,
        })
    }
}

impl SeqPacket {
    /// Connects to a listener.
    ///
    /// # Errors
    /// When nobody listens at the path.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, SeqPacketError> {
        let path = path.as_ref();
        let failed = failure(path);
        let address = SocketAddrUnix::new(path).map_err(|errno| failed("name")(errno.into()))?;
        let fd = open(SocketFlags::CLOEXEC).map_err(failed("create a socket for"))?;
        rustix::net::connect(&fd, &address).map_err(|errno| failed("connect to")(errno.into()))?;
        Ok(Self { fd })
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn pair() -> Result<(Self, Self), SeqPacketError> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| failure("a pair")("create")(errno.into()))?;
        Ok((Self { fd: one }, Self { fd: other }))
    }

    /// Sends one packet with descriptors; the caller keeps its own copies.
    ///
    /// # Errors
    /// When the peer is gone, or the packet is empty or has too many descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SeqPacketError> {
        sendable(bytes, fds)?;
        send(&self.fd, bytes, fds).map_err(SeqPacketError::Send)
    }

    /// Waits for a packet of at most `bytes_max` bytes. None when the peer closed.
    ///
    /// # Errors
    /// When the packet or its descriptors were cut; what came is closed then.
    pub fn receive(&self, bytes_max: usize) -> Result<Option<Packet>, SeqPacketError> {
        finish(
            receive(&self.fd, bytes_max).map_err(SeqPacketError::Receive)?,
            bytes_max,
        )
    }

    /// The same connection for tokio.
    ///
    /// # Errors
    /// When it cannot be registered.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn into_async(self) -> Result<AsyncSeqPacket, SeqPacketError> {
        let failed = failure("the connection")("register");
        rustix::io::ioctl_fionbio(&self.fd, true).map_err(|errno| failed(errno.into()))?;
        Ok(AsyncSeqPacket {
            fd: register(self.fd, both()).map_err(failed)?,
        })
    }
}

/// A listening socket for tokio.
#[derive(Debug)]
pub struct AsyncSeqPacketListener {
    fd: AsyncFd<OwnedFd>,
}

impl AsyncSeqPacketListener {
    /// Waits for a connection.
    ///
    /// # Errors
    /// When descriptors have run out.
    ///
    /// # Cancel safety
    /// No connection is lost.
    pub async fn accept(&self) -> Result<AsyncSeqPacket, SeqPacketError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let failed = failure("the listener");
        let fd = self
            .fd
            .async_io(Interest::READABLE, |fd| accept(fd, flags))
            .await
            .map_err(failed("accept at"))?;
        Ok(AsyncSeqPacket {
            fd: register(fd, both()).map_err(failed("register a connection of"))?,
        })
    }
}

/// One connection for tokio.
#[derive(Debug)]
pub struct AsyncSeqPacket {
    fd: AsyncFd<OwnedFd>,
}

impl AsyncSeqPacket {
    /// Connects to a listener without ever blocking the thread.
    ///
    /// # Errors
    /// When nobody listens at the path, or so many wait there that the kernel
    /// would make us wait too.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, SeqPacketError> {
        let path = path.as_ref();
        let failed = failure(path);
        let address = SocketAddrUnix::new(path).map_err(|errno| failed("name")(errno.into()))?;
        let fd = open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            .map_err(failed("create a socket for"))?;
        rustix::net::connect(&fd, &address).map_err(|errno| failed("connect to")(errno.into()))?;
        Ok(Self {
            fd: register(fd, both()).map_err(failed("register a connection to"))?,
        })
    }

    /// As [`SeqPacket::send`].
    ///
    /// # Errors
    /// As [`SeqPacket::send`].
    ///
    /// # Cancel safety
    /// The packet is sent whole or not at all.
    pub async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SeqPacketError> {
        sendable(bytes, fds)?;
        self.fd
            .async_io(Interest::WRITABLE, |fd| send(fd, bytes, fds))
            .await
            .map_err(SeqPacketError::Send)
    }

    /// As [`SeqPacket::receive`].
    ///
    /// # Errors
    /// As [`SeqPacket::receive`].
    ///
    /// # Cancel safety
    /// No packet is lost.
    pub async fn receive(&self, bytes_max: usize) -> Result<Option<Packet>, SeqPacketError> {
        let received = self
            .fd
            .async_io(Interest::READABLE, |fd| receive(fd, bytes_max))
            .await;
        finish(received.map_err(SeqPacketError::Receive)?, bytes_max)
    }

    /// The user and process at the other end.
    ///
    /// # Errors
    /// When the socket is not connected.
    pub fn peer(&self) -> Result<PeerCredentials, SeqPacketError> {
        let found = sockopt::socket_peercred(self.fd.get_ref().as_fd())
            .map_err(|errno| failure("the connection")("read the peer of")(errno.into()))?;
        Ok(PeerCredentials {
            uid: found.uid.as_raw(),
            pid: found.pid.as_raw_nonzero().get(),
        })
    }

    /// Waits until the peer has closed its end, without reading a packet.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn closed(&self) -> Result<(), SeqPacketError> {
        loop {
            let mut guard = self
                .fd
                .ready(Interest::READABLE)
                .await
                .map_err(SeqPacketError::Receive)?;
            if guard.ready().is_read_closed() {
                return Ok(());
            }
            // A packet waits; readiness of the other kind comes as a new event.
            guard.clear_ready_matching(Ready::READABLE);
        }
    }
}

impl AsFd for SeqPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What one recvmsg gave.
struct Received {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    flags: ReturnFlags,
}

fn open(flags: SocketFlags) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(fd)
}

/// A connection is read and written.
fn both() -> Interest {
    Interest::READABLE | Interest::WRITABLE
}

fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` refers to the same open descriptor until it is dropped, and
    // the `AsyncFd`, which owns it from here on, lends it only by shared reference.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}

fn accept(fd: &OwnedFd, flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(fd, flags)?)
}

fn sendable(bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SeqPacketError> {
    // An empty packet would look like the end of the connection.
    let good = !bytes.is_empty() && fds.len() <= FDS_MAX;
    if good {
        Ok(())
    } else {
        Err(SeqPacketError::Unsendable)
    }
}

fn send(fd: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(fits, "the buffer holds FDS_MAX descriptors");
    }
    rustix::net::sendmsg(
        fd,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

fn receive(fd: &OwnedFd, bytes_max: usize) -> io::Result<Received> {
    let mut bytes = vec![0; bytes_max];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message =
        rustix::net::recvmsg(fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    bytes.truncate(message.bytes);
    Ok(Received {
        bytes,
        fds,
        flags: message.flags,
    })
}

/// Judges what came. Dropping it closes the descriptors.
fn finish(received: Received, bytes_max: usize) -> Result<Option<Packet>, SeqPacketError> {
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(SeqPacketError::Truncated(bytes_max));
    }
    // The control buffer's padding may hold one descriptor more than asked for.
    if received.flags.contains(ReturnFlags::CTRUNC) || received.fds.len() > FDS_MAX {
        return Err(SeqPacketError::DescriptorsTruncated);
    }
    let Received { bytes, fds, .. } = received;
    if bytes.is_empty() {
        return Ok(None);
    }
    Ok(Some(Packet { bytes, fds }))
}

fn failure<P: AsRef<Path>>(
    path: P,
) -> impl Fn(&'static str) -> Box<dyn Fn(io::Error) -> SeqPacketError> {
    let path = path.as_ref().display().to_string();
    move |step| {
        let path = path.clone();
        Box::new(move |source| SeqPacketError::Socket {
            step,
            path: path.clone(),
            source,
        })
    }
}
