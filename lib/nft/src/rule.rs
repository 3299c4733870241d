//! A rule as a value: matches and actions in the order in which they are written.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::field::{Field, IpVersion, Protocol};

/// One rule of a chain. Built from left to right, as `nft` prints it.
///
/// ```
/// use culvert_nft::Rule;
/// let rule = Rule::new().tcp().destination_port(80).redirect(15001);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub(crate) statements: Vec<Statement>,
    pub(crate) comment: Option<String>,
}

/// Equal or not equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Is,
    IsNot,
}

/// One thing compared with a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    Field(Field),
    NfProto,
    SocketUid,
    TcpFlags,
    CtMark,
    CtStatus,
    SocketTransparent,
    SocketWildcard,
    SocketMark,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Statement {
    Compare {
        operand: Operand,
        mask: Option<Vec<u8>>,
        comparison: Comparison,
        value: Vec<u8>,
    },
    /// The packet belongs to a local socket.
    HasSocket,
    InSet {
        key: Vec<Field>,
        set: String,
        comparison: Comparison,
    },
    VerdictMap {
        key: Vec<Field>,
        map: String,
    },
    SetMark {
        value: u32,
        mask: u32,
    },
    SetCtMark(u32),
    Tproxy {
        version: Option<IpVersion>,
        address: Option<IpAddr>,
        port: u16,
    },
    Redirect(u16),
    Nat {
        kind: Nat,
        address: IpAddr,
        port: Option<u16>,
    },
    DnatMap {
        version: IpVersion,
        key: Vec<Field>,
        map: String,
        ports: MapPorts,
    },
    Masquerade,
    Reject(Reject),
    Counter,
    NoTrack,
    Verdict(Verdict),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nat {
    Source,
    Destination,
}

/// What the data of a map for [`Rule::dnat_map`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapPorts {
    /// An address; the port stays.
    Keep,
    /// An address and a port.
    FromMap,
}

/// How a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// A TCP reset; the rule must be narrowed to TCP.
    TcpReset,
    /// ICMP port unreachable of the packet's family.
    PortUnreachable,
}

/// What happens to the packet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Leave this hook's table.
    Accept,
    /// Drop the packet.
    Drop,
    /// Go back to the calling chain, or to the policy of a base chain.
    Return,
    /// Go through another chain and come back.
    Jump(String),
    /// Go on in another chain.
    Goto(String),
}

/// FIN, SYN, RST and ACK.
const TCP_FLAGS: u8 = 0x17;
const TCP_SYN: u8 = 0x02;

impl Rule {
    /// A rule that matches everything and does nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Words for people, shown by `nft list` (at most 100 bytes are kept).
    #[must_use]
    pub fn comment(mut self, text: &str) -> Self {
        self.comment = Some(text.to_owned());
        self
    }

    fn with(mut self, statement: Statement) -> Self {
        self.statements.push(statement);
        self
    }

    fn compare(self, operand: Operand, comparison: Comparison, value: impl Into<Vec<u8>>) -> Self {
        self.with(Statement::Compare {
            operand,
            mask: None,
            comparison,
            value: value.into(),
        })
    }

    fn masked(self, operand: Operand, comparison: Comparison, value: u32, mask: u32) -> Self {
        let full = mask == u32::MAX;
        self.with(Statement::Compare {
            operand,
            mask: (!full).then(|| mask.to_ne_bytes().to_vec()),
            comparison,
            value: (value & mask).to_ne_bytes().to_vec(),
        })
    }

    /// Only this IP version (tables of family inet).
    #[must_use]
    pub fn ip_version(self, version: IpVersion) -> Self {
        self.compare(Operand::NfProto, Comparison::Is, [version.nfproto()])
    }

    /// Only this transport protocol.
    #[must_use]
    pub fn protocol(self, protocol: Protocol) -> Self {
        let operand = Operand::Field(Field::Protocol);
        self.compare(operand, Comparison::Is, [protocol.number()])
    }

