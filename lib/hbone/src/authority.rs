//! The `:authority` of a CONNECT request: where the tunnelled connection goes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Longest host name that DNS can carry; a longer one is not a name.
const HOST_BYTES_MAX: usize = 253;

/// Destination named by a CONNECT request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Authority {
    /// An address and a port, the usual form between node proxies.
    Address(SocketAddr),
    /// A host name and a port, as gateways between networks send.
    Host {
        /// The name in lower case, without a trailing dot.
        name: Box<str>,
        /// The port, never zero.
        port: u16,
    },
}

/// Why a text is not an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseAuthorityError {
    /// No port follows the host.
    #[error("authority has no port")]
    MissingPort,
    /// The port is not a number from 1 to 65535.
    #[error("authority has a port that is not in 1..=65535")]
    BadPort,
    /// The host is neither an address nor a DNS name.
    #[error("authority has a host that is neither an address nor a DNS name")]
    BadHost,
}

impl Authority {
    /// The port of either form.
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Host { port, .. } => *port,
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

/// Reads an authority: an address first, else a host name with a port.
///
/// # Errors
///
/// Names what is wrong with a text that is neither.
pub fn parse(text: &str) -> Result<Authority, ParseAuthorityError> {
    let (host, port) = text
        .rsplit_once(':')
        .ok_or(ParseAuthorityError::MissingPort)?;
    let bracketed = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if bracketed.is_none() && host.contains(':') {
        // A bare IPv6 address: its last group is not a port.
        return Err(ParseAuthorityError::MissingPort);
    }
    let port = parse_port(port)?;
    if let Some(inner) = bracketed {
        let address: std::net::Ipv6Addr =
            inner.parse().map_err(|_| ParseAuthorityError::BadHost)?;
        return Ok(Authority::Address(SocketAddr::new(
            IpAddr::V6(address),
            port,
        )));
    }
    if let Ok(address) = host.parse::<std::net::Ipv4Addr>() {
        return Ok(Authority::Address(SocketAddr::new(
            IpAddr::V4(address),
            port,
        )));
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    if !is_dns_name(name) {
        return Err(ParseAuthorityError::BadHost);
    }
    Ok(Authority::Host {
        name: name.to_ascii_lowercase().into_boxed_str(),
        port,
    })
}

fn parse_port(text: &str) -> Result<u16, ParseAuthorityError> {
    if text.is_empty() {
        return Err(ParseAuthorityError::MissingPort);
    }
    if text.len() > 5 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseAuthorityError::BadPort);
    }
    match text.parse::<u16>() {
        Ok(0) | Err(_) => Err(ParseAuthorityError::BadPort),
        Ok(port) => Ok(port),
    }
}

fn is_dns_name(name: &str) -> bool {
    if name.is_empty() || name.len() > HOST_BYTES_MAX {
        return false;
    }
    // A name whose last label is all digits would be a mistyped address.
    let numeric_tail = name
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    !numeric_tail && name.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

impl std::str::FromStr for Authority {
    type Err = ParseAuthorityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_what_is_not_an_authority() {
        use ParseAuthorityError::*;
        for (text, fault) in [
            ("", MissingPort),
            ("10.0.0.1", MissingPort),
            ("10.0.0.1:", MissingPort),
            ("fd00::1", MissingPort),
            ("fd00::1:80", MissingPort),
            ("10.0.0.1:0", BadPort),
            ("10.0.0.1:65536", BadPort),
            ("10.0.0.1:+80", BadPort),
            ("10.0.0.1: 80", BadPort),
            ("10.0.0.256:80", BadHost),
            ("1.2.3:80", BadHost),
            ("[10.0.0.1]:80", BadHost),
            ("[fd00::1%eth0]:80", BadHost),
            ("a..b:80", BadHost),
            ("-a.b:80", BadHost),
            ("user@host:80", BadHost),
            ("a/b:80", BadHost),
            (":80", BadHost),
        ] {
            assert_eq!(parse(text), Err(fault), "{text:?}");
        }
        assert_eq!(parse(&format!("{}:1", "a".repeat(64))), Err(BadHost));
        assert_eq!(parse(&format!("{}a:1", "a.".repeat(127))), Err(BadHost));
    }

    #[test]
    fn reads_addresses_and_names() {
        for (text, shown) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[fd00::1]:443", "[fd00::1]:443"),
            (
                "Cart.Shop.svc.cluster.local:8080",
                "cart.shop.svc.cluster.local:8080",
            ),
            ("cart.shop.:1", "cart.shop:1"),
            ("_grpc._tcp.a:65535", "_grpc._tcp.a:65535"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), shown);
        }
    }

    proptest! {
        #[test]
        fn addresses_round_trip(ip: IpAddr, port in 1u16..) {
            let address = SocketAddr::new(ip, port);
            prop_assert_eq!(parse(&address.to_string()), Ok(Authority::Address(address)));
        }

        #[test]
        fn any_text_is_judged_and_what_is_read_round_trips(text in ".{0,80}") {
            if let Ok(read) = parse(&text) {
                prop_assert_eq!(parse(&read.to_string()), Ok(read));
            }
        }
    }
}
