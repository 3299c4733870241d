//! The cases, and one measurement of each.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::iperf::{self, Streams};
use super::subjects::{BULK_PORT, Places, Subject};
use super::wrk::{self, Connections};
use crate::harness::mesh::Mesh;
use crate::harness::processes::Process;
use crate::kit::rate::RateReport;
use crate::kit::statistics::Latencies;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Case {
    C1,
    C50,
    C300,
    Newconn,
    #[serde(rename = "bulk1-up")]
    #[value(name = "bulk1-up")]
    Bulk1Up,
    #[serde(rename = "bulk1-down")]
    #[value(name = "bulk1-down")]
    Bulk1Down,
    #[serde(rename = "bulk8-up")]
    #[value(name = "bulk8-up")]
    Bulk8Up,
    #[serde(rename = "bulk8-down")]
    #[value(name = "bulk8-down")]
    Bulk8Down,
    #[serde(rename = "rate2000")]
    #[value(name = "rate2000")]
    Rate2000,
    Mem,
}

impl Case {
    /// Every case, the memory first.
    pub const ALL: [Self; 10] = [
        Self::Mem,
        Self::C1,
        Self::C50,
        Self::C300,
        Self::Newconn,
        Self::Bulk1Up,
        Self::Bulk1Down,
        Self::Bulk8Up,
        Self::Bulk8Down,
        Self::Rate2000,
    ];
}

/// One measurement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// Requests a second, or 10⁹ bits a second.
    pub(crate) rate: f64,
    pub(crate) latencies: Latencies,
    /// Of the costlier proxy: processor seconds per 100,000 requests, or per
    /// second of bulk.
    pub(crate) cpu: f64,
    /// Of the larger proxy.
    pub(crate) rss_mib: f64,
}

pub(crate) fn measure(
    case: Case,
    mesh: &Mesh,
    places: &Places,
    subject: Subject,
    time: Duration,
) -> Result<Sample> {
    let carriers = places.carriers(subject);
    let before = cpu(&carriers)?;
    let kept = |count| Connections { count, kept: true };
    let fresh = Connections {
        count: 50,
        kept: false,
    };
    let up = |count| Streams { count, down: false };
    let down = |count| Streams { count, down: true };
    let (mut sample, work) = match case {
        Case::C1 => http(mesh, places, subject, kept(1), time)?,
        Case::C50 => http(mesh, places, subject, kept(50), time)?,
        Case::C300 => http(mesh, places, subject, kept(300), time)?,
        Case::Newconn => http(mesh, places, subject, fresh, time)?,
        Case::Bulk1Up => bulk(mesh, places, subject, up(1), time)?,
        Case::Bulk1Down => bulk(mesh, places, subject, down(1), time)?,
        Case::Bulk8Up => bulk(mesh, places, subject, up(8), time)?,
        Case::Bulk8Down => bulk(mesh, places, subject, down(8), time)?,
        Case::Rate2000 => rate(mesh, places, subject, time)?,
        Case::Mem => anyhow::bail!("memory is not measured in rounds"),
    };
    let spent = cpu(&carriers)?
        .iter()
        .zip(&before)
        .map(|(now, then)| now - then)
        .fold(0.0, f64::max);
    sample.cpu = spent / work;
    for carrier in &carriers {
        sample.rss_mib = sample.rss_mib.max(carrier.resident_mib()?);
    }
    Ok(sample)
}

fn cpu(carriers: &[Process]) -> Result<Vec<f64>> {
    carriers.iter().map(Process::cpu_seconds).collect()
}

/// The sample, and the amount of work that processor time is divided by.
type Measured = (Sample, f64);

fn http(
    mesh: &Mesh,
    places: &Places,
    subject: Subject,
    connections: Connections,
    time: Duration,
) -> Result<Measured> {
    let (host, port) = places.target(subject, 8080)?;
    let url = format!("http://{host}:{port}/");
    let result = wrk::run(mesh, subject.client(), &url, connections, time)?;
    let sample = Sample {
        rate: result.rps,
        latencies: result.latencies,
        ..Sample::default()
    };
    Ok((sample, result.requests / 100_000.0))
}

fn bulk(
    mesh: &Mesh,
    places: &Places,
    subject: Subject,
    streams: Streams,
    time: Duration,
) -> Result<Measured> {
    let (host, port) = places.target(subject, BULK_PORT)?;
    let sample = Sample {
        rate: iperf::run(mesh, subject.client(), (&host, port), streams, time)?,
        ..Sample::default()
    };
    Ok((sample, time.as_secs_f64()))
}

fn rate(mesh: &Mesh, places: &Places, subject: Subject, time: Duration) -> Result<Measured> {
    let (host, port) = places.target(subject, 8080)?;
    let (target, seconds) = (format!("{host}:{port}"), time.as_secs().to_string());
    let words = [
        "rate",
        &target,
        "--rate",
        "2000",
        "--connections",
        "20",
        "--seconds",
        &seconds,
    ];
    let limit = time + Duration::from_secs(60);
    let report: RateReport = mesh
        .testkit_within(subject.client(), &words, limit)?
        .json()?;
    let sample = Sample {
        rate: report.rps,
        latencies: report.latencies,
        ..Sample::default()
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok((sample, report.requests as f64 / 100_000.0))
}
