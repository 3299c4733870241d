//! The benchmark of the L4 path: direct, through the mesh across two nodes, on
//! one node, and through a pair of Envoys, in alternating rounds of one run.
//!
//! Nothing is pinned: client, proxies and backend share the machine's cores, as
//! they do on a node. Each Envoy has one worker, the node proxies what they
//! choose. Ratios are taken within a round, so that what disturbs the machine
//! disturbs both figures.

mod cases;
mod iperf;
mod memory;
mod report;
mod subjects;
mod wrk;

use std::time::Duration;

use anyhow::{Context, Result};

use crate::harness::mesh::{Mesh, MeshOptions};

pub use cases::Case;
pub use subjects::Subject;

/// What to measure and for how long.
#[derive(Debug, Clone, clap::Parser)]
#[command(about = "measures the tunnel beside direct connections and a pair of Envoys")]
pub struct BenchOptions {
    /// Rounds of every case and subject.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Cases, all if not given.
    #[arg(long, value_delimiter = ',')]
    pub cases: Vec<Case>,
    /// Subjects besides direct, all if not given.
    #[arg(long, value_delimiter = ',')]
    pub subjects: Vec<Subject>,
    /// Connections of the memory case.
    #[arg(long, default_value_t = 5000)]
    pub connections: usize,
}

/// Brings the mesh up, measures, prints the table and writes the file.
///
/// # Errors
/// When a measurement fails.
pub fn run(options: &BenchOptions) -> Result<()> {
    let cases = if options.cases.is_empty() {
        Case::ALL.to_vec()
    } else {
        options.cases.clone()
    };
    let mut subjects = vec![Subject::Direct];
    subjects.extend(if options.subjects.is_empty() {
        &Subject::PROXIED[..]
    } else {
        &options.subjects
    });
    eprintln!("bringing the mesh up");
    let mesh = Mesh::up_fixture(MeshOptions::new("bench", 2).with("accessLog=text"), "bench")?;
    let mut report = report::Report::default();
    let outcome = measure(options, &mesh, &cases, &subjects, &mut report);
    // What was found before a failure is worth its minutes.
    report.print();
    outcome.and(report.write())
}

fn measure(
    options: &BenchOptions,
    mesh: &Mesh,
    cases: &[Case],
    subjects: &[Subject],
    report: &mut report::Report,
) -> Result<()> {
    let mut places = subjects::Places::new(mesh, subjects.contains(&Subject::EnvoyPair))?;
    // First, while nobody's memory has seen traffic yet.
    if cases.contains(&Case::Mem) {
        for subject in subjects
            .iter()
            .filter(|subject| **subject != Subject::Direct)
        {
            eprintln!("mem: {subject:?}, {} connections", options.connections);
            places.restart_proxies(mesh)?;
            let memory = memory::measure(mesh, &places, *subject, options.connections)?;
            report.memory(*subject, memory);
        }
    }
    for case in cases.iter().filter(|case| **case != Case::Mem) {
        for round in 0..options.rounds {
            for subject in subjects {
                eprintln!(
                    "{case:?}: round {} of {}, {subject:?}",
                    round + 1,
                    options.rounds
                );
                let time = Duration::from_secs(options.seconds);
                let sample = cases::measure(*case, mesh, &places, *subject, time)
                    .with_context(|| format!("{case:?} {subject:?}"))?;
                report.sample(*case, *subject, round, sample);
            }
        }
    }
    Ok(())
}
