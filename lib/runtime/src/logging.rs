//! The process log: text or JSON lines, a level that can change while it runs,
//! and a writer that never makes the data path wait.

use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// Lines that may wait for the writer. At 200 bytes a line this bounds the log's
/// memory to about 3 MiB; what comes on top is dropped and counted.
const LINES_MAX: usize = 16_384;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// `time level target: message key=value …`
    Text,
    /// One JSON object a line, fields at the top level.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("expected text or json".to_owned()),
        }
    }
}

/// The level expression cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("`{level}` is not a log level such as `info` or `warn,culvert_xds=debug`")]
pub struct LogLevelError {
    level: String,
    #[source]
    source: Option<tracing_subscriber::filter::ParseError>,
}

/// Changes the level of the running log and counts what it dropped.
#[derive(Debug, Clone)]
pub struct LogHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    reload: Option<reload::Handle<EnvFilter, Registry>>,
    initial: String,
    current: Mutex<String>,
    dropped: Option<ErrorCounter>,
    // Flushes the writer when the last handle goes.
    _guard: Option<WorkerGuard>,
}

/// Starts the process log on standard output and makes panics appear in it.
///
/// An unusable `level` falls back to `info` with a warning: configuration is
/// checked before (see [`crate::config::ProcessConfig`]). A second call in one
/// process changes nothing and gives a handle that only remembers levels.
#[must_use]
pub fn init_logging(format: LogFormat, level: &str) -> LogHandle {
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(LINES_MAX)
        .lossy(true)
        .thread_name("log")
        .finish(std::io::stdout());
    let dropped = writer.error_counter();
    let parsed = parse(level);
    let initial = if parsed.is_ok() { level } else { "info" };
    let fault = parsed.as_ref().err().map(ToString::to_string);
    let (filter, reload) = reload::Layer::new(parsed.unwrap_or_else(|_| EnvFilter::new("info")));
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Text => registry
            .with(fmt::layer().with_ansi(false).with_writer(writer))
            .try_init(),
        LogFormat::Json => registry
            .with(fmt::layer().json().flatten_event(true).with_writer(writer))
            .try_init(),
    };
    if started.is_err() {
        return LogHandle::detached(initial);
    }
    log_panics();
    if let Some(fault) = fault {
        tracing::warn!(fault, "log level is info");
    }
    LogHandle {
        shared: Arc::new(Shared {
            reload: Some(reload),
            initial: initial.to_owned(),
            current: Mutex::new(initial.to_owned()),
            dropped: Some(dropped),
            _guard: Some(guard),
        }),
    }
}

fn parse(level: &str) -> Result<EnvFilter, LogLevelError> {
    // An empty expression would switch everything off without saying so.
    if level.trim().is_empty() {
        return Err(LogLevelError {
            level: level.to_owned(),
            source: None,
        });
    }
    EnvFilter::builder()
        .parse(level)
        .map_err(|source| LogLevelError {
            level: level.to_owned(),
            source: Some(source),
        })
}

fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let message = crate::tasks::panic_message(panic.payload());
        tracing::error!(place, message, "panic");
        before(panic);
    }));
}

impl LogHandle {
    /// A handle of no log: for tests and for processes that log elsewhere.
    #[must_use]
    pub fn detached(level: &str) -> Self {
        Self {
            shared: Arc::new(Shared {
                reload: None,
                initial: level.to_owned(),
                current: Mutex::new(level.to_owned()),
                dropped: None,
                _guard: None,
            }),
        }
    }

    /// Sets the level: `info`, or per target `warn,culvert_xds=debug`.
    ///
    /// # Errors
    /// When the expression cannot be understood; the level stays.
    pub fn set_level(&self, level: &str) -> Result<(), LogLevelError> {
        let filter = parse(level)?;
        if let Some(reload) = &self.shared.reload {
            reload.reload(filter).map_err(|_| LogLevelError {
                level: level.to_owned(),
                source: None,
            })?;
        }
        level.clone_into(
            &mut self
                .shared
                .current
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        Ok(())
    }

    /// Back to the level of the start.
    pub fn reset(&self) {
        // The initial level was parsed once already.
        let _ = self.set_level(&self.shared.initial.clone());
    }

    /// The level in force.
    #[must_use]
    pub fn level(&self) -> String {
        self.shared
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Lines that were dropped because the writer could not keep up.
    #[must_use]
    pub fn dropped_lines(&self) -> u64 {
        self.shared
            .dropped
            .as_ref()
            .map_or(0, |dropped| dropped.dropped_lines() as u64)
    }
}

/// Checks a level expression without using it.
///
/// # Errors
/// When it cannot be understood.
pub(crate) fn check_level(level: &str) -> Result<(), LogLevelError> {
    parse(level).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_changes_and_resets() {
        let log = LogHandle::detached("info");
        log.set_level("warn,culvert_xds=debug")
            .expect("a good level");
        assert_eq!(log.level(), "warn,culvert_xds=debug");
        log.reset();
        assert_eq!(log.level(), "info");
    }

    #[test]
    fn a_bad_level_is_named_and_the_old_one_stays() {
        let log = LogHandle::detached("info");
        for bad in ["", "loud=very=much", "culvert=chatty"] {
            let error = log.set_level(bad).expect_err(bad);
            assert!(error.to_string().contains(&format!("`{bad}`")), "{error}");
        }
        assert_eq!(log.level(), "info");
    }

    #[test]
    fn formats_parse() {
        assert_eq!("json".parse(), Ok(LogFormat::Json));
        assert!("xml".parse::<LogFormat>().is_err());
    }

    #[test]
    fn a_second_start_gives_a_working_handle() {
        let first = init_logging(LogFormat::Text, "info");
        let second = init_logging(LogFormat::Json, "debug");
        second.set_level("warn").expect("a good level");
        first.set_level("error").expect("a good level");
        assert_eq!(second.level(), "warn");
        assert_eq!(first.dropped_lines(), 0);
    }
}