    /// Every protocol but this one.
    #[must_use]
    pub fn protocol_not(self, protocol: Protocol) -> Self {
        let operand = Operand::Field(Field::Protocol);
        self.compare(operand, Comparison::IsNot, [protocol.number()])
    }

    /// Only TCP.
    #[must_use]
    pub fn tcp(self) -> Self {
        self.protocol(Protocol::Tcp)
    }

    /// Only UDP.
    #[must_use]
    pub fn udp(self) -> Self {
        self.protocol(Protocol::Udp)
    }

    /// Only the first packet of a TCP connection; after [`Rule::tcp`].
    #[must_use]
    pub fn syn(self) -> Self {
        self.with(Statement::Compare {
            operand: Operand::TcpFlags,
            mask: Some(vec![TCP_FLAGS]),
            comparison: Comparison::Is,
            value: vec![TCP_SYN],
        })
    }

    /// Every packet of a TCP connection but the first one; after [`Rule::tcp`].
    #[must_use]
    pub fn syn_not(self) -> Self {
        self.with(Statement::Compare {
            operand: Operand::TcpFlags,
            mask: Some(vec![TCP_FLAGS]),
            comparison: Comparison::IsNot,
            value: vec![TCP_SYN],
        })
    }

    fn network(self, net: IpNet, fields: (Field, Field), comparison: Comparison) -> Self {
        let (field, address, mask) = match net.trunc() {
            IpNet::V4(net) => (
                fields.0,
                net.addr().octets().to_vec(),
                net.netmask().octets().to_vec(),
            ),
            IpNet::V6(net) => (
                fields.1,
                net.addr().octets().to_vec(),
                net.netmask().octets().to_vec(),
            ),
        };
        let one_address = net.prefix_len() == net.max_prefix_len();
        self.with(Statement::Compare {
            operand: Operand::Field(field),
            mask: (!one_address).then_some(mask),
            comparison,
            value: address,
        })
    }

    /// Source address in this network; the rule then matches its IP version only.
    #[must_use]
    pub fn source(self, net: impl Into<IpNet>) -> Self {
        let fields = (Field::Source4, Field::Source6);
        self.network(net.into(), fields, Comparison::Is)
    }

    /// Source address outside this network, of the same IP version.
    #[must_use]
    pub fn source_not(self, net: impl Into<IpNet>) -> Self {
        let fields = (Field::Source4, Field::Source6);
        self.network(net.into(), fields, Comparison::IsNot)
    }

    /// Destination address in this network; the rule then matches its IP version only.
    #[must_use]
    pub fn destination(self, net: impl Into<IpNet>) -> Self {
        let fields = (Field::Destination4, Field::Destination6);
        self.network(net.into(), fields, Comparison::Is)
    }

    /// Destination address outside this network, of the same IP version.
    #[must_use]
    pub fn destination_not(self, net: impl Into<IpNet>) -> Self {
        let fields = (Field::Destination4, Field::Destination6);
        self.network(net.into(), fields, Comparison::IsNot)
    }

    /// Source port; after [`Rule::tcp`] or [`Rule::udp`].
    #[must_use]
    pub fn source_port(self, port: u16) -> Self {
        let operand = Operand::Field(Field::SourcePort);
        self.compare(operand, Comparison::Is, port.to_be_bytes())
    }

    /// Destination port; after [`Rule::tcp`] or [`Rule::udp`].
    #[must_use]
    pub fn destination_port(self, port: u16) -> Self {
        let operand = Operand::Field(Field::DestinationPort);
        self.compare(operand, Comparison::Is, port.to_be_bytes())
    }

    /// Any other destination port; after [`Rule::tcp`] or [`Rule::udp`].
    #[must_use]
    pub fn destination_port_not(self, port: u16) -> Self {
        let operand = Operand::Field(Field::DestinationPort);
        self.compare(operand, Comparison::IsNot, port.to_be_bytes())
    }

    /// Packet mark under a mask.
    #[must_use]
    pub fn mark(self, value: u32, mask: u32) -> Self {
        self.masked(Operand::Field(Field::Mark), Comparison::Is, value, mask)
    }

