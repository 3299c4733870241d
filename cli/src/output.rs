//! Tables and ages as kubectl prints them: plain columns, no lines, no colours.

use std::io::{IsTerminal, Write};
use std::time::{Duration, SystemTime};

use serde_json::Value;

/// Blanks between two columns.
const GAP: usize = 3;

/// A table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this heading.
    pub(crate) fn new<T: Into<String>>(heading: impl IntoIterator<Item = T>) -> Self {
        Self {
            rows: vec![heading.into_iter().map(Into::into).collect()],
        }
    }

    /// Adds a row. Empty cells become `<none>`.
    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let fill = |cell: T| {
            let cell: String = cell.into();
            if cell.is_empty() {
                "<none>".to_owned()
            } else {
                cell
            }
        };
        self.rows.push(cells.into_iter().map(fill).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let pad = width + GAP - cell.chars().count();
                line.push_str(cell);
                line.push_str(&" ".repeat(pad));
            }
            writeln!(formatter, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Prints to the standard output; a reader that went away is no error.
pub(crate) fn print(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "{text}");
    let _ = out.flush();
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &Value) {
    print(format!("{value:#}\n"));
}

/// A value as YAML.
pub(crate) fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|error| format!("# {error}\n"))
}

/// Whether a person watches.
pub(crate) fn is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// A time span as kubectl prints it.
pub(crate) fn human(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if !seconds.is_multiple_of(60) => format!("{}m{}s", seconds / 60, seconds % 60),
        120..10_800 => format!("{}m", seconds / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Age of an object.
pub(crate) fn age(object: &Value) -> String {
    crate::engine::object::age(object, "/metadata/creationTimestamp", SystemTime::now())
        .map(human)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_do_not_end_in_blanks() {
        let mut table = Table::new(["NAME", "READY"]);
        table.row(["a-long-name", ""]);
        table.row(["b", "1/1"]);
        assert_eq!(
            table.to_string(),
            "NAME          READY\na-long-name   <none>\nb             1/1\n"
        );
    }

    #[test]
    fn ages() {
        let check = |seconds, expect: &str| assert_eq!(human(Duration::from_secs(seconds)), expect);
        check(0, "0s");
        check(119, "119s");
        check(130, "2m10s");
        check(600, "10m");
        check(7200, "120m");
        check(11_000, "3h");
        check(200_000, "2d");
    }
}
