//! What a client says of resources that it cannot read.

use crate::chain::chain;
use crate::decode::DecodeError;

/// 32: enough to see what is wrong; the client's log has the rest.
const REJECTIONS_MAX: usize = 32;

/// 1 KiB for one resource: a path into it and a reason take far less.
const REASON_BYTES_MAX: usize = 1024;

/// A resource that a client cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Its name.
    pub resource: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Rejection {
    pub(super) fn of(error: &DecodeError) -> Self {
        let reason = one_line(&chain(&error.field));
        Self {
            resource: one_line(&error.resource),
            reason: cut(&reason, REASON_BYTES_MAX),
        }
    }

    /// The message of a refusal: one line a resource.
    pub(super) fn message(rejections: &[Self]) -> String {
        let mut lines: Vec<_> = rejections
            .iter()
            .take(REJECTIONS_MAX)
            .map(|rejection| format!("{}: {}", rejection.resource, rejection.reason))
            .collect();
        if rejections.len() > REJECTIONS_MAX {
            lines.push(format!("and {} more", rejections.len() - REJECTIONS_MAX));
        }
        lines.join("\n")
    }

    /// Reads such a message; a line of any other form is a reason without name.
    pub(super) fn parse(message: &str) -> Vec<Self> {
        message
            .lines()
            .filter(|line| !line.is_empty())
            .take(REJECTIONS_MAX + 1)
            .map(|line| match line.split_once(": ") {
                Some((resource, reason)) if resource.contains('/') => Self {
                    resource: cut(resource, REASON_BYTES_MAX),
                    reason: cut(reason, REASON_BYTES_MAX),
                },
                _ => Self {
                    resource: String::new(),
                    reason: cut(line, REASON_BYTES_MAX),
                },
            })
            .collect()
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn cut(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_wire() {
        let rejections: Vec<_> = (0..40)
            .map(|n| Rejection {
                resource: format!("ns/{n}"),
                reason: "groups[0]: missing: x".to_owned(),
            })
            .collect();
        let read = Rejection::parse(&Rejection::message(&rejections));
        assert_eq!(read[..32], rejections[..32]);
        assert_eq!(read[32].reason, "and 8 more");
        assert_eq!(read.len(), 33);
    }

    #[test]
    fn bounds_what_a_client_says() {
        let long = format!("a/b: {}\n", "é".repeat(4000)).repeat(100);
        let read = Rejection::parse(&long);
        assert!(read.len() <= 33 && read.iter().all(|one| one.reason.len() <= REASON_BYTES_MAX));
        assert_eq!(Rejection::parse("what: is this")[0].resource, "");
    }
}