    /// Any other packet mark under a mask.
    #[must_use]
    pub fn mark_not(self, value: u32, mask: u32) -> Self {
        self.masked(Operand::Field(Field::Mark), Comparison::IsNot, value, mask)
    }

    /// Came in by this interface.
    #[must_use]
    pub fn interface_in(self, name: &str) -> Self {
        self.interface(Field::InterfaceIn, Comparison::Is, name)
    }

    /// Came in by another interface.
    #[must_use]
    pub fn interface_in_not(self, name: &str) -> Self {
        self.interface(Field::InterfaceIn, Comparison::IsNot, name)
    }

    /// Leaves by this interface.
    #[must_use]
    pub fn interface_out(self, name: &str) -> Self {
        self.interface(Field::InterfaceOut, Comparison::Is, name)
    }

    /// Leaves by another interface.
    #[must_use]
    pub fn interface_out_not(self, name: &str) -> Self {
        self.interface(Field::InterfaceOut, Comparison::IsNot, name)
    }

    fn interface(self, field: Field, comparison: Comparison, name: &str) -> Self {
        let value = crate::field::interface_bytes(name);
        self.compare(Operand::Field(field), comparison, value)
    }

    /// Belongs to a socket of this network namespace: made here, not forwarded.
    #[must_use]
    pub fn from_local_socket(self) -> Self {
        self.with(Statement::HasSocket)
    }

    /// Belongs to a local socket of this user.
    #[must_use]
    pub fn socket_uid(self, uid: u32) -> Self {
        self.compare(Operand::SocketUid, Comparison::Is, uid.to_ne_bytes())
    }

    /// Belongs to a local socket of another user.
    #[must_use]
    pub fn socket_uid_not(self, uid: u32) -> Self {
        self.compare(Operand::SocketUid, Comparison::IsNot, uid.to_ne_bytes())
    }

    /// Mark of the tracked connection under a mask.
    #[must_use]
    pub fn ct_mark(self, value: u32, mask: u32) -> Self {
        self.masked(Operand::CtMark, Comparison::Is, value, mask)
    }

    /// Status bits of the tracked connection (IPS_*) under a mask.
    #[must_use]
    pub fn ct_status(self, value: u32, mask: u32) -> Self {
        self.masked(Operand::CtStatus, Comparison::Is, value, mask)
    }

    /// A socket would take the packet, and it is transparent (also where it is only
    /// a half-open or a dying connection). Prerouting and input hooks.
    #[must_use]
    pub fn socket_transparent(self) -> Self {
        self.compare(Operand::SocketTransparent, Comparison::Is, [1])
    }

    /// A socket would take the packet, and it is bound to the unspecified address:
    /// a listener. Prerouting and input hooks.
    #[must_use]
    pub fn socket_wildcard(self) -> Self {
        self.compare(Operand::SocketWildcard, Comparison::Is, [1])
    }

    /// A socket would take the packet, and it has this mark. Prerouting and input hooks.
    #[must_use]
    pub fn socket_mark(self, value: u32, mask: u32) -> Self {
        self.masked(Operand::SocketMark, Comparison::Is, value, mask)
    }

    /// The fields, side by side, are an element of the named set.
    #[must_use]
    pub fn in_set(self, key: &[Field], set: &str) -> Self {
        self.with(Statement::InSet {
            key: key.to_vec(),
            set: set.to_owned(),
            comparison: Comparison::Is,
        })
    }

    /// The fields, side by side, are no element of the named set.
    #[must_use]
    pub fn not_in_set(self, key: &[Field], set: &str) -> Self {
        self.with(Statement::InSet {
            key: key.to_vec(),
            set: set.to_owned(),
            comparison: Comparison::IsNot,
        })
    }

    /// The verdict that the named map has for the fields; none: the next rule.
    #[must_use]
    pub fn verdict_map(self, key: &[Field], map: &str) -> Self {
        self.with(Statement::VerdictMap {
            key: key.to_vec(),
            map: map.to_owned(),
        })
    }

