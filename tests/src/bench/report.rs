//! Medians, spreads, the table and the file.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::cases::{Case, Sample};
use super::memory::Memory;
use super::subjects::Subject;
use crate::harness::binaries;
use crate::kit::statistics::median;

/// All samples of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    samples: BTreeMap<(Case, Subject), Vec<Sample>>,
    memory: BTreeMap<Subject, Memory>,
}

impl Report {
    pub(crate) fn memory(&mut self, subject: Subject, memory: Memory) {
        self.memory.insert(subject, memory);
    }

    pub(crate) fn sample(&mut self, case: Case, subject: Subject, round: usize, sample: Sample) {
        let samples = self.samples.entry((case, subject)).or_default();
        debug_assert_eq!(samples.len(), round);
        samples.push(sample);
    }

    fn rows(&self) -> Vec<Value> {
        let memory = self.memory.iter().map(|(subject, memory)| {
            json!({
                "case": Case::Mem, "subject": subject,
                "rss_mib": memory.idle_mib,
                "rss_open_mib": memory.open_mib,
                "kib_per_connection": memory.kib_per_connection,
                "rss_after_mib": memory.after_mib,
            })
        });
        let rates = self.samples.iter().map(|((case, subject), samples)| {
            let direct = self
                .samples
                .get(&(*case, Subject::Direct))
                .map_or(&[][..], Vec::as_slice);
            row(*case, *subject, samples, direct)
        });
        memory.chain(rates).collect()
    }

    pub(crate) fn print(&self) {
        println!(
            "{:<11} {:<18} {:>10} {:>22} {:>9} {:>9} {:>9} {:>8}",
            "case", "subject", "rate", "of direct (min-max)", "p50 ms", "p99 ms", "cpu", "rss MiB"
        );
        for row in self.rows() {
            let number = |name: &str| row[name].as_f64();
            let text = |name: &str, digits: usize| {
                number(name).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let rate = number("rps").map_or_else(
                || number("gbps").map_or_else(String::new, |gbps| format!("{gbps:.2} Gb/s")),
                |rps| format!("{rps:.0} /s"),
            );
            let ratio = number("ratio").map_or_else(String::new, |ratio| {
                format!(
                    "{ratio:.3} ({}-{})",
                    text("ratio_min", 3),
                    text("ratio_max", 3)
                )
            });
            println!(
                "{:<11} {:<18} {rate:>10} {ratio:>22} {:>9} {:>9} {:>9} {:>8}",
                row["case"].as_str().unwrap_or_default(),
                row["subject"].as_str().unwrap_or_default(),
                text("p50_ms", 3),
                text("p99_ms", 2),
                number("cores").map_or_else(
                    || text("cpu_s_per_100k", 2),
                    |cores| format!("{cores:.2} c")
                ),
                text("rss_mib", 1),
            );
            if let Some(per_connection) = number("kib_per_connection") {
                println!(
                    "{:>30} {per_connection:.1} KiB a connection, {} MiB open, {} MiB a minute after",
                    "",
                    text("rss_open_mib", 1),
                    text("rss_after_mib", 1)
                );
            }
        }
    }

    /// Writes `target/bench/l4.json`. A run of some cases keeps the figures of
    /// the others.
    pub(crate) fn write(&self) -> Result<()> {
        let path = binaries::repository().join("target/bench/l4.json");
        std::fs::create_dir_all(path.parent().context("a parent")?)?;
        let rows = self.rows();
        let same = |a: &Value, b: &Value| a["case"] == b["case"] && a["subject"] == b["subject"];
        let before: Vec<Value> = std::fs::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let kept = before
            .into_iter()
            .filter(|old| !rows.iter().any(|new| same(old, new)));
        let all: Vec<Value> = kept.chain(rows.iter().cloned()).collect();
        std::fs::write(&path, serde_json::to_vec_pretty(&all)?)
            .with_context(|| path.display().to_string())?;
        println!("written to target/bench/l4.json");
        Ok(())
    }
}

fn row(case: Case, subject: Subject, samples: &[Sample], direct: &[Sample]) -> Value {
    let mut row = Map::new();
    row.insert("case".into(), json!(case));
    row.insert("subject".into(), json!(subject));
    let mut put = |name: &str, figures: Vec<f64>| {
        let min = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let max = figures.iter().copied().fold(0.0, f64::max);
        row.insert(name.to_owned(), json!(median(figures)));
        row.insert(format!("{name}_min"), json!(min));
        row.insert(format!("{name}_max"), json!(max));
    };
    let of = |figure: fn(&Sample) -> f64| samples.iter().map(figure).collect::<Vec<_>>();
    let bulk = matches!(
        case,
        Case::Bulk1Up | Case::Bulk1Down | Case::Bulk8Up | Case::Bulk8Down
    );
    if !direct.is_empty() {
        let ratios = samples
            .iter()
            .zip(direct)
            .map(|(own, direct)| own.rate / direct.rate);
        put("ratio", ratios.collect());
    }
    put(if bulk { "gbps" } else { "rps" }, of(|sample| sample.rate));
    if !bulk {
        put("p50_ms", of(|sample| sample.latencies.p50_ms));
        put("p99_ms", of(|sample| sample.latencies.p99_ms));
    }
    if subject != Subject::Direct {
        put(
            if bulk { "cores" } else { "cpu_s_per_100k" },
            of(|sample| sample.cpu),
        );
        put("rss_mib", of(|sample| sample.rss_mib));
    }
    Value::Object(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let sample = |rate| Sample {
            rate,
            ..Sample::default()
        };
        let mut report = Report::default();
        for (round, (direct, own)) in [(100.0, 50.0), (200.0, 40.0), (100.0, 30.0)]
            .iter()
            .enumerate()
        {
            report.sample(Case::C50, Subject::Direct, round, sample(*direct));
            report.sample(Case::C50, Subject::Culvert, round, sample(*own));
        }
        let rows = report.rows();
        let culvert = rows
            .iter()
            .find(|row| row["subject"] == "culvert")
            .expect("a row");
        assert_eq!(culvert["case"], "c50");
        assert_eq!(culvert["ratio"], 0.3);
        assert_eq!(
            (&culvert["ratio_min"], &culvert["ratio_max"]),
            (&json!(0.2), &json!(0.5))
        );
        assert_eq!(culvert["rps"], 40.0);
    }
}
