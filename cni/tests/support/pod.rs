//! A pod and the world around it in network namespaces, and the sockets of a node proxy.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;

use culvert_cni::redirect::{Installed, Older, install, mechanism};
use culvert_cni::rules::{Connection, Mechanism, PROXY_MARK, PodRules};
use culvert_netns::{
    ConnectOptions, Family, ListenOptions, Netns, canonical, listen_tcp, listen_udp, tcp_socket,
};
use culvert_nft::probe;

/// Longer than any wait that is to succeed, shorter than patience.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// For connections that must not come about.
pub(crate) const MOMENT: Duration = Duration::from_millis(300);

/// The pod and what is outside it, joined by a veth pair.
pub(crate) struct Net {
    pub(crate) pod: Netns,
    pub(crate) world: Netns,
}

pub(crate) const POD_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(crate) const POD_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2);
pub(crate) const WORLD_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(crate) const WORLD_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 1);
/// Somewhere in the world, where nobody answers.
pub(crate) const AFAR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
pub(crate) const AFAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 10);

pub(crate) fn ip(netns: &Netns, args: &str) {
    run(netns, "ip", args);
}

pub(crate) fn run(netns: &Netns, program: &str, args: &str) -> String {
    let output = netns
        .run(|| {
            Command::new(program)
                .args(args.split_whitespace())
                .output()
                .expect("these tests need ip and nft: apt-get install iproute2 nftables")
        })
        .expect("enter the namespace");
    assert!(output.status.success(), "{program} {args}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

pub(crate) fn path(netns: &Netns) -> String {
    format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        netns.as_fd().as_raw_fd()
    )
}

pub(crate) fn bare() -> Netns {
    let netns = Netns::create().expect("these tests make network namespaces: run them as root");
    ip(&netns, "link set lo up");
    netns
}

pub(crate) fn veth(one: (&Netns, &str), other: (&Netns, &str)) {
    let (netns, name) = one;
    let (peer, peer_name) = other;
    let to = path(peer);
    ip(
        netns,
        &format!("link add {name} type veth peer name {peer_name} netns {to}"),
    );
    // No link-local address that comes by itself some time later.
    ip(netns, &format!("link set {name} addrgenmode none"));
    ip(netns, &format!("link set {name} up"));
    ip(peer, &format!("link set {peer_name} up"));
}

impl Net {
    pub(crate) fn new() -> Self {
        let net = Self {
            pod: bare(),
            world: bare(),
        };
        veth((&net.pod, "eth0"), (&net.world, "veth0"));
        for (netns, device, v4, v6) in [
            (&net.pod, "eth0", POD_V4, POD_V6),
            (&net.world, "veth0", WORLD_V4, WORLD_V6),
        ] {
            ip(netns, &format!("addr add {v4}/24 dev {device}"));
            ip(netns, &format!("addr add {v6}/64 dev {device} nodad"));
        }
        ip(&net.pod, &format!("route add default via {WORLD_V4}"));
        ip(&net.pod, &format!("-6 route add default via {WORLD_V6}"));
        net
    }

    /// With the rules in the pod.
    pub(crate) fn enrolled(rules: &PodRules) -> Self {
        let net = Self::new();
        net.install(rules);
        net
    }

    pub(crate) fn install(&self, rules: &PodRules) -> Installed {
        self.install_as(rules, &Older::KeepOpen).0
    }

    pub(crate) fn install_as(
        &self,
        rules: &PodRules,
        older: &Older,
    ) -> (Installed, Vec<Connection>) {
        inside(&self.pod, || {
            let kernel = probe().expect("nf_tables");
            assert_eq!(mechanism(kernel), Mechanism::Tproxy);
            install(rules, kernel, older).expect("installed")
        })
    }
}

pub(crate) fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> T + Send) -> T {
    netns.run(work).expect("enter the namespace")
}

/// A listener as the node proxy opens them.
pub(crate) fn proxy_listener(netns: &Netns, port: u16) -> TcpListener {
    let options = ListenOptions {
        family: Family::Dual,
        transparent: true,
        reuse_port: false,
        mark: Some(PROXY_MARK),
        backlog: 128,
    };
    let listener = inside(netns, || listen_tcp(port, &options)).expect("listen");
    listener.set_nonblocking(false).expect("blocking");
    listener
}

pub(crate) fn listen(netns: &Netns, at: SocketAddr) -> TcpListener {
    inside(netns, || TcpListener::bind(at)).expect("listen")
}

pub(crate) fn connect(netns: &Netns, to: SocketAddr) -> TcpStream {
    connect_within(netns, to, PATIENCE).unwrap_or_else(|error| panic!("connect to {to}: {error}"))
}

pub(crate) fn connect_within(
    netns: &Netns,
    to: SocketAddr,
    wait: Duration,
) -> std::io::Result<TcpStream> {
    let stream = inside(netns, || TcpStream::connect_timeout(&to, wait))?;
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    Ok(stream)
}

/// A connection of the node proxy.
pub(crate) fn proxy_connect(
    netns: &Netns,
    to: SocketAddr,
    options: ConnectOptions,
) -> std::io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let socket = inside(netns, || {
        let _guard = runtime.enter();
        tcp_socket(to, &options).expect("a socket")
    });
    let connected = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, socket.connect(to))
            .await
            .expect("in time")
    });
    let stream = connected?.into_std().expect("std");
    stream.set_nonblocking(false).expect("blocking");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    Ok(stream)
}

pub(crate) fn own(mark: u32, source: Option<IpAddr>) -> ConnectOptions {
    ConnectOptions {
        source,
        mark: Some(mark),
    }
}

/// Bytes in both directions.
#[track_caller]
pub(crate) fn talk(one: &mut TcpStream, other: &mut TcpStream) {
    other.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut buffer = [0; 4];
    one.write_all(b"ping").expect("written");
    other.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"ping");
    other.write_all(b"pong").expect("written");
    one.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"pong");
}

pub(crate) fn local(stream: &TcpStream) -> SocketAddr {
    canonical(stream.local_addr().expect("bound"))
}

pub(crate) fn peer(stream: &TcpStream) -> SocketAddr {
    canonical(stream.peer_addr().expect("connected"))
}

pub(crate) fn v4(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(address), port)
}

pub(crate) fn v6(address: Ipv6Addr, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(address), port)
}

/// Waits until a connection attempt hangs: its first packet has been dropped.
pub(crate) fn wait_for_syn_sent(netns: &Netns, port: u16) {
    let end = tokio::time::Instant::now() + PATIENCE;
    let remote = format!(":{port:04X} 02 ");
    loop {
        let text = inside(netns, || {
            let read = |file| std::fs::read_to_string(file).expect("readable");
            read("/proc/thread-self/net/tcp") + &read("/proc/thread-self/net/tcp6")
        });
        if text.lines().any(|line| line.contains(&remote)) {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "no attempt to {port}");
        std::thread::yield_now();
    }
}

/// A socket for names as the node proxy opens it.
pub(crate) fn dns_socket(netns: &Netns, at: IpAddr) -> UdpSocket {
    let options = ListenOptions {
        family: Family::At(at),
        transparent: false,
        reuse_port: true,
        mark: Some(PROXY_MARK),
        backlog: 0,
    };
    let socket = inside(netns, || listen_udp(15053, &options)).expect("bound");
    socket.set_nonblocking(false).expect("blocking");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket
}
