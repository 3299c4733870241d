//! The registry that all modules of a process register their metrics in, and the
//! metrics that every process has.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::logging::LogHandle;

/// A shared metrics registry. Handed to each module that has metrics; nobody
/// reaches for a global one.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
}

impl Metrics {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A registry with the process and build metrics of `component`.
    #[must_use]
    pub fn for_process(component: &str, version: &str, log: &LogHandle) -> Self {
        let metrics = Self::new();
        metrics.register(|registry| {
            registry.register(
                "culvert_build",
                "Program and version",
                Info::new([
                    ("component", component.to_owned()),
                    ("version", version.to_owned()),
                ]),
            );
            registry.register_collector(Box::new(ProcessMetrics {
                started: SystemTime::now(),
                log: log.clone(),
            }));
        });
        metrics
    }

    /// Lets a module register its metrics.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(
            &mut self
                .registry
                .write()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// All metrics as OpenMetrics text.
    ///
    /// # Errors
    /// When a metric cannot be written: a defect of a collector.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut body = String::new();
        text::encode(
            &mut body,
            &self.registry.read().unwrap_or_else(PoisonError::into_inner),
        )?;
        Ok(body)
    }
}

/// Read from `/proc/self` at each scrape; what cannot be read is left out.
#[derive(Debug)]
struct ProcessMetrics {
    started: SystemTime,
    log: LogHandle,
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: f64| {
            let metric = ConstGauge::new(value);
            let target = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            metric.encode(target)
        };
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        gauge(
            "process_start_time_seconds",
            "Start of the process",
            started.as_secs_f64(),
        )?;
        if let Some(open) = open_files() {
            gauge("process_open_fds", "Open file descriptors", open)?;
        }
        if let Some(max) = getrlimit(Resource::Nofile).current {
            gauge(
                "process_max_fds",
                "Limit of open file descriptors",
                lossy(max),
            )?;
        }
        let memory = Memory::read();
        if let Some(resident) = memory.resident {
            gauge(
                "process_resident_memory_bytes",
                "Resident memory",
                lossy(resident),
            )?;
        }
        if let Some(virtual_size) = memory.virtual_size {
            gauge(
                "process_virtual_memory_bytes",
                "Virtual memory",
                lossy(virtual_size),
            )?;
        }
        if let Some(threads) = memory.threads {
            gauge("process_threads", "Threads", lossy(threads))?;
        }
        let cpu = ConstCounter::new(cpu_seconds());
        cpu.encode(encoder.encode_descriptor(
            "process_cpu_seconds",
            "Processor time used",
            None,
            MetricType::Counter,
        )?)?;
        let dropped = ConstCounter::new(self.log.dropped_lines());
        dropped.encode(encoder.encode_descriptor(
            "culvert_log_lines_dropped",
            "Log lines dropped because the writer could not keep up",
            None,
            MetricType::Counter,
        )?)
    }
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floating point")]
fn lossy(value: u64) -> f64 {
    value as f64
}

fn open_files() -> Option<f64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    // One of them is the descriptor that reads the directory.
    Some(lossy(entries.count().saturating_sub(1) as u64))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a counter of seconds is floating point"
)]
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The memory figures of `/proc/self/status`, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) resident: Option<u64>,
    pub(crate) virtual_size: Option<u64>,
    pub(crate) threads: Option<u64>,
}

impl Memory {
    pub(crate) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |key| field(&status, key).map(|value| value * 1024);
        Self {
            resident: kib("VmRSS:"),
            virtual_size: kib("VmSize:"),
            threads: field(&status, "Threads:"),
        }
    }
}

pub(crate) fn field(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_says_who_it_is_and_what_it_uses() {
        let metrics = Metrics::for_process("test", "1.2.3", &LogHandle::detached("info"));
        let text = metrics.encode().expect("encodes");
        for expected in [
            "culvert_build_info{component=\"test\",version=\"1.2.3\"} 1",
            "process_open_fds ",
            "process_max_fds ",
            "process_resident_memory_bytes ",
            "process_start_time_seconds ",
            "process_cpu_seconds_total ",
            "culvert_log_lines_dropped_total 0",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn status_fields_are_found_by_name() {
        let status = "Name:\tx\nVmSize:\t  20 kB\nVmRSS:\t  12 kB\nThreads:\t3\n";
        assert_eq!(field(status, "VmRSS:"), Some(12));
        assert_eq!(field(status, "Threads:"), Some(3));
        assert_eq!(field(status, "VmPeak:"), None);
    }
}
