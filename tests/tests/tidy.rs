//! Rules of the tree: see `culvert_tests::rules`.

use std::path::PathBuf;

use culvert_tests::harness::binaries;
use culvert_tests::rules::{self, Program};

fn none(what: &str, violations: anyhow::Result<Vec<String>>) {
    let violations = violations.expect("the tree can be read");
    assert!(
        violations.is_empty(),
        "{what}:\n  {}",
        violations.join("\n  ")
    );
}

#[test]
fn crates_depend_only_on_what_the_graph_allows() {
    none("layering", rules::layering());
}

#[test]
fn files_can_be_read_from_top_to_bottom() {
    none("long files", rules::file_lengths());
}

#[test]
fn names_say_something() {
    none("names", rules::words());
}

#[test]
fn unsafe_code_notes_and_pauses_are_where_they_may_be() {
    none("places", rules::places());
}

fn read(path: &str) -> String {
    let path: PathBuf = binaries::repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `make docs` writes it anew.
#[test]
fn the_config_page_is_current() {
    let programs = [
        Program {
            name: "culvert-node-proxy",
            variables: culvert_node_proxy::config::VARIABLES,
        },
        Program {
            name: "culvert-discovery",
            variables: culvert_discovery::config::VARIABLES,
        },
        Program {
            name: "culvert-ca",
            variables: culvert_ca::config::VARIABLES,
        },
        Program {
            name: "culvert-cni agent",
            variables: culvert_cni::config::VARIABLES,
        },
    ];
    let expected = rules::config_page(&programs);
    assert!(
        read("docs/config.md") == expected,
        "docs/config.md is old: run `make docs`"
    );
}

/// A promise whose test does not exist any more is not a promise.
#[test]
fn every_promise_names_a_test_that_exists() {
    let specification = read("docs/specification.md");
    let mut sources = String::new();
    for file in [
        "tests/tests/netns",
        "tests/tests/chaos",
        "tests/tests/interop",
        "tests/src/bin",
    ] {
        for entry in std::fs::read_dir(binaries::repository().join(file)).expect(file) {
            let path = entry.expect(file).path();
            if path.is_file() {
                sources.push_str(&std::fs::read_to_string(path).expect(file));
            }
        }
    }
    let rows: Vec<&str> = specification
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'))
        .collect();
    assert!(rows.len() >= 10, "only {} promises", rows.len());
    for row in rows {
        let proof = row
            .trim_end_matches([' ', '|'])
            .rsplit('|')
            .next()
            .unwrap_or_default();
        let named = proof.split('`').skip(1).step_by(2);
        for name in named {
            let last = name.rsplit("::").next().unwrap_or(name);
            let known = name.starts_with("make ")
                || name.starts_with("cargo ")
                || sources.contains(&format!("\"{last}\""))
                || std::fs::exists(binaries::repository().join(name)).unwrap_or(false)
                || test_in_crates(last);
            assert!(known, "no test `{name}`, named in\n{row}");
        }
    }
}

fn test_in_crates(name: &str) -> bool {
    let needle = format!("fn {name}(");
    let output = std::process::Command::new("grep")
        .args(["-rqF", "--include=*.rs", &needle, "."])
        .current_dir(binaries::repository())
        .args(["--exclude-dir=target"])
        .status();
    output.is_ok_and(|status| status.success())
}
