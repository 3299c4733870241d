//! Documents that are made from code, or checked against it.

use culvert_runtime::config::{PROCESS, Variable, markdown};

/// A program and its variables.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// What it takes besides the variables of every program.
    pub variables: &'static [Variable],
}

/// The whole of `docs/config.md`.
#[must_use]
pub fn config_page(programs: &[Program]) -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Static configuration is read once, at start, from the environment. All faults are reported\n\
         together, each with the variable, its value and the expected form. A `CULVERT_*` variable\n\
         that a program does not know is a fault: a typing error must not pass unseen. (In Kubernetes\n\
         set `enableServiceLinks: false`, or a Service called `culvert-…` would add variables.)\n\
         Everything else is configured through objects. The configuration in force is at `/config` of\n\
         the admin port.\n\n\
         This page is written by `make docs` and checked by the test `the_config_page_is_current`.\n",
    );
    let mut section = |title: &str, table: &[Variable]| {
        page.push_str(&format!("\n## {title}\n\n{}", markdown(table)));
    };
    section("Every program", PROCESS);
    for program in programs {
        section(program.name, program.variables);
    }
    page
}

/// Names of metrics on a page of `/metrics` that a document does not have.
#[must_use]
pub fn undocumented_metrics(metrics: &str, document: &str) -> Vec<String> {
    let types = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| {
            let (name, kind) = line.split_once(' ')?;
            let name = match kind.trim() {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            };
            (!document.contains(&format!("`{name}`"))).then_some(name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_looked_for_with_their_suffix() {
        let page = "# HELP a_b B.\n# TYPE a_b counter\na_b_total 1\n# TYPE c gauge\nc 2\n# EOF\n";
        assert_eq!(undocumented_metrics(page, "| `a_b_total` | | |"), ["c"]);
        assert_eq!(undocumented_metrics(page, "`a_b` `c`"), ["a_b_total"]);
    }
}
