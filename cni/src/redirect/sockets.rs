//! The TCP connections that are open in the calling thread's namespace.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::rules::Connection;

/// States of /proc/net/tcp in which packets still flow: established to last-ack,
/// but for time-wait, close and listen.
const OPEN: [u8; 7] = [1, 2, 3, 4, 5, 8, 9];

/// All open connections but those on the loopback interface.
pub(super) fn open_connections() -> io::Result<BTreeSet<Connection>> {
    let mut found = BTreeSet::new();
    for file in ["tcp", "tcp6"] {
        match fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
            Ok(text) => found.extend(text.lines().skip(1).filter_map(parse)),
            // No IPv6 in this kernel.
            Err(error) if file == "tcp6" && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn parse(line: &str) -> Option<Connection> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let local = address(words.next()?)?;
    let remote = address(words.next()?)?;
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let outside = !local.ip().is_loopback() && local.ip() != remote.ip();
    (OPEN.contains(&state) && outside).then_some(Connection { local, remote })
}

/// `0100007F:1F90`: words of the address in the machine's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for start in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(start..start + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn lines_of_proc_net_tcp() {
        let line = "   1: 0200F40A:1F90 0300F40A:C350 01 00000000:00000000 00:00000000 00000000 0";
        let expect = Connection {
            local: "10.244.0.2:8080".parse().expect("an address"),
            remote: "10.244.0.3:50000".parse().expect("an address"),
        };
        assert_eq!(parse(line), Some(expect));
        for other in [
            "   1: 0200F40A:1F90 00000000:0000 0A 0",
            "   1: 0100007F:1F90 0100007F:C350 01 0",
            "   1: 0200F40A:1F90 0200F40A:C350 01 0",
            "   1: 0200F40A:1F90 0300F40A:C350 06 0",
            "   1: 0200F40A 0300F40A:C350 01 0",
            "",
            "  sl  local_address",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        let mapped = address("0000000000000000FFFF00000200F40A:0050").expect("mapped");
        assert_eq!(mapped, "10.244.0.2:80".parse().expect("an address"));
    }
}
