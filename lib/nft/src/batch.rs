//! One atomic batch: all of it takes effect, or nothing does.

use std::io;

use netlink_packet_core::{NetlinkMessage, NetlinkSerializable};
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Hook as HookAttribute, HookNumber, ListAttribute,
    NfTablesMessage, RuleAttribute, RuleMessage, SetAttribute, SetElementAttribute, SetElementList,
    SetElementMessage, SetFlags, SetMessage, TableAttribute, TableMessage,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};
use nix::libc;

use crate::expr;
use crate::field::{KeyType, concatenate, length};
use crate::fingerprint;
use crate::nla::nested;
use crate::table::{Chain, Element, ElementData, MapData, Set, Table, TableId};
use crate::transport::{Answer, Transport, TransportError};

/// NFT_DATA_VERDICT as the type of a map's data.
pub(crate) const VERDICT_TYPE: u32 = 0xffff_ff00;
/// Elements in one message: an attribute's length is 16 bits, and an element with
/// a comment takes at most about 200 bytes.
const ELEMENTS_PER_MESSAGE: usize = 256;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// A batch was not taken; nothing of it is in effect.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The socket failed.
    #[error("nf_tables cannot be reached")]
    Transport(#[from] TransportError),
    /// An element does not fit its set.
    #[error("an element of set {set} does not have the types of the set")]
    ElementType {
        /// Name of the set.
        set: String,
    },
    /// The kernel refused one of the objects.
    #[error("the kernel refused {object}{}: {remedy}", detail.as_ref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Refused {
        /// Table, chain, set or rule.
        object: String,
        /// What the kernel said in words, if anything.
        detail: Option<String>,
        /// What to do about it.
        remedy: &'static str,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// The kernel did not answer.
    #[error("the kernel gave no answer to an nf_tables batch")]
    NoAnswer,
}

impl ApplyError {
    /// The errno of a refusal.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// Changes that take effect together.
#[derive(Debug, Default)]
pub struct Batch {
    messages: Vec<Message>,
    sets: u32,
    fault: Option<String>,
}

#[derive(Debug)]
struct Message {
    object: String,
    family: u8,
    flags: u16,
    inner: NfTablesMessage,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// True when there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn push(&mut self, table: &TableId, object: String, flags: u16, inner: NfTablesMessage) {
        self.messages.push(Message {
            object,
            family: table.family.number(),
            flags,
            inner,
        });
    }

    /// Puts the table in place of whatever stands under its name.
    pub fn replace_table(&mut self, table: &Table) {
        let id = table.id();
        self.delete_table(&id);
        self.add_table(&id);
        for set in &table.sets {
            self.add_set(&id, set);
        }
        for chain in &table.chains {
            self.add_chain(&id, chain);
        }
        // Elements may name chains, and rules may name both.
        for set in &table.sets {
            self.elements(&id, set, &set.elements, ElementVerb::Add);
        }
        for chain in &table.chains {
            self.add_rules(&id, chain);
        }
    }

    /// Removes a table; one that is not there is fine.
    pub fn delete_table(&mut self, table: &TableId) {
        // Adding it first makes the deletion succeed in every case.
        self.add_table(table);
        let inner = NfTablesMessage::DeleteTable(TableMessage {
            attributes: vec![TableAttribute::Name(table.name.clone())],
        });
        self.push(table, table.to_string(), 0, inner);
    }

    fn add_table(&mut self, table: &TableId) {
        let inner = NfTablesMessage::NewTable(TableMessage {
            attributes: vec![TableAttribute::Name(table.name.clone())],
        });
        self.push(table, table.to_string(), CREATE, inner);
    }

