//! Statements → nf_tables expressions.
//!
//! Every expression goes out in the crate's generic form: the typed forms cover six
//! of the fifteen kinds used here, and one way to write them all is easier to read.

use std::net::IpAddr;

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::nftables::{ExpressionAttribute, Expressions, ListAttribute};

use crate::field::{Field, IpVersion};
use crate::nla::{nested, number, raw, text};
use crate::rule::{Comparison, MapPorts, Nat, Operand, Reject, Rule, Statement, Verdict};
use crate::table::Family;

pub(crate) type Expression = ListAttribute<ExpressionAttribute>;

const VERDICT_REGISTER: u32 = 0;
/// The first 16 bytes, under the name that most expressions use.
const REGISTER: u32 = 1;
/// The next 16 bytes.
const SECOND_REGISTER: u32 = 2;
/// The first of the 32-bit registers; it shares its bytes with [`REGISTER`].
const SMALL_REGISTERS: u32 = 8;

const META_MARK: u32 = 3;
const META_INTERFACE_IN: u32 = 6;
const META_INTERFACE_OUT: u32 = 7;
const META_SOCKET_UID: u32 = 10;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

const CT_STATUS: u32 = 2;
const CT_MARK: u32 = 3;

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const AT_LEAST: u32 = 5;

/// The expressions of a rule in a table of this family.
pub(crate) fn rule(rule: &Rule, family: Family) -> Vec<Expression> {
    let mut encoder = Encoder {
        family,
        version: None,
        out: Vec::new(),
    };
    for statement in &rule.statements {
        encoder.statement(statement);
    }
    encoder.out
}

/// The verdict's number, and the chain it leads to.
pub(crate) fn verdict_code(verdict: &Verdict) -> (i32, Option<&str>) {
    // NF_DROP and NF_ACCEPT, then the negative codes of nf_tables.
    match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Return => (-5, None),
    }
}

/// The verdict as data of an immediate or of a map's element.
pub(crate) fn verdict_data(verdict: &Verdict) -> DefaultNla {
    let (code, chain) = verdict_code(verdict);
    let mut attributes = vec![number(1, code.cast_unsigned())];
    attributes.extend(chain.map(|chain| text(2, chain)));
    nested(2, &attributes)
}

/// Bytes as data.
pub(crate) fn value_data(bytes: &[u8]) -> DefaultNla {
    raw(1, bytes)
}

struct Encoder {
    family: Family,
    /// The IP version that the rule is already narrowed to.
    version: Option<IpVersion>,
    out: Vec<Expression>,
}

