//! What stands in the kernel, and whether it is what should.

use std::collections::HashMap;
use std::io;

use netlink_packet_netfilter::nftables::{
    ChainMessage, NfTablesMessage, RuleAttribute, RuleMessage, SetAttribute, SetElementList,
    SetElementMessage, SetMessage, TableAttribute, TableMessage,
};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};
use nix::libc;

use crate::batch::{ApplyError, Batch, VERDICT_TYPE, append};
use crate::expr;
use crate::field::{concatenate, length};
use crate::fingerprint;
use crate::table::{Chain, Element, ElementData, MapData, Set, Table, TableId};
use crate::transport::{Answer, Transport, TransportError, attribute, attributes};

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
/// A dump that runs into a change is asked for again this often.
const TRIES_MAX: usize = 5;

/// The rules could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The socket failed.
    #[error("nf_tables cannot be reached")]
    Transport(#[from] TransportError),
    /// The kernel refused to list.
    #[error("the kernel refused to list {object}")]
    Refused {
        /// What was asked for.
        object: String,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// Others changed rules all the time.
    #[error("{object} changed during each of {TRIES_MAX} readings")]
    Restless {
        /// What was asked for.
        object: String,
    },
}

/// How the kernel's table compares with the wanted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// There is none of that name.
    Absent,
    /// Nothing needs to be done.
    Same,
    /// Chains, rules and sets are as wanted; these sets hold other elements.
    OtherElements(Vec<SetDifference>),
    /// Something else differs: what, in words.
    Different(String),
}

/// Elements to add to and to remove from one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetDifference {
    /// Name of the set.
    pub set: String,
    /// Missing, or there with other data or another comment.
    pub add: Vec<Element>,
    remove: Vec<Vec<u8>>,
}

/// What [`ensure`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nothing: all was as wanted.
    Unchanged,
    /// Elements of sets were added or removed.
    Elements,
    /// The table was written anew, for this reason.
    Replaced(String),
}

/// The table could not be brought to the wanted state.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    /// Reading failed.
    #[error("cannot read the rules")]
    Read(#[from] ReadError),
    /// Writing failed.
    #[error("cannot write the rules")]
    Apply(#[from] ApplyError),
}

/// Writes the table in place of whatever stands under its name, atomically.
///
/// # Errors
/// When the kernel refuses an object; nothing is changed then.
pub fn replace(table: &Table) -> Result<(), ApplyError> {
    let mut batch = Batch::new();
    batch.replace_table(table);
    batch.commit()
}

/// Removes a table; one that is not there is fine.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(table: &TableId) -> Result<(), ApplyError> {
    let mut batch = Batch::new();
    batch.delete_table(table);
    batch.commit()
}

/// Brings the table to the wanted state with the smallest write that does it.
///
/// # Errors
/// When reading or writing fails; nothing is changed then.
pub fn ensure(table: &Table) -> Result<Change, EnsureError> {
    let why = match state(table)? {
        State::Same => return Ok(Change::Unchanged),
        State::OtherElements(differences) => {
            let mut batch = Batch::new();
            let id = table.id();
            for difference in &differences {
                let Some(set) = table.sets.iter().find(|set| set.name == difference.set) else {
                    continue;
                };
                batch.delete_raw(&id, &set.name, &difference.remove);
                batch.add_elements(&id, set, &difference.add);
            }
            batch.commit()?;
            return Ok(Change::Elements);
        }
        State::Absent => "it was not there".to_owned(),
        State::Different(why) => why,
    };
    replace(table)?;
    Ok(Change::Replaced(why))
}

/// True when a table of this name is there.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn exists(table: &TableId) -> Result<bool, ReadError> {
    let message = NfTablesMessage::GetTable(TableMessage {
        attributes: vec![TableAttribute::Name(table.name.clone())],
    });
    match query(table, message, REQUEST | ACK) {
        Ok(objects) => Ok(!objects.is_empty()),
        Err(ReadError::Refused { source, .. }) if is_absent(&source) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

/// Compares the kernel's table with the wanted one: chains, the rules in order, sets
/// and their elements.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn state(table: &Table) -> Result<State, ReadError> {
    let id = table.id();
    if !exists(&id)? {
        return Ok(State::Absent);
    }
    let first = chains_differ(table, &id)?;
    let second = first.map_or_else(|| rules_differ(table, &id), |why| Ok(Some(why)))?;
    let third = second.map_or_else(|| sets_differ(table, &id), |why| Ok(Some(why)))?;
    if let Some(why) = third {
        return Ok(State::Different(why));
    }
    let mut differences = Vec::new();
    for set in &table.sets {
        if let Some(difference) = elements_differ(set, &id)? {
            differences.push(difference);
        }
    }
    if differences.is_empty() {
        Ok(State::Same)
    } else {
        Ok(State::OtherElements(differences))
    }
}