    fn add_set(&mut self, table: &TableId, set: &Set) {
        self.sets += 1;
        let mut flags = SetFlags::empty();
        let mut attributes = vec![
            SetAttribute::Table(table.name.clone()),
            SetAttribute::Name(set.name.clone()),
            SetAttribute::KeyType(datatype(&set.key)),
            SetAttribute::KeyLen(size(length(&set.key))),
            SetAttribute::Id(self.sets),
        ];
        let mut data_host_order = None;
        match &set.data {
            None => {}
            Some(MapData::Verdict) => {
                flags |= SetFlags::Map;
                attributes.push(SetAttribute::DataType(VERDICT_TYPE));
                // The size of a verdict register.
                attributes.push(SetAttribute::DataLen(16));
            }
            Some(MapData::Values(types)) => {
                flags |= SetFlags::Map;
                attributes.push(SetAttribute::DataType(datatype(types)));
                attributes.push(SetAttribute::DataLen(size(length(types))));
                data_host_order = Some(host_order(types));
            }
        }
        attributes.push(SetAttribute::Flags(flags));
        attributes.push(SetAttribute::UserData(fingerprint::set_userdata(
            host_order(&set.key),
            data_host_order,
        )));
        let object = format!("{table} set {}", set.name);
        let inner = NfTablesMessage::NewSet(SetMessage { attributes });
        self.push(table, object, CREATE, inner);
    }

    fn add_chain(&mut self, table: &TableId, chain: &Chain) {
        let mut attributes = vec![
            ChainAttribute::Table(table.name.clone()),
            ChainAttribute::Name(chain.name.clone()),
        ];
        if let Some(base) = chain.base {
            attributes.extend([
                ChainAttribute::Hook(vec![
                    HookAttribute::Number(HookNumber::Other(base.hook.number())),
                    HookAttribute::Priority(base.priority.cast_unsigned()),
                ]),
                ChainAttribute::Policy(base.policy.number()),
                ChainAttribute::Type(base.kind.name().to_owned()),
            ]);
        }
        let object = format!("{table} chain {}", chain.name);
        let inner = NfTablesMessage::NewChain(ChainMessage { attributes });
        self.push(table, object, CREATE, inner);
    }

    fn add_rules(&mut self, table: &TableId, chain: &Chain) {
        for (index, rule) in chain.rules.iter().enumerate() {
            let expressions = expr::rule(rule, table.family);
            let userdata = fingerprint::rule_userdata(rule, &expressions);
            let words = rule.comment.as_deref().unwrap_or("no comment");
            let object = format!("{table} chain {} rule {} ({words})", chain.name, index + 1);
            let inner = NfTablesMessage::NewRule(RuleMessage {
                attributes: vec![
                    RuleAttribute::Table(table.name.clone()),
                    RuleAttribute::Chain(chain.name.clone()),
                    RuleAttribute::Expressions(expressions),
                    RuleAttribute::UserData(userdata),
                ],
            });
            self.push(table, object, CREATE | APPEND, inner);
        }
    }

    /// Adds a set or map with its elements to a table that is there.
    pub fn add_named_set(&mut self, table: &TableId, set: &Set) {
        self.add_set(table, set);
        self.add_elements(table, set, &set.elements);
    }

    /// Removes a set or map that no rule uses.
    pub fn delete_named_set(&mut self, table: &TableId, set: &str) {
        let inner = NfTablesMessage::DeleteSet(SetMessage {
            attributes: vec![
                SetAttribute::Table(table.name.clone()),
                SetAttribute::Name(set.to_owned()),
            ],
        });
        self.push(table, format!("{table} set {set}"), 0, inner);
    }

    /// Adds elements to a set that is there. An element that is there already, with
    /// the same data, is fine. Only the set's name and types are used.
    pub fn add_elements(&mut self, table: &TableId, set: &Set, elements: &[Element]) {
        self.elements(table, set, elements, ElementVerb::Add);
    }

    /// Removes elements from a set; each must be there.
    pub fn delete_elements(&mut self, table: &TableId, set: &Set, elements: &[Element]) {
        self.elements(table, set, elements, ElementVerb::Delete);
    }

