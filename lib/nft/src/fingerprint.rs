//! Words and hashes that go with rules, so that a later look can tell what stands
//! in the kernel without decoding every expression.

use netlink_packet_core::Nla;

use crate::expr::Expression;
use crate::rule::Rule;

/// Longest text of a comment; the kernel keeps 256 bytes of user data for all of it.
const COMMENT_BYTES_MAX: usize = 100;
/// How `nft` marks a comment in the user data of a rule or of an element.
const COMMENT: u8 = 0;

/// User data of a rule: its comment and the hash of its expressions. Whoever
/// replaces the rule by another also replaces this.
pub(crate) fn rule_userdata(rule: &Rule, expressions: &[Expression]) -> Vec<u8> {
    let mut hash = Hash::default();
    for expression in expressions {
        let mut bytes = vec![0; expression.value_len()];
        expression.emit_value(&mut bytes);
        hash.update(&bytes);
    }
    let text = match &rule.comment {
        Some(comment) => format!("{} #{:016x}", cut(comment), hash.0),
        None => format!("#{:016x}", hash.0),
    };
    typed(COMMENT, &text)
}

/// User data of an element.
pub(crate) fn comment_userdata(comment: &str) -> Vec<u8> {
    typed(COMMENT, cut(comment))
}

/// User data of a set: the byte order of key and data, which `nft list` needs.
pub(crate) fn set_userdata(key_host_order: bool, data_host_order: Option<bool>) -> Vec<u8> {
    let order = |host: bool| if host { 1_u32 } else { 2 }.to_ne_bytes();
    let mut bytes = vec![0, 4];
    bytes.extend(order(key_host_order));
    if let Some(host) = data_host_order {
        bytes.extend([1, 4]);
        bytes.extend(order(host));
    }
    bytes
}

fn typed(kind: u8, text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len() + 1).expect("invariant: comments are cut to 100 bytes");
    let mut bytes = vec![kind, length];
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(COMMENT_BYTES_MAX)]
}

/// FNV-1a: fixed for all time, unlike the hashers of the standard library.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Family;

    fn of(rule: &Rule) -> Vec<u8> {
        rule_userdata(rule, &crate::expr::rule(rule, Family::Inet))
    }

    #[test]
    fn hash_follows_the_expressions_and_the_comment() {
        let rule = Rule::new().tcp().destination_port(80).redirect(15001);
        assert_eq!(of(&rule), of(&rule.clone()));
        assert_ne!(of(&rule), of(&rule.clone().comment("web")));
        let other = Rule::new().tcp().destination_port(81).redirect(15001);
        assert_ne!(of(&rule), of(&other));
    }

    #[test]
    fn long_comments_are_cut_between_characters() {
        let text = "ä".repeat(99);
        let bytes = of(&Rule::new().comment(&text));
        assert!(bytes.len() < 256 && bytes.len() > 100);
        assert_eq!(comment_userdata(&text).len(), 103);
    }
}
