//! Netlink attributes as bytes: the few shapes that nf_tables uses.

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED};

/// An attribute with a raw value.
pub(crate) fn raw(kind: u16, value: impl Into<Vec<u8>>) -> DefaultNla {
    DefaultNla::new(kind, value.into())
}

/// A number in network order, as every number outside registers is.
pub(crate) fn number(kind: u16, value: u32) -> DefaultNla {
    raw(kind, value.to_be_bytes())
}

/// A string with its terminating zero.
pub(crate) fn text(kind: u16, value: &str) -> DefaultNla {
    let mut bytes = value.as_bytes().to_vec();
    bytes.push(0);
    raw(kind, bytes)
}

/// Attributes inside an attribute.
pub(crate) fn nested(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; inner.buffer_len()];
    inner.emit(&mut value);
    raw(kind | NLA_F_NESTED, value)
}