    /// Removes elements by the bytes of their keys.
    pub(crate) fn delete_raw(&mut self, table: &TableId, set: &str, keys: &[Vec<u8>]) {
        for chunk in keys.chunks(ELEMENTS_PER_MESSAGE) {
            let list = chunk.iter().map(|key| encode_key(key)).collect();
            let inner = NfTablesMessage::DeleteSetElement(SetElementMessage {
                attributes: vec![
                    SetElementList::Table(table.name.clone()),
                    SetElementList::Set(set.to_owned()),
                    SetElementList::Elements(list),
                ],
            });
            self.push(table, format!("elements of {table} set {set}"), 0, inner);
        }
    }

    /// Removes all elements of a set.
    pub fn flush_set(&mut self, table: &TableId, set: &str) {
        let inner = NfTablesMessage::DeleteSetElement(SetElementMessage {
            attributes: vec![
                SetElementList::Table(table.name.clone()),
                SetElementList::Set(set.to_owned()),
            ],
        });
        self.push(table, format!("{table} set {set}"), 0, inner);
    }

    fn elements(&mut self, table: &TableId, set: &Set, elements: &[Element], verb: ElementVerb) {
        if elements.iter().any(|element| !fits(set, element)) {
            self.fault.get_or_insert_with(|| set.name.clone());
            return;
        }
        for chunk in elements.chunks(ELEMENTS_PER_MESSAGE) {
            let list = chunk.iter().map(|element| encode(element, verb)).collect();
            let message = SetElementMessage {
                attributes: vec![
                    SetElementList::Table(table.name.clone()),
                    SetElementList::Set(set.name.clone()),
                    SetElementList::Elements(list),
                ],
            };
            let (flags, inner) = match verb {
                ElementVerb::Add => (CREATE, NfTablesMessage::NewSetElement(message)),
                ElementVerb::Delete => (0, NfTablesMessage::DeleteSetElement(message)),
            };
            let object = format!("elements of {table} set {}", set.name);
            self.push(table, object, flags, inner);
        }
    }

    /// Makes all changes at once.
    ///
    /// # Errors
    /// When an object is refused; nothing is changed then.
    pub fn commit(self) -> Result<(), ApplyError> {
        self.send(Ending::Commit)
    }

    /// Lets the kernel judge all changes and makes none of them.
    ///
    /// # Errors
    /// What [`Batch::commit`] would give.
    pub fn check(self) -> Result<(), ApplyError> {
        self.send(Ending::Abort)
    }

