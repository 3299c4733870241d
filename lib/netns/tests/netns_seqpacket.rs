//! Packets and descriptors between processes. Needs no privilege.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use culvert_netns::{FDS_MAX, SeqPacket, SeqPacketError, SeqPacketListener};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

fn file(content: &str) -> File {
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(content.as_bytes()).expect("write");
    file
}

fn content(fd: OwnedFd) -> String {
    let mut file = File::from(fd);
    file.rewind().expect("seek");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    text
}

/// Descriptors of this process that are open on a pipe's write end: when all are
/// closed, the reader sees the end.
fn pipe() -> (File, OwnedFd) {
    let (reader, writer) = std::io::pipe().expect("pipe");
    (File::from(OwnedFd::from(reader)), writer.into())
}

#[test]
fn packets_stay_apart_and_carry_descriptors_in_order() {
    let (one, other) = SeqPacket::pair().expect("pair");
    let files = [file("first"), file("second")];
    one.send(b"two", &[files[0].as_fd(), files[1].as_fd()])
        .expect("send");
    one.send(b"none", &[]).expect("send");
    let packet = other.receive(1024).expect("receive").expect("open");
    assert_eq!(packet.bytes, b"two");
    let fds: Vec<OwnedFd> = packet.fds;
    for fd in &fds {
        let flags = fcntl(fd, FcntlArg::F_GETFD).expect("flags");
        assert!(FdFlag::from_bits_truncate(flags).contains(FdFlag::FD_CLOEXEC));
    }
    let texts: Vec<String> = fds.into_iter().map(content).collect();
    assert_eq!(texts, ["first", "second"]);
    let packet = other.receive(1024).expect("receive").expect("open");
    assert_eq!(
        (packet.bytes.as_slice(), packet.fds.len()),
        (&b"none"[..], 0)
    );
    drop(one);
    assert!(other.receive(1024).expect("no error").is_none());
}

#[test]
fn a_cut_packet_is_an_error_and_its_descriptors_are_closed() {
    let (one, other) = SeqPacket::pair().expect("pair");
    let (mut reader, writer) = pipe();
    one.send(&[7; 1025], &[writer.as_fd()]).expect("send");
    drop(writer);
    assert!(matches!(
        other.receive(1024),
        Err(SeqPacketError::Truncated(1024))
    ));
    assert_eq!(reader.read(&mut [0]).expect("the last writer is closed"), 0);
    one.send(&[7; 1024], &[]).expect("send");
    assert_eq!(
        other
            .receive(1024)
            .expect("receive")
            .expect("open")
            .bytes
            .len(),
        1024
    );
}

#[test]
fn too_many_descriptors_are_an_error_and_all_are_closed() {
    let (one, other) = SeqPacket::pair().expect("pair");
    let (mut reader, writer) = pipe();
    let too_many = vec![writer.as_fd(); FDS_MAX + 1];
    assert!(matches!(
        one.send(b"x", &too_many),
        Err(SeqPacketError::Unsendable)
    ));
    assert!(matches!(
        one.send(b"", &[]),
        Err(SeqPacketError::Unsendable)
    ));
    // A peer that does not keep to the limit.
    let raw: Vec<i32> = too_many.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [nix::sys::socket::ControlMessage::ScmRights(&raw)];
    let bytes = [std::io::IoSlice::new(b"x")];
    let flags = nix::sys::socket::MsgFlags::empty();
    nix::sys::socket::sendmsg::<()>(one.as_fd().as_raw_fd(), &bytes, &control, flags, None)
        .expect("send");
    drop(too_many);
    drop(writer);
    assert!(matches!(
        other.receive(1024),
        Err(SeqPacketError::DescriptorsTruncated)
    ));
    assert_eq!(reader.read(&mut [0]).expect("the last writer is closed"), 0);
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_is_not() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s.sock");
    drop(SeqPacketListener::bind(&path).expect("bind"));
    assert!(SeqPacket::connect(&path).is_err());
    let listener = SeqPacketListener::bind(&path).expect("replace");
    let client = SeqPacket::connect(&path).expect("connect");
    let server = listener.accept().expect("accept");
    client.send(b"hello", &[]).expect("send");
    assert_eq!(
        server.receive(16).expect("receive").expect("open").bytes,
        b"hello"
    );
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "keep me").expect("file");
    assert!(SeqPacketListener::bind(&plain).is_err());
    assert_eq!(
        std::fs::read_to_string(&plain).expect("still there"),
        "keep me"
    );
}

#[tokio::test]
async fn the_tokio_ends_do_the_same() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s.sock");
    let listener = SeqPacketListener::bind(&path)
        .expect("bind")
        .into_async()
        .expect("register");
    let client = SeqPacket::connect(&path)
        .expect("connect")
        .into_async()
        .expect("register");
    let server = listener.accept().await.expect("accept");
    assert_eq!(
        server.peer().expect("peer").pid,
        i32::try_from(std::process::id()).expect("pid")
    );
    let carried = file("carried");
    client.send(b"one", &[carried.as_fd()]).await.expect("send");
    let packet = server.receive(64).await.expect("receive").expect("open");
    assert_eq!(packet.bytes, b"one");
    assert_eq!(
        packet.fds.into_iter().map(content).collect::<Vec<_>>(),
        ["carried"]
    );
    server.send(b"last", &[]).await.expect("send");
    drop(server);
    client.closed().await.expect("closed");
    assert_eq!(
        client
            .receive(64)
            .await
            .expect("receive")
            .expect("kept")
            .bytes,
        b"last"
    );
    assert!(client.receive(64).await.expect("receive").is_none());
    assert!(matches!(
        client.send(b"x", &[]).await,
        Err(SeqPacketError::Send(_))
    ));
}
