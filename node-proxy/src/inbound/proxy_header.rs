//! The PROXY protocol header, version 2, before the bytes of an application
//! that asks for it.

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_COMMAND: u8 = 0x21;
const TCP_V4: u8 = 0x11;
const TCP_V6: u8 = 0x21;
/// The client's SPIFFE ID, as peers expect it.
const TLV_IDENTITY: u8 = 0xd0;

/// What the header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyHeader {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) identity: String,
}

/// The bytes of a header. Addresses of different families both become IPv6.
pub(super) fn encode(header: &ProxyHeader) -> Vec<u8> {
    let mut body = Vec::with_capacity(128);
    let family = match (header.source.ip(), header.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            body.extend_from_slice(&source.octets());
            body.extend_from_slice(&destination.octets());
            TCP_V4
        }
        (source, destination) => {
            for ip in [source, destination] {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                body.extend_from_slice(&ip.octets());
            }
            TCP_V6
        }
    };
    body.extend_from_slice(&header.source.port().to_be_bytes());
    body.extend_from_slice(&header.destination.port().to_be_bytes());
    let identity = header.identity.as_bytes();
    if let Ok(length) = u16::try_from(identity.len()) {
        body.push(TLV_IDENTITY);
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(identity);
    }
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(16 + body.len());
    bytes.extend_from_slice(&SIGNATURE);
    bytes.push(VERSION_COMMAND);
    bytes.push(family);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(source: &str, destination: &str) -> Vec<u8> {
        encode(&ProxyHeader {
            source: source.parse().expect("address"),
            destination: destination.parse().expect("address"),
            identity: "spiffe://td/ns/a/sa/b".into(),
        })
    }

    #[test]
    fn a_header_has_addresses_ports_and_identity() {
        let bytes = header("10.0.0.1:258", "10.0.0.2:80");
        assert_eq!(bytes[..12], SIGNATURE);
        assert_eq!(bytes[12..16], [0x21, 0x11, 0, 12 + 3 + 21]);
        assert_eq!(bytes[16..28], [10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 0, 80]);
        assert_eq!(bytes[28..31], [0xd0, 0, 21]);
        assert_eq!(&bytes[31..], b"spiffe://td/ns/a/sa/b");
    }

    #[test]
    fn mixed_families_are_ipv6() {
        let bytes = header("10.0.0.1:1", "[fd00::2]:2");
        assert_eq!(bytes[13], 0x21);
        assert_eq!(bytes[26..32], [0xff, 0xff, 10, 0, 0, 1]);
    }
}
