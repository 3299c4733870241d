//! Runs tests that share an expensive setup, and reports as `cargo test` does.
//!
//! A test binary with `harness = false` makes a [`Suite`], runs its groups and
//! finishes. A group is set up only when one of its tests is wanted; its state is
//! dropped (a mesh is taken down) before the next group begins. Suites of
//! different binaries wait for each other: they would disturb each other's timing.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use tokio::time::Instant;

const LOCK: &str = "/run/lock/culvert-tests";

/// One test of a group whose state is a `T`.
pub type Test<T> = (&'static str, fn(&T) -> Result<()>);

/// The tests of one level.
#[derive(Debug)]
pub struct Suite {
    options: Options,
    passed: usize,
    failed: Vec<String>,
    filtered: usize,
    begin: Instant,
    _lock: Option<Flock<File>>,
}

#[derive(Debug, Default)]
struct Options {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
    values: Vec<(String, String)>,
}

impl Suite {
    /// Reads the arguments of `cargo test`, waits for other suites and checks
    /// that the tests can run at all.
    ///
    /// # Errors
    /// When this user may not make network namespaces, with the remedy.
    pub fn start(level: &str) -> Result<Self> {
        let options = Options::parse(std::env::args().skip(1));
        let lock = if options.list {
            None
        } else {
            Some(prepare(level)?)
        };
        println!("\nrunning the tests of level {level}");
        Ok(Self {
            options,
            passed: 0,
            failed: Vec::new(),
            filtered: 0,
            begin: Instant::now(),
            _lock: lock,
        })
    }

    /// The value of `--NAME VALUE` among the arguments.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        let (_, value) = self.options.values.iter().find(|(key, _)| key == name)?;
        Some(value)
    }

    /// Runs a group: its setup once, then its tests in order.
    pub fn group<T>(&mut self, name: &str, setup: impl FnOnce() -> Result<T>, tests: &[Test<T>]) {
        let full = |test: &str| format!("{name}::{test}");
        let wanted: Vec<_> = tests
            .iter()
            .filter(|(test, _)| self.options.wants(&full(test)))
            .collect();
        self.filtered += tests.len() - wanted.len();
        if self.options.list {
            wanted
                .iter()
                .for_each(|(test, _)| println!("{}: test", full(test)));
            return;
        }
        if wanted.is_empty() {
            return;
        }
        let state = match caught(setup) {
            Ok(state) => state,
            Err(error) => {
                for (test, _) in wanted {
                    self.record(
                        &full(test),
                        Instant::now(),
                        Err(anyhow::anyhow!("{error:#}")),
                    );
                }
                return;
            }
        };
        for (test, body) in wanted {
            let begin = Instant::now();
            let outcome = caught(|| body(&state));
            self.record(&full(test), begin, outcome);
        }
    }

    fn record(&mut self, name: &str, begin: Instant, outcome: Result<()>) {
        let time = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("test {name} ... ok ({time:.1} s)");
            }
            Err(error) => {
                println!(
                    "test {name} ... FAILED ({time:.1} s)\n    {}\n",
                    indent(&error)
                );
                self.failed.push(name.to_owned());
            }
        }
    }

    /// Prints the summary and gives the exit code.
    #[must_use]
    pub fn finish(self) -> ExitCode {
        if self.options.list {
            return ExitCode::SUCCESS;
        }
        if !self.failed.is_empty() {
            println!("\nfailures:\n    {}", self.failed.join("\n    "));
        }
        let word = if self.failed.is_empty() {
            "ok"
        } else {
            "FAILED"
        };
        println!(
            "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; \
             finished in {:.2}s\n",
            self.passed,
            self.failed.len(),
            self.filtered,
            self.begin.elapsed().as_secs_f64()
        );
        if self.failed.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn prepare(level: &str) -> Result<Flock<File>> {
    culvert_netns::Netns::create().with_context(|| {
        format!("level {level} makes network namespaces: run it as root (make test-netns)")
    })?;
    let file = File::create(LOCK).context(LOCK)?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .context(LOCK)
}

fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(anyhow::anyhow!("panicked: {}", text.unwrap_or_default()))
        }
    }
}

fn indent(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', "\n    ")
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut options = Self::default();
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix("--") else {
                if !argument.starts_with('-') {
                    options.filters.push(argument);
                }
                continue;
            };
            match flag {
                "exact" => options.exact = true,
                "list" => options.list = true,
                // Flags of cargo's own harness that change nothing here.
                "nocapture" | "no-capture" | "include-ignored" | "quiet" | "show-output" => {}
                "skip" => options.skips.extend(arguments.next()),
                _ => {
                    let (name, value) = match flag.split_once('=') {
                        Some((name, value)) => (name.to_owned(), value.to_owned()),
                        None => (flag.to_owned(), arguments.next().unwrap_or_default()),
                    };
                    options.values.push((name, value));
                }
            }
        }
        options
    }

    fn wants(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            if self.exact {
                name == filter
            } else {
                name.contains(filter.as_str())
            }
        };
        let wanted = self.filters.is_empty() || self.filters.iter().any(matches);
        wanted && !self.skips.iter().any(|skip| name.contains(skip.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Options {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn filters_as_cargo_test_does() {
        assert!(parse("").wants("programs::redis"));
        assert!(parse("redis").wants("programs::redis"));
        assert!(!parse("redis --exact").wants("programs::redis"));
        assert!(parse("--exact programs::redis").wants("programs::redis"));
        assert!(!parse("--skip redis").wants("programs::redis"));
        assert!(parse("--test-threads 1 --nocapture").wants("programs::redis"));
    }

    #[test]
    fn values_are_taken_by_name() {
        let options = parse("--kills 20 --nocapture chaos --format=pretty");
        assert_eq!(options.values[0], ("kills".to_owned(), "20".to_owned()));
        assert_eq!(
            options.values[1],
            ("format".to_owned(), "pretty".to_owned())
        );
        assert_eq!(options.filters, ["chaos"]);
    }
}
