//! What a rule can look at, and values of those fields in sets and maps.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// The version of an address.
    #[must_use]
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// NFPROTO_IPV4 or NFPROTO_IPV6.
    pub(crate) fn nfproto(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }
}

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The number in the IP header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// Something of a packet that a lookup can use as (a part of) its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Source address, IPv4. The rule then matches IPv4 only.
    Source4,
    /// Source address, IPv6. The rule then matches IPv6 only.
    Source6,
    /// Destination address, IPv4. The rule then matches IPv4 only.
    Destination4,
    /// Destination address, IPv6. The rule then matches IPv6 only.
    Destination6,
    /// Transport protocol.
    Protocol,
    /// Source port of TCP, UDP or SCTP: narrow the rule to one of them first.
    SourcePort,
    /// Destination port of TCP, UDP or SCTP: narrow the rule to one of them first.
    DestinationPort,
    /// Packet mark.
    Mark,
    /// Name of the interface the packet came from.
    InterfaceIn,
    /// Name of the interface the packet leaves by.
    InterfaceOut,
    /// A random number below the given one, drawn anew for each packet.
    Random(u32),
    /// A number below the given one that goes round with every packet.
    RoundRobin(u32),
}

impl Field {
    /// The key type a set needs for this field.
    #[must_use]
    pub fn key_type(self) -> KeyType {
        match self {
            Self::Source4 | Self::Destination4 => KeyType::Ipv4,
            Self::Source6 | Self::Destination6 => KeyType::Ipv6,
            Self::Protocol => KeyType::Protocol,
            Self::SourcePort | Self::DestinationPort => KeyType::Port,
            Self::Mark | Self::Random(_) | Self::RoundRobin(_) => KeyType::Number,
            Self::InterfaceIn | Self::InterfaceOut => KeyType::Interface,
        }
    }

    /// The IP version that the field presupposes.
    pub(crate) fn version(self) -> Option<IpVersion> {
        match self {
            Self::Source4 | Self::Destination4 => Some(IpVersion::V4),
            Self::Source6 | Self::Destination6 => Some(IpVersion::V6),
            _ => None,
        }
    }
}

/// Type of one part of a set's key or of a map's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// IPv4 address.
    Ipv4,
    /// IPv6 address.
    Ipv6,
    /// Port.
    Port,
    /// Transport protocol.
    Protocol,
    /// A mark, or a number of [`Field::Random`].
    Number,
    /// Interface name.
    Interface,
}

impl KeyType {
    /// Bytes without padding.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::Ipv4 | Self::Number => 4,
            Self::Ipv6 | Self::Interface => 16,
            Self::Port => 2,
            Self::Protocol => 1,
        }
    }

    /// Bytes that it takes in a concatenation: whole 32-bit registers.
    pub(crate) fn padded(self) -> usize {
        self.width().next_multiple_of(4)
    }

    /// The number under which `nft` knows how to print it.
    pub(crate) fn datatype(self) -> u32 {
        match self {
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Number => 19,
            Self::Interface => 41,
        }
    }

    /// True for what the kernel keeps in the machine's byte order.
    pub(crate) fn host_order(self) -> bool {
        matches!(self, Self::Number | Self::Interface)
    }
}

/// One part of a key or of a map's data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// IPv4 address.
    Ipv4(Ipv4Addr),
    /// IPv6 address.
    Ipv6(Ipv6Addr),
    /// Port.
    Port(u16),
    /// Transport protocol.
    Protocol(Protocol),
    /// Mark or number.
    Number(u32),
    /// Interface name, at most 15 bytes.
    Interface(String),
}

impl Value {
    /// Its type.
    #[must_use]
    pub fn key_type(&self) -> KeyType {
        match self {
            Self::Ipv4(_) => KeyType::Ipv4,
            Self::Ipv6(_) => KeyType::Ipv6,
            Self::Port(_) => KeyType::Port,
            Self::Protocol(_) => KeyType::Protocol,
            Self::Number(_) => KeyType::Number,
            Self::Interface(_) => KeyType::Interface,
        }
    }

    /// The bytes as they stand in a register, without padding.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Ipv4(ip) => ip.octets().to_vec(),
            Self::Ipv6(ip) => ip.octets().to_vec(),
            Self::Port(port) => port.to_be_bytes().to_vec(),
            Self::Protocol(protocol) => vec![protocol.number()],
            Self::Number(number) => number.to_ne_bytes().to_vec(),
            Self::Interface(name) => interface_bytes(name),
        }
    }
}

impl From<IpAddr> for Value {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::Ipv4(ip),
            IpAddr::V6(ip) => Self::Ipv6(ip),
        }
    }
}

impl From<Ipv4Addr> for Value {
    fn from(ip: Ipv4Addr) -> Self {
        Self::Ipv4(ip)
    }
}

impl From<Ipv6Addr> for Value {
    fn from(ip: Ipv6Addr) -> Self {
        Self::Ipv6(ip)
    }
}

impl From<u16> for Value {
    fn from(port: u16) -> Self {
        Self::Port(port)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl From<Protocol> for Value {
    fn from(protocol: Protocol) -> Self {
        Self::Protocol(protocol)
    }
}

/// Values side by side, each padded to whole registers. A single value stays as
/// long as it is.
pub(crate) fn concatenate(values: &[Value]) -> Vec<u8> {
    if let [value] = values {
        return value.bytes();
    }
    let mut bytes = Vec::new();
    for value in values {
        bytes.extend(value.bytes());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// Length of a key or of data of these types.
pub(crate) fn length(types: &[KeyType]) -> usize {
    match types.len().cmp(&1) {
        Ordering::Equal => types[0].width(),
        _ => types.iter().map(|part| part.padded()).sum(),
    }
}

/// An interface name as the kernel compares it: all 16 bytes.
pub(crate) fn interface_bytes(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}