/// What identifies a chain: name, then hook, priority, policy and type of a base chain.
type ChainFacts = (String, Option<(u32, i32, u32, String)>);

fn chains_differ(table: &Table, id: &TableId) -> Result<Option<String>, ReadError> {
    let message = NfTablesMessage::GetChain(ChainMessage {
        attributes: Vec::new(),
    });
    let mut found: Vec<ChainFacts> = query(id, message, REQUEST | DUMP)?
        .iter()
        .filter(|body| string(body, 1).as_deref() == Some(id.name.as_str()))
        .map(|body| chain_facts(body))
        .collect();
    let mut wanted: Vec<ChainFacts> = table.chains.iter().map(wanted_chain).collect();
    found.sort();
    wanted.sort();
    Ok((found != wanted).then(|| "its chains differ".to_owned()))
}

fn chain_facts(body: &[u8]) -> ChainFacts {
    let base = attribute(body, 4).map(|hook| {
        (
            number(&hook, 1).unwrap_or_default(),
            number(&hook, 2).unwrap_or_default().cast_signed(),
            number(body, 5).unwrap_or_default(),
            string(body, 7).unwrap_or_default(),
        )
    });
    (string(body, 3).unwrap_or_default(), base)
}

fn wanted_chain(chain: &Chain) -> ChainFacts {
    let base = chain.base.map(|base| {
        (
            base.hook.number(),
            base.priority,
            base.policy.number(),
            base.kind.name().to_owned(),
        )
    });
    (chain.name.clone(), base)
}

fn rules_differ(table: &Table, id: &TableId) -> Result<Option<String>, ReadError> {
    let message = NfTablesMessage::GetRule(RuleMessage {
        attributes: vec![RuleAttribute::Table(id.name.clone())],
    });
    let mut found: HashMap<String, Vec<Vec<u8>>> = HashMap::new();
    for body in query(id, message, REQUEST | DUMP)? {
        if string(&body, 1).as_deref() == Some(id.name.as_str()) {
            let chain = string(&body, 2).unwrap_or_default();
            let userdata = attribute(&body, 7).unwrap_or_default();
            found.entry(chain).or_default().push(userdata);
        }
    }
    for chain in &table.chains {
        let wanted: Vec<Vec<u8>> = chain
            .rules
            .iter()
            .map(|rule| fingerprint::rule_userdata(rule, &expr::rule(rule, id.family)))
            .collect();
        if found.remove(&chain.name).unwrap_or_default() != wanted {
            return Ok(Some(format!("the rules of chain {} differ", chain.name)));
        }
    }
    Ok(None)
}

fn sets_differ(table: &Table, id: &TableId) -> Result<Option<String>, ReadError> {
    let message = NfTablesMessage::GetSet(SetMessage {
        attributes: vec![SetAttribute::Table(id.name.clone())],
    });
    let mut found: Vec<(String, u32, u32)> = query(id, message, REQUEST | DUMP)?
        .iter()
        .filter(|body| string(body, 1).as_deref() == Some(id.name.as_str()))
        .map(|body| {
            (
                string(body, 2).unwrap_or_default(),
                number(body, 5).unwrap_or_default(),
                found_data_size(body),
            )
        })
        .collect();
    let mut wanted: Vec<(String, u32, u32)> = table
        .sets
        .iter()
        .map(|set| (set.name.clone(), size(length(&set.key)), data_size(set)))
        .collect();
    found.sort();
    wanted.sort();
    Ok((found != wanted).then(|| "its sets differ".to_owned()))
}

fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn data_size(set: &Set) -> u32 {
    match &set.data {
        None | Some(MapData::Verdict) => 0,
        Some(MapData::Values(types)) => size(length(types)),
    }
}