    fn send(self, ending: Ending) -> Result<(), ApplyError> {
        if let Some(set) = self.fault {
            return Err(ApplyError::ElementType { set });
        }
        if self.messages.is_empty() {
            return Ok(());
        }
        let (bytes, objects) = serialize(self.messages, ending);
        let answers = Transport::open()?.ask(&bytes)?;
        let last = objects.len();
        let mut acknowledged = false;
        for answer in answers {
            let Answer::Status {
                sequence,
                errno,
                detail,
            } = answer
            else {
                continue;
            };
            let index = usize::try_from(sequence).unwrap_or(usize::MAX);
            if errno != 0 {
                let object = match index.checked_sub(1).and_then(|index| objects.get(index)) {
                    Some(object) => object.clone(),
                    None => "the batch as a whole".to_owned(),
                };
                return Err(ApplyError::Refused {
                    object,
                    detail,
                    remedy: remedy(errno),
                    source: io::Error::from_raw_os_error(errno),
                });
            }
            acknowledged |= index == last;
        }
        if acknowledged {
            Ok(())
        } else {
            Err(ApplyError::NoAnswer)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementVerb {
    Add,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Commit,
    /// A batch without its end is judged and then dropped.
    Abort,
}

/// Message n of the batch has the sequence number n, the first one 1. Failures are
/// reported for each message without being asked for; only the last one is
/// acknowledged, so that a large batch cannot overrun the receive buffer.
fn serialize(messages: Vec<Message>, ending: Ending) -> (Vec<u8>, Vec<String>) {
    let mut bytes = Vec::new();
    let mut objects = Vec::with_capacity(messages.len());
    control(&mut bytes, ControlMessage::BatchBegin, 0);
    let last = messages.len();
    let mut sequence = 0;
    for message in messages {
        objects.push(message.object);
        sequence += 1;
        let header = NetfilterHeader::new(NetfilterProtoFamily::from(message.family), 0, 0);
        let mut flags = REQUEST | message.flags;
        if objects.len() == last {
            flags |= ACK;
        }
        let message = NetfilterMessage::new(header, message.inner);
        append(&mut bytes, message, flags, sequence);
    }
    if ending == Ending::Commit {
        control(&mut bytes, ControlMessage::BatchEnd, sequence + 1);
    }
    (bytes, objects)
}

fn control(bytes: &mut Vec<u8>, message: ControlMessage, sequence: u32) {
    // The subsystem that the batch is for: nf_tables.
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 10);
    let message = NetfilterMessage::new(header, message);
    append(bytes, message, REQUEST, sequence);
}

pub(crate) fn append<M: NetlinkSerializable>(
    bytes: &mut Vec<u8>,
    message: M,
    flags: u16,
    sequence: u32,
) where
    NetlinkMessage<M>: From<M>,
{
    let mut message = NetlinkMessage::from(message);
    message.header.flags = flags;
    message.header.sequence_number = sequence;
    message.finalize();
    let start = bytes.len();
    bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
    message.serialize(&mut bytes[start..]);
}

fn size(length: usize) -> u32 {
    u32::try_from(length).expect("invariant: keys are at most a few registers long")
}

fn datatype(types: &[KeyType]) -> u32 {
    types.iter().fold(0, |all, part| all << 6 | part.datatype())
}

fn host_order(types: &[KeyType]) -> bool {
    matches!(types, [one] if one.host_order())
}

/// True when the element has the types of the set.
fn fits(set: &Set, element: &Element) -> bool {
    let key: Vec<KeyType> = element.key.iter().map(|part| part.key_type()).collect();
    let data = match (&set.data, &element.data) {
        (None, None) | (Some(MapData::Verdict), Some(ElementData::Verdict(_))) => true,
        (Some(MapData::Values(types)), Some(ElementData::Values(values))) => {
            let found: Vec<KeyType> = values.iter().map(|part| part.key_type()).collect();
            *types == found
        }
        _ => false,
    };
    key == set.key && data
}

fn encode(element: &Element, verb: ElementVerb) -> ListAttribute<SetElementAttribute> {
    let key = nested(1, &[expr::value_data(&concatenate(&element.key))]);
    let mut attributes = vec![SetElementAttribute::Other(key)];
    if verb == ElementVerb::Add {
        if let Some(data) = &element.data {
            let data = match data {
                ElementData::Values(values) => expr::value_data(&concatenate(values)),
                ElementData::Verdict(verdict) => expr::verdict_data(verdict),
            };
            attributes.push(SetElementAttribute::Other(nested(2, &[data])));
        }
        if let Some(comment) = &element.comment {
            let bytes = fingerprint::comment_userdata(comment);
            attributes.push(SetElementAttribute::UserData(bytes));
        }
    }
    ListAttribute::Element(attributes)
}

fn encode_key(key: &[u8]) -> ListAttribute<SetElementAttribute> {
    let key = nested(1, &[expr::value_data(key)]);
    ListAttribute::Element(vec![SetElementAttribute::Other(key)])
}

fn remedy(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "run with CAP_NET_ADMIN in this network namespace",
        libc::ENOENT => {
            "something it names does not exist: a chain, a set, or a kernel module for an expression \
             (nf_tables, nft_tproxy, nft_socket, nft_redir, nft_chain_nat, nft_numgen)"
        }
        libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT => {
            "the kernel is built without it (see CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, CONFIG_NFT_*)"
        }
        libc::EEXIST => "it exists already with other properties",
        libc::EBUSY => "it is still in use",
        libc::EINVAL | libc::ERANGE => "the kernel takes it for invalid",
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS => "the kernel is out of memory",
        libc::EMSGSIZE => "it is too large for one message",
        _ => "see the errno",
    }
}
