//! Rules about source text.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Lines of a file that are not its tests.
const LINES_MAX: usize = 600;
const ROOTS: &[&str] = &[
    "lib",
    "node-proxy",
    "discovery",
    "ca",
    "cni",
    "cli",
    "tests",
];
/// Words that name nothing: a type called so does too much or says too little.
const EMPTY_WORDS: &[&str] = &["Manager", "Helper", "Util", "Common", "Misc"];
const DECLARATIONS: &[&str] = &["struct ", "enum ", "trait ", "mod ", "type ", "fn "];

struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// The part before an in-file test module.
    fn shipped(&self) -> &str {
        self.text
            .find("#[cfg(test)]\nmod ")
            .map_or(&self.text, |at| &self.text[..at])
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests")
            || self.path.iter().any(|part| part == "tests")
            || self
                .path
                .file_name()
                .is_some_and(|name| name == "tests.rs" || name == "testing.rs")
    }

    fn at(&self, line: usize) -> String {
        format!("{}:{}", self.path.display(), line + 1)
    }
}

fn sources() -> Result<Vec<Source>> {
    let repository = crate::harness::binaries::repository();
    let mut found = Vec::new();
    for root in ROOTS {
        collect(&repository, Path::new(root), &mut found)?;
    }
    Ok(found)
}

fn collect(repository: &Path, directory: &Path, found: &mut Vec<Source>) -> Result<()> {
    let place = repository.join(directory);
    let entries = std::fs::read_dir(&place).with_context(|| place.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let path = directory.join(entry.file_name());
        if entry.path().is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(repository, &path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(entry.path())?;
            found.push(Source { path, text });
        }
    }
    Ok(())
}

/// Files that are too long to be read from top to bottom.
///
/// # Errors
/// When the tree cannot be read.
pub fn file_lengths() -> Result<Vec<String>> {
    let long = |source: &Source| {
        let lines = source.shipped().lines().count();
        let limit = !source.is_test() && lines > LINES_MAX;
        limit.then(|| {
            format!(
                "{}: {lines} lines, at most {LINES_MAX}",
                source.path.display()
            )
        })
    };
    Ok(sources()?.iter().filter_map(long).collect())
}

/// Names that style does not allow.
///
/// # Errors
/// When the tree cannot be read.
pub fn words() -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for source in sources()? {
        for (number, line) in source.text.lines().enumerate() {
            if let Some(word) = bad_name(line) {
                violations.push(format!("{}: `{word}`", source.at(number)));
            }
        }
    }
    Ok(violations)
}

fn bad_name(line: &str) -> Option<String> {
    let line = line.trim_start();
    let line = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async "]
        .iter()
        .fold(line, |line, word| line.strip_prefix(word).unwrap_or(line));
    let rest = DECLARATIONS
        .iter()
        .find_map(|declaration| line.strip_prefix(declaration))?;
    let name: String = rest
        .chars()
        .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
        .collect();
    let empty = EMPTY_WORDS.iter().any(|word| {
        name.contains(word) || name.split('_').any(|part| part.eq_ignore_ascii_case(word))
    });
    let function = line.starts_with("fn ");
    let bad = if function {
        // The library's own idiom for "or make it" is fine.
        name.starts_with("get_") && !name.starts_with("get_or_")
    } else {
        empty
    };
    bad.then_some(name)
}

/// Things in places where they may not be: unsafe code, skipped tests, notes
/// without an issue, a fixed pause in a test.
///
/// # Errors
/// When the tree cannot be read.
pub fn places() -> Result<Vec<String>> {
    // In two pieces, so that this file does not find itself.
    let skipped = concat!("#[ign", "ore");
    let notes = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ];
    let pause = concat!("thread::sl", "eep(");
    let unsafe_code = [
        concat!("uns", "afe {"),
        concat!("uns", "afe fn"),
        concat!("uns", "afe impl"),
    ];
    let mut violations = Vec::new();
    for source in sources()? {
        let netns = source.path.starts_with("lib/netns");
        let may_pause = source.path.starts_with("tests/src/harness")
            || source.path.starts_with("tests/src/kit")
            || source.path.starts_with("tests/src/bin");
        for (number, line) in source.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let mut found = |what: &str| violations.push(format!("{}: {what}", source.at(number)));
            if !netns && unsafe_code.iter().any(|form| code.contains(form)) {
                found("unsafe code outside lib/netns");
            }
            if code.contains(skipped) {
                found("a test that is not run");
            }
            if notes.iter().any(|note| line.contains(note)) && !line.contains('#') {
                found("a note without an issue");
            }
            if source.is_test() && !may_pause && code.contains(pause) {
                found("a fixed pause in a test: use wait_for");
            }
        }
    }
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_words_and_getters_are_found() {
        assert_eq!(
            bad_name("pub struct PodManager {"),
            Some("PodManager".to_owned())
        );
        assert_eq!(bad_name("mod util;"), Some("util".to_owned()));
        assert_eq!(
            bad_name("    pub fn get_name(&self)"),
            Some("get_name".to_owned())
        );
        assert_eq!(bad_name("pub struct Pods {"), None);
        assert_eq!(bad_name("let manager = 1;"), None);
        assert_eq!(bad_name("pub fn utility() {}"), None);
    }
}