/// The size of a verdict is the kernel's own affair.
fn found_data_size(body: &[u8]) -> u32 {
    if number(body, 6) == Some(VERDICT_TYPE) {
        0
    } else {
        number(body, 7).unwrap_or_default()
    }
}

/// Data and user data of an element, as bytes.
type ElementFacts = (Option<Vec<u8>>, Option<Vec<u8>>);

fn elements_differ(set: &Set, id: &TableId) -> Result<Option<SetDifference>, ReadError> {
    let message = NfTablesMessage::GetSetElement(SetElementMessage {
        attributes: vec![
            SetElementList::Table(id.name.clone()),
            SetElementList::Set(set.name.clone()),
        ],
    });
    let mut found: HashMap<Vec<u8>, ElementFacts> = HashMap::new();
    for body in query(id, message, REQUEST | DUMP)? {
        for (_, element) in attributes(&attribute(&body, 3).unwrap_or_default()) {
            if let Some(key) = attribute(&element, 1).and_then(|key| attribute(&key, 1)) {
                found.insert(key, (data_facts(&element), attribute(&element, 6)));
            }
        }
    }
    let mut difference = SetDifference {
        set: set.name.clone(),
        add: Vec::new(),
        remove: Vec::new(),
    };
    for element in &set.elements {
        let key = concatenate(&element.key);
        let wanted = wanted_element(element);
        match found.remove(&key) {
            Some(facts) if facts == wanted => {}
            other => {
                difference.add.push(element.clone());
                // Replacing one takes a removal: adding it again is refused.
                difference.remove.extend(other.map(|_| key));
            }
        }
    }
    difference.remove.extend(found.into_keys());
    let same = difference.add.is_empty() && difference.remove.is_empty();
    Ok((!same).then_some(difference))
}

fn data_facts(element: &[u8]) -> Option<Vec<u8>> {
    let data = attribute(element, 2)?;
    attribute(&data, 1).or_else(|| {
        let verdict = attribute(&data, 2)?;
        let mut bytes = attribute(&verdict, 1)?;
        bytes.extend(attribute(&verdict, 2).unwrap_or_default());
        Some(bytes)
    })
}

fn wanted_element(element: &Element) -> ElementFacts {
    let data = element.data.as_ref().map(|data| match data {
        ElementData::Values(values) => concatenate(values),
        ElementData::Verdict(verdict) => {
            let (code, chain) = expr::verdict_code(verdict);
            let mut bytes = code.to_be_bytes().to_vec();
            if let Some(chain) = chain {
                bytes.extend(chain.as_bytes());
                bytes.push(0);
            }
            bytes
        }
    });
    let comment = element.comment.as_deref();
    (data, comment.map(fingerprint::comment_userdata))
}

/// Asks until the answer is of one piece.
fn query(table: &TableId, message: NfTablesMessage, flags: u16) -> Result<Vec<Vec<u8>>, ReadError> {
    let family = NetfilterProtoFamily::from(table.family.number());
    let message = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), message);
    let mut bytes = Vec::new();
    append(&mut bytes, message, flags, 1);
    let transport = Transport::open()?;
    for _ in 0..TRIES_MAX {
        if let Some(objects) = gather(transport.ask(&bytes)?, table)? {
            return Ok(objects);
        }
    }
    Err(ReadError::Restless {
        object: table.to_string(),
    })
}

/// None when the dump was interrupted.
fn gather(answers: Vec<Answer>, table: &TableId) -> Result<Option<Vec<Vec<u8>>>, ReadError> {
    let mut objects = Vec::new();
    for answer in answers {
        match answer {
            Answer::Object { body } => objects.push(body),
            Answer::Status { errno: 0, .. } | Answer::Done => {}
            Answer::Interrupted => return Ok(None),
            Answer::Status { errno, .. } => {
                return Err(ReadError::Refused {
                    object: table.to_string(),
                    source: io::Error::from_raw_os_error(errno),
                });
            }
        }
    }
    Ok(Some(objects))
}

fn string(body: &[u8], kind: u16) -> Option<String> {
    let bytes = attribute(body, kind)?;
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    String::from_utf8(bytes.to_vec()).ok()
}

fn number(body: &[u8], kind: u16) -> Option<u32> {
    let bytes = attribute(body, kind)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}