impl Encoder {
    fn push(&mut self, name: &str, attributes: Vec<DefaultNla>) {
        self.out.push(
            Expressions::Other {
                expression_type: name.to_owned(),
                attributes,
            }
            .into(),
        );
    }

    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Compare {
                operand,
                mask,
                comparison,
                value,
            } => self.compare(*operand, mask.as_deref(), *comparison, value),
            Statement::HasSocket => {
                self.meta(META_SOCKET_UID, REGISTER);
                self.cmp(AT_LEAST, &0_u32.to_ne_bytes());
            }
            Statement::InSet {
                key,
                set,
                comparison,
            } => {
                let inverted = u32::from(*comparison == Comparison::IsNot);
                self.lookup(key, set, None, inverted);
            }
            Statement::VerdictMap { key, map } => self.lookup(key, map, Some(VERDICT_REGISTER), 0),
            Statement::SetMark { value, mask } => self.set_mark(*value, *mask),
            Statement::SetCtMark(value) => {
                self.immediate(REGISTER, &value.to_ne_bytes());
                self.push("ct", vec![number(2, CT_MARK), number(4, REGISTER)]);
            }
            Statement::Tproxy {
                version,
                address,
                port,
            } => self.tproxy(*version, *address, *port),
            Statement::Redirect(port) => {
                self.immediate(REGISTER, &port.to_be_bytes());
                self.push("redir", vec![number(1, REGISTER)]);
            }
            Statement::Nat {
                kind,
                address,
                port,
            } => self.nat(*kind, *address, *port),
            Statement::DnatMap {
                version,
                key,
                map,
                ports,
            } => self.dnat_map(*version, key, map, *ports),
            Statement::Masquerade => self.push("masq", Vec::new()),
            Statement::Reject(how) => self.reject(*how),
            Statement::Counter => self.push("counter", Vec::new()),
            Statement::NoTrack => self.push("notrack", Vec::new()),
            Statement::Verdict(verdict) => {
                let data = verdict_data(verdict);
                let attributes = vec![number(1, VERDICT_REGISTER), nested(2, &[data])];
                self.push("immediate", attributes);
            }
        }
    }

    fn compare(
        &mut self,
        operand: Operand,
        mask: Option<&[u8]>,
        comparison: Comparison,
        value: &[u8],
    ) {
        match operand {
            Operand::Field(field) => {
                self.need(field);
                self.load(field, REGISTER);
            }
            Operand::NfProto => {
                self.meta(META_NFPROTO, REGISTER);
                if comparison == Comparison::Is {
                    self.version = match value {
                        [2] => Some(IpVersion::V4),
                        _ => Some(IpVersion::V6),
                    };
                }
            }
            Operand::SocketUid => self.meta(META_SOCKET_UID, REGISTER),
            Operand::TcpFlags => self.payload(TRANSPORT_HEADER, 13, 1, REGISTER),
            Operand::CtMark => self.push("ct", vec![number(2, CT_MARK), number(1, REGISTER)]),
            Operand::CtStatus => self.push("ct", vec![number(2, CT_STATUS), number(1, REGISTER)]),
            Operand::SocketTransparent => self.socket(0),
            Operand::SocketMark => self.socket(1),
            Operand::SocketWildcard => self.socket(2),
        }
        if let Some(mask) = mask {
            self.bitwise(mask, &vec![0; mask.len()]);
        }
        let operator = match comparison {
            Comparison::Is => EQUAL,
            Comparison::IsNot => NOT_EQUAL,
        };
        self.cmp(operator, value);
    }

    /// Narrows the rule to the IP version that the field presupposes: in a table of
    /// both families the bytes at that offset mean something else in the other.
    fn need(&mut self, field: Field) {
        if let Some(version) = field.version() {
            self.need_version(version);
        }
    }

    fn need_version(&mut self, version: IpVersion) {
        if self.family == Family::Inet && self.version != Some(version) {
            self.meta(META_NFPROTO, REGISTER);
            self.cmp(EQUAL, &[version.nfproto()]);
            self.version = Some(version);
        }
    }

    fn load(&mut self, field: Field, register: u32) {
        match field {
            Field::Source4 => self.payload(NETWORK_HEADER, 12, 4, register),
            Field::Destination4 => self.payload(NETWORK_HEADER, 16, 4, register),
            Field::Source6 => self.payload(NETWORK_HEADER, 8, 16, register),
            Field::Destination6 => self.payload(NETWORK_HEADER, 24, 16, register),
            Field::SourcePort => self.payload(TRANSPORT_HEADER, 0, 2, register),
            Field::DestinationPort => self.payload(TRANSPORT_HEADER, 2, 2, register),
            Field::Protocol => self.meta(META_L4PROTO, register),
            Field::Mark => self.meta(META_MARK, register),
            Field::InterfaceIn => self.meta(META_INTERFACE_IN, register),
            Field::InterfaceOut => self.meta(META_INTERFACE_OUT, register),
            Field::Random(below) => self.numgen(below, 1, register),
            Field::RoundRobin(below) => self.numgen(below, 0, register),
        }
    }

    fn numgen(&mut self, below: u32, kind: u32, register: u32) {
        // Attributes: register, modulus, type (0 incremental, 1 random), offset.
        self.push(
            "numgen",
            vec![
                number(1, register),
                number(2, below),
                number(3, kind),
                number(4, 0),
            ],
        );
    }

    fn meta(&mut self, key: u32, register: u32) {
        self.push("meta", vec![number(2, key), number(1, register)]);
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32, register: u32) {
        self.push(
            "payload",
            vec![
                number(1, register),
                number(2, base),
                number(3, offset),
                number(4, length),
            ],
        );
    }

    fn socket(&mut self, key: u32) {
        self.push("socket", vec![number(1, key), number(2, REGISTER)]);
    }

    fn cmp(&mut self, operator: u32, value: &[u8]) {
        self.push(
            "cmp",
            vec![
                number(1, REGISTER),
                number(2, operator),
                nested(3, &[value_data(value)]),
            ],
        );
    }

    fn bitwise(&mut self, mask: &[u8], xor: &[u8]) {
        let length = u32::try_from(mask.len()).expect("invariant: masks are at most 16 bytes");
        self.push(
            "bitwise",
            vec![
                number(1, REGISTER),
                number(2, REGISTER),
                number(3, length),
                nested(4, &[value_data(mask)]),
                nested(5, &[value_data(xor)]),
            ],
        );
    }

    fn immediate(&mut self, register: u32, value: &[u8]) {
        self.push(
            "immediate",
            vec![number(1, register), nested(2, &[value_data(value)])],
        );
    }

    /// Loads the fields side by side and looks them up.
    fn lookup(&mut self, key: &[Field], set: &str, data: Option<u32>, flags: u32) {
        for field in key {
            self.need(*field);
        }
        let mut register = SMALL_REGISTERS;
        for field in key {
            self.load(*field, small(register));
            let registers = field.key_type().padded() / 4;
            register += u32::try_from(registers).expect("invariant: a field is at most 16 bytes");
        }
        let mut attributes = vec![text(1, set), number(2, REGISTER)];
        if let Some(data) = data {
            attributes.push(number(3, data));
        }
        if flags != 0 {
            attributes.push(number(5, flags));
        }
        self.push("lookup", attributes);
    }

    fn set_mark(&mut self, value: u32, mask: u32) {
        if mask == u32::MAX {
            self.immediate(REGISTER, &value.to_ne_bytes());
        } else {
            self.meta(META_MARK, REGISTER);
            self.bitwise(&(!mask).to_ne_bytes(), &(value & mask).to_ne_bytes());
        }
        self.push("meta", vec![number(2, META_MARK), number(3, REGISTER)]);
    }

    fn tproxy(&mut self, version: Option<IpVersion>, address: Option<IpAddr>, port: u16) {
        if let Some(version) = version {
            self.need_version(version);
        }
        // In a table of one family the kernel wants that family named.
        let family = match (version, self.family) {
            (Some(version), _) => u32::from(version.nfproto()),
            (None, Family::Inet) => 0,
            (None, family) => u32::from(family.number()),
        };
        let mut attributes = vec![number(1, family)];
        if let Some(address) = address {
            self.immediate(REGISTER, &address_bytes(address));
            attributes.push(number(2, REGISTER));
        }
        self.immediate(SECOND_REGISTER, &port.to_be_bytes());
        attributes.push(number(3, SECOND_REGISTER));
        self.push("tproxy", attributes);
    }

    fn nat(&mut self, kind: Nat, address: IpAddr, port: Option<u16>) {
        let version = IpVersion::of(address);
        self.need_version(version);
        self.immediate(REGISTER, &address_bytes(address));
        let kind = match kind {
            Nat::Source => 0,
            Nat::Destination => 1,
        };
        let mut attributes = vec![
            number(1, kind),
            number(2, u32::from(version.nfproto())),
            number(3, REGISTER),
        ];
        if let Some(port) = port {
            self.immediate(SECOND_REGISTER, &port.to_be_bytes());
            attributes.push(number(5, SECOND_REGISTER));
        }
        self.push("nat", attributes);
    }

    fn dnat_map(&mut self, version: IpVersion, key: &[Field], map: &str, ports: MapPorts) {
        self.need_version(version);
        self.lookup(key, map, Some(REGISTER), 0);
        let mut attributes = vec![
            number(1, 1),
            number(2, u32::from(version.nfproto())),
            number(3, REGISTER),
        ];
        if ports == MapPorts::FromMap {
            // The port stands in the data behind the address.
            let behind = match version {
                IpVersion::V4 => SMALL_REGISTERS + 1,
                IpVersion::V6 => SECOND_REGISTER,
            };
            attributes.push(number(5, behind));
        }
        self.push("nat", attributes);
    }

    fn reject(&mut self, how: Reject) {
        // Types: 1 TCP reset, 2 ICMP of the packet's family, whose code 1 is "port".
        let (kind, code) = match how {
            Reject::TcpReset => (1, 0),
            Reject::PortUnreachable => (2, 1),
        };
        self.push("reject", vec![number(1, kind), raw(2, [code])]);
    }
}

/// Register 1 by its usual name, so that what the kernel reads back looks the same.
fn small(register: u32) -> u32 {
    if register == SMALL_REGISTERS {
        REGISTER
    } else {
        register
    }
}

fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
