//! An error and its causes as one text.

use std::error::Error;

/// The levels from the outermost in, without those that only repeat the end of
/// the one before.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(level) = next {
        let cause = level.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        next = level.source();
    }
    text
}
