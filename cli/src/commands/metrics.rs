//! `culvert metrics`, and reading the text format for other commands.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;

use super::target::Target;
use crate::args::Metrics;
use crate::output::print;
use crate::state::StateDir;

/// Runs the command.
pub(crate) async fn run(args: &Metrics, state: &StateDir) -> Result<ExitCode> {
    let text = Target::parse(&args.target, state)?.metrics().await?;
    match &args.filter {
        None => print(text),
        Some(wanted) => {
            for line in text
                .lines()
                .filter(|line| metric_name(line).contains(wanted.as_str()))
            {
                print(format!("{line}\n"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Name of the metric that a line is about, also of `# HELP name ...`.
fn metric_name(line: &str) -> &str {
    match line.strip_prefix("# ") {
        Some(comment) => comment.split_whitespace().nth(1).unwrap_or_default(),
        None => line.split(['{', ' ']).next().unwrap_or_default(),
    }
}

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// All samples of one metric in a text of the exposition format.
pub(crate) fn samples(text: &str, name: &str) -> Vec<Sample> {
    let of_metric = text
        .lines()
        .filter(|line| !line.starts_with('#') && metric_name(line) == name);
    of_metric
        .filter_map(|line| sample(&line[name.len()..]))
        .collect()
}

fn sample(rest: &str) -> Option<Sample> {
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    if let Some(mut inner) = rest.strip_prefix('{') {
        while !inner.starts_with('}') {
            let (key, after) = inner.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(key.trim_start_matches(',').trim().to_owned(), value);
            inner = after;
        }
        rest = &inner[1..];
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { labels, value })
}

/// The text up to the closing quote, without escapes, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => out.push('\n'),
                other => out.push(other),
            },
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_and_without_labels() {
        let text = "# HELP a_total Text\n# TYPE a counter\na_total{x=\"1\",y=\"say \\\"{}\\\"\"} 3\n\
                    a_total 4\nab_total 5\n";
        let all = samples(text, "a_total");
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].labels["y"], "say \"{}\"");
        assert!((all[0].value - 3.0).abs() < f64::EPSILON);
        assert!((all[1].value - 4.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_name_of_a_comment_counts() {
        assert_eq!(metric_name("# TYPE a_total counter"), "a_total");
        assert_eq!(metric_name("a_total{x=\"1\"} 3"), "a_total");
        assert_eq!(metric_name("# EOF"), "");
    }
}
