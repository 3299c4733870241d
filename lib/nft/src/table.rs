//! A table as a value: what is to stand in the kernel, all of it.

use std::fmt;

use crate::field::{KeyType, Value};
use crate::rule::{Rule, Verdict};

/// Address family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
}

impl Family {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        })
    }
}

/// A table with everything in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Address family.
    pub family: Family,
    /// Name; families have name spaces of their own.
    pub name: String,
    /// Sets and maps that rules refer to by name.
    pub sets: Vec<Set>,
    /// Chains. A chain may jump to any other, wherever it stands.
    pub chains: Vec<Chain>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(family: Family, name: &str) -> Self {
        Self {
            family,
            name: name.to_owned(),
            sets: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// With one more set or map.
    #[must_use]
    pub fn with_set(mut self, set: Set) -> Self {
        self.sets.push(set);
        self
    }

    /// With one more chain.
    #[must_use]
    pub fn with_chain(mut self, chain: Chain) -> Self {
        self.chains.push(chain);
        self
    }

    /// What tells it from other tables.
    #[must_use]
    pub fn id(&self) -> TableId {
        TableId {
            family: self.family,
            name: self.name.clone(),
        }
    }
}

/// Family and name of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableId {
    /// Address family.
    pub family: Family,
    /// Name.
    pub name: String,
}

impl TableId {
    /// From its parts.
    #[must_use]
    pub fn new(family: Family, name: &str) -> Self {
        Self {
            family,
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {} {}", self.family, self.name)
    }
}

/// A chain of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// Where packets enter it; none for a chain that is only jumped to.
    pub base: Option<Base>,
    /// Rules in order.
    pub rules: Vec<Rule>,
}

impl Chain {
    /// A chain that others jump to.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            base: None,
            rules: Vec::new(),
        }
    }

    /// A chain that packets enter at a hook.
    #[must_use]
    pub fn base(name: &str, base: Base) -> Self {
        Self {
            name: name.to_owned(),
            base: Some(base),
            rules: Vec::new(),
        }
    }

    /// With one more rule at the end.
    #[must_use]
    pub fn with(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }
}

/// Where and when packets enter a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// What the chain may do.
    pub kind: ChainKind,
    /// Where.
    pub hook: Hook,
    /// Order among the chains of a hook: -300 raw, -200 connection tracking, -150
    /// mangle, -100 dstnat, 0 filter, 100 srcnat.
    pub priority: i32,
    /// What happens to a packet that reaches the end.
    pub policy: Policy,
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Anything but address translation.
    Filter,
    /// Address translation; sees the first packet of each connection.
    Nat,
    /// As filter, and a packet whose mark changes is routed again (output hook).
    Route,
}

impl ChainKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

/// A place in the packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// To this machine.
    Input,
    /// Through this machine.
    Forward,
    /// Made by this machine.
    Output,
    /// After routing.
    Postrouting,
}

impl Hook {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }
}

/// What happens to a packet at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// It goes on.
    Accept,
    /// It is dropped.
    Drop,
}

impl Policy {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
        }
    }
}

/// A named set, or a map where it has data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Name.
    pub name: String,
    /// Parts of the key.
    pub key: Vec<KeyType>,
    /// What a map gives; none for a set.
    pub data: Option<MapData>,
    /// Elements. Order has no meaning.
    pub elements: Vec<Element>,
}

impl Set {
    /// An empty set.
    #[must_use]
    pub fn new(name: &str, key: &[KeyType]) -> Self {
        Self {
            name: name.to_owned(),
            key: key.to_vec(),
            data: None,
            elements: Vec::new(),
        }
    }

    /// An empty map to values.
    #[must_use]
    pub fn map(name: &str, key: &[KeyType], data: &[KeyType]) -> Self {
        Self {
            data: Some(MapData::Values(data.to_vec())),
            ..Self::new(name, key)
        }
    }

    /// An empty map to verdicts.
    #[must_use]
    pub fn verdict_map(name: &str, key: &[KeyType]) -> Self {
        Self {
            data: Some(MapData::Verdict),
            ..Self::new(name, key)
        }
    }

    /// With these elements.
    #[must_use]
    pub fn with(mut self, elements: impl IntoIterator<Item = Element>) -> Self {
        self.elements.extend(elements);
        self
    }
}

/// What a map gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapData {
    /// Values side by side.
    Values(Vec<KeyType>),
    /// A verdict.
    Verdict,
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    /// Parts of the key, in the order of the set's types.
    pub key: Vec<Value>,
    /// What a map gives for it.
    pub data: Option<ElementData>,
    /// Words for people, shown by `nft list` (at most 100 bytes are kept).
    pub comment: Option<String>,
}

impl Element {
    /// An element of a set.
    #[must_use]
    pub fn new(key: impl Into<Vec<Value>>) -> Self {
        Self {
            key: key.into(),
            data: None,
            comment: None,
        }
    }

    /// An element of a map to values.
    #[must_use]
    pub fn values(key: impl Into<Vec<Value>>, values: impl Into<Vec<Value>>) -> Self {
        Self {
            data: Some(ElementData::Values(values.into())),
            ..Self::new(key)
        }
    }

    /// An element of a map to verdicts.
    #[must_use]
    pub fn verdict(key: impl Into<Vec<Value>>, verdict: Verdict) -> Self {
        Self {
            data: Some(ElementData::Verdict(verdict)),
            ..Self::new(key)
        }
    }

    /// With words for people.
    #[must_use]
    pub fn comment(mut self, text: &str) -> Self {
        self.comment = Some(text.to_owned());
        self
    }
}

/// What a map gives for one element.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementData {
    /// Values side by side.
    Values(Vec<Value>),
    /// A verdict.
    Verdict(Verdict),
}
