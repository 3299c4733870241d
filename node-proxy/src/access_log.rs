//! The access log: one record when a connection opens, one from time to time
//! while it lasts, one when it closes.
//!
//! Workers format into a buffer of their own and hand whole batches to one
//! writer thread. They never wait for it: a batch for which the queue has no
//! room is dropped and counted.

mod line;

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;

pub(crate) use line::{Event, Fields, write_line};

/// Batches that may wait for the writer: full ones are 16 MiB; at a low rate, where
/// each holds what came in [`BATCH_INTERVAL`], a worker bears a disk that stands still
/// for 12 s.
const BATCHES_MAX: usize = 256;
/// A batch is handed over at this size: about fifty connections, so that the two
/// wake-ups of the writer and its call do not show.
const BATCH_BYTES: usize = 64 * 1024;
/// Room for the record that fills a batch.
const RECORD_BYTES: usize = 2 * 1024;
/// A record waits no longer than this for others.
pub(crate) const BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Not at all.
    Off,
    /// `key=value`.
    Text,
    /// One JSON object a line.
    Json,
}

impl std::str::FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(UnknownFormat),
        }
    }
}

/// A text that names no format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the access log is off, text or json")]
pub struct UnknownFormat;

/// The access log of a process. Clones share it.
#[derive(Debug, Clone)]
pub struct AccessLog {
    format: Format,
    sender: Option<SyncSender<Vec<u8>>>,
    dropped: Counter,
}

impl AccessLog {
    /// A log that is off.
    #[must_use]
    pub fn off() -> Self {
        Self {
            format: Format::Off,
            sender: None,
            dropped: Counter::default(),
        }
    }

    /// A log into `target`, written by a thread of its own that ends with the
    /// last clone.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(format: Format, target: Box<dyn Write + Send>) -> io::Result<Self> {
        if format == Format::Off {
            return Ok(Self::off());
        }
        let (sender, batches) = sync_channel(BATCHES_MAX);
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || write_batches(&batches, target))?;
        Ok(Self {
            format,
            sender: Some(sender),
            dropped: Counter::default(),
        })
    }

    /// How records are written.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Records that were dropped because the writer was too slow.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Registers the counter of dropped records.
    pub fn register(&self, metrics: &culvert_runtime::Metrics) {
        metrics.register(|registry| {
            registry.register(
                "culvert_access_log_dropped",
                "Access log records dropped because the writer was too slow",
                self.dropped.clone(),
            );
        });
    }
}

fn write_batches(batches: &Receiver<Vec<u8>>, mut target: Box<dyn Write + Send>) {
    let mut failed = false;
    while let Ok(batch) = batches.recv() {
        let written = target.write_all(&batch).and_then(|()| target.flush());
        match written {
            Err(error) if !failed => {
                failed = true;
                tracing::error!(%error, "the access log cannot be written");
            }
            Err(_) => {}
            Ok(()) => failed = false,
        }
    }
}

/// A worker's part of the access log.
#[derive(Debug)]
pub(crate) struct LogBuffer {
    log: AccessLog,
    bytes: RefCell<Vec<u8>>,
    records: Cell<u64>,
    wake: tokio::sync::Notify,
}

impl LogBuffer {
    pub(crate) fn new(log: AccessLog) -> Self {
        Self {
            log,
            bytes: RefCell::default(),
            records: Cell::new(0),
            wake: tokio::sync::Notify::new(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.log.sender.is_some()
    }

    pub(crate) fn record(&self, event: Event, fields: &Fields<'_>) {
        if !self.is_on() {
            return;
        }
        let mut bytes = self.bytes.borrow_mut();
        if bytes.is_empty() {
            bytes.reserve(BATCH_BYTES + RECORD_BYTES);
            self.wake.notify_one();
        }
        write_line(&mut bytes, self.log.format, event, fields);
        self.records.set(self.records.get() + 1);
        let full = bytes.len() >= BATCH_BYTES;
        drop(bytes);
        if full {
            self.flush();
        }
    }

    /// Hands the batch over, without waiting.
    pub(crate) fn flush(&self) {
        let batch = self.bytes.take();
        let records = self.records.take();
        if batch.is_empty() {
            return;
        }
        if let Some(sender) = &self.log.sender
            && sender.try_send(batch).is_err()
        {
            self.log.dropped.inc_by(records);
        }
    }

    /// Flushes batches that do not fill up. Runs as long as the worker.
    pub(crate) async fn run(&self) {
        loop {
            self.wake.notified().await;
            tokio::time::sleep(BATCH_INTERVAL).await;
            self.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Blocks until it is let go.
    struct Gate(mpsc::Receiver<()>);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_slow_writer_costs_records_and_no_time() {
        let (open, gate) = mpsc::channel();
        let log = AccessLog::start(Format::Text, Box::new(Gate(gate))).expect("starts");
        let buffer = LogBuffer::new(log.clone());
        let fields = Fields::sample();
        for _ in 0..BATCHES_MAX + 10 {
            buffer.record(Event::Opened, &fields);
            buffer.flush();
        }
        assert!(log.dropped() >= 1, "{}", log.dropped());
        drop(open);
    }

    #[test]
    fn formats_have_names() {
        assert_eq!("json".parse(), Ok(Format::Json));
        assert_eq!("JSON".parse::<Format>(), Err(UnknownFormat));
    }
}