    /// Sets the bits of the packet's mark that the mask names.
    #[must_use]
    pub fn set_mark(self, value: u32, mask: u32) -> Self {
        self.with(Statement::SetMark { value, mask })
    }

    /// Sets the mark of the tracked connection.
    #[must_use]
    pub fn set_ct_mark(self, value: u32) -> Self {
        self.with(Statement::SetCtMark(value))
    }

    /// Hands the packet to the transparent listener at this address, unchanged.
    /// Without such a listener the next rule is looked at. Prerouting only; after
    /// [`Rule::tcp`] or [`Rule::udp`].
    #[must_use]
    pub fn tproxy(self, listener: SocketAddr) -> Self {
        self.with(Statement::Tproxy {
            version: Some(IpVersion::of(listener.ip())),
            address: Some(listener.ip()),
            port: listener.port(),
        })
    }

    /// As [`Rule::tproxy`], to a listener of either family at the address of the
    /// interface the packet came from, or of the unspecified one.
    #[must_use]
    pub fn tproxy_port(self, port: u16) -> Self {
        self.with(Statement::Tproxy {
            version: None,
            address: None,
            port,
        })
    }

    /// Sends the connection to a port of this machine (nat chains).
    #[must_use]
    pub fn redirect(self, port: u16) -> Self {
        self.with(Statement::Redirect(port))
    }

    /// Sends the connection elsewhere (nat chains); after [`Rule::tcp`] or
    /// [`Rule::udp`] where a port is given.
    #[must_use]
    pub fn dnat(self, address: IpAddr, port: Option<u16>) -> Self {
        self.with(Statement::Nat {
            kind: Nat::Destination,
            address,
            port,
        })
    }

    /// Sends the connection to the place that the named map has for the fields;
    /// none: the next rule.
    #[must_use]
    pub fn dnat_map(self, version: IpVersion, key: &[Field], map: &str, ports: MapPorts) -> Self {
        self.with(Statement::DnatMap {
            version,
            key: key.to_vec(),
            map: map.to_owned(),
            ports,
        })
    }

    /// Gives the connection another source address (nat chains).
    #[must_use]
    pub fn snat(self, address: IpAddr) -> Self {
        self.with(Statement::Nat {
            kind: Nat::Source,
            address,
            port: None,
        })
    }

    /// Gives the connection the address of the interface it leaves by (nat chains).
    #[must_use]
    pub fn masquerade(self) -> Self {
        self.with(Statement::Masquerade)
    }

    /// Refuses the packet so that the sender knows.
    #[must_use]
    pub fn reject(self, how: Reject) -> Self {
        self.with(Statement::Reject(how))
    }

    /// Counts packets and bytes.
    #[must_use]
    pub fn counter(self) -> Self {
        self.with(Statement::Counter)
    }

    /// Keeps the packet out of connection tracking (priority below -200 only).
    #[must_use]
    pub fn no_track(self) -> Self {
        self.with(Statement::NoTrack)
    }

    /// Ends with a verdict.
    #[must_use]
    pub fn verdict(self, verdict: Verdict) -> Self {
        self.with(Statement::Verdict(verdict))
    }

    /// Lets the packet pass this table's chain at this hook.
    #[must_use]
    pub fn accept(self) -> Self {
        self.verdict(Verdict::Accept)
    }

    /// Drops the packet.
    #[must_use]
    pub fn drop(self) -> Self {
        self.verdict(Verdict::Drop)
    }

    /// Goes back to the calling chain.
    #[must_use]
    pub fn return_to_caller(self) -> Self {
        self.verdict(Verdict::Return)
    }

    /// Goes through another chain and comes back.
    #[must_use]
    pub fn jump(self, chain: &str) -> Self {
        self.verdict(Verdict::Jump(chain.to_owned()))
    }

    /// Goes on in another chain.
    #[must_use]
    pub fn goto(self, chain: &str) -> Self {
        self.verdict(Verdict::Goto(chain.to_owned()))
    }
}
