//! Prints an error with its causes, since each `Display` holds its own level only.

use std::error::Error;

/// `error: cause: cause of the cause`, the form in which every error is logged.
///
/// A level whose text merely repeats the level above is left out, so that
/// foreign errors that print their source do not appear twice.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let level = cause.to_string();
        if !text.ends_with(&level) {
            text.push_str(": ");
            text.push_str(&level);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("could not open state")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("file is locked")]
    struct Inner;

    #[derive(Debug, thiserror::Error)]
    #[error("could not start: file is locked")]
    struct Repeats(#[source] Inner);

    #[test]
    fn joins_each_level_once() {
        assert_eq!(chain(&Inner), "file is locked");
        assert_eq!(chain(&Outer(Inner)), "could not open state: file is locked");
        assert_eq!(chain(&Repeats(Inner)), "could not start: file is locked");
    }
}
