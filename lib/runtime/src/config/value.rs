//! How the text of a variable becomes a value.

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use crate::logging::LogFormat;

/// A type that a variable's text can become.
pub trait ConfigValue: Sized {
    /// Parses the text.
    ///
    /// # Errors
    /// What is wrong with it, or an empty text when there is nothing to add to
    /// the expected form.
    fn parse(text: &str) -> Result<Self, String>;
}

macro_rules! by_from_str {
    ($($type:ty),*) => {$(
        impl ConfigValue for $type {
            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| String::new())
            }
        }
    )*};
}

by_from_str!(
    SocketAddr,
    NonZeroU64,
    NonZeroUsize,
    u16,
    u32,
    u64,
    usize,
    LogFormat
);

impl ConfigValue for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl ConfigValue for PathBuf {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            Err("empty".to_owned())
        } else {
            Ok(Self::from(text))
        }
    }
}

/// Paths separated by `:`; at least one.
impl ConfigValue for Vec<PathBuf> {
    fn parse(text: &str) -> Result<Self, String> {
        text.split(':').map(PathBuf::parse).collect()
    }
}

/// Words separated by `,`; empty text is no word.
impl ConfigValue for Vec<String> {
    fn parse(text: &str) -> Result<Self, String> {
        let words = text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        Ok(words.map(str::to_owned).collect())
    }
}

impl ConfigValue for bool {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(String::new()),
        }
    }
}

/// `30s`, `24h`, `1m 30s`; zero is not a duration that any setting means.
impl ConfigValue for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
        if duration.is_zero() {
            Err("zero".to_owned())
        } else {
            Ok(duration)
        }
    }
}
