//! Static configuration: `CULVERT_*` variables, declared in a table, read once,
//! all faults reported together.
//!
//! A program declares its variables as `pub const VARIABLES: &[Variable]` in its
//! `config` module, builds a [`RawConfig`] from what `main` hands it, asks for
//! typed values and finishes. [`markdown`] prints the same tables for
//! `docs/config.md`, and a test compares the two.

mod process;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

pub use process::{PROCESS, ProcessConfig};
pub use value::ConfigValue;

const PREFIX: &str = "CULVERT_";

/// One variable: its name, the form of its value, its default and what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// `CULVERT_…`
    pub name: &'static str,
    /// The expected form in words, as faults and documentation show it.
    pub form: &'static str,
    /// What holds when it is not set.
    pub absent: Absent,
    /// What it is for: one line.
    pub about: &'static str,
}

/// What holds when a variable is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// It must be set.
    Required,
    /// It may be left out.
    Optional,
    /// This value.
    Default(&'static str),
}

impl Variable {
    /// A variable that must be set.
    #[must_use]
    pub const fn required(name: &'static str, form: &'static str, about: &'static str) -> Self {
        Self {
            name,
            form,
            absent: Absent::Required,
            about,
        }
    }

    /// A variable that may be left out: read it with [`RawConfig::optional`].
    #[must_use]
    pub const fn optional(name: &'static str, form: &'static str, about: &'static str) -> Self {
        Self {
            name,
            form,
            absent: Absent::Optional,
            about,
        }
    }

    /// A variable with a default value.
    #[must_use]
    pub const fn with_default(
        name: &'static str,
        form: &'static str,
        default: &'static str,
        about: &'static str,
    ) -> Self {
        Self {
            name,
            form,
            absent: Absent::Default(default),
            about,
        }
    }
}

/// The configuration as typed by the user, and the faults found so far.
#[derive(Debug)]
pub struct RawConfig {
    table: BTreeMap<&'static str, Variable>,
    values: BTreeMap<&'static str, String>,
    faults: Vec<Fault>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    name: String,
    text: String,
}

/// Everything that is wrong with the configuration, one line a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration has {} fault(s)", self.faults.len())?;
        for fault in &self.faults {
            write!(f, "\n  {}: {}", fault.name, fault.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl RawConfig {
    /// Takes the variables of `tables` out of an environment. A `CULVERT_*` name
    /// that no table holds is a fault: a typing error must not pass unseen.
    ///
    /// # Panics
    /// When two tables declare the same variable, a defect of the program.
    #[must_use]
    pub fn read<N, V>(
        tables: &[&'static [Variable]],
        environment: impl IntoIterator<Item = (N, V)>,
    ) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let mut table = BTreeMap::new();
        for variable in tables.iter().copied().flatten() {
            let before = table.insert(variable.name, *variable);
            assert!(
                before.is_none(),
                "invariant: {} is declared once",
                variable.name
            );
        }
        let mut raw = Self {
            table,
            values: BTreeMap::new(),
            faults: Vec::new(),
        };
        for (name, value) in environment {
            let name = name.into();
            if let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) {
                raw.take(name, value.into());
            }
        }
        raw
    }

    fn take(&mut self, name: &str, value: OsString) {
        let Some(variable) = self.table.get(name).copied() else {
            self.fault(name, "unknown variable".to_owned());
            return;
        };
        match value.into_string() {
            Ok(value) => drop(self.values.insert(variable.name, value)),
            Err(_) => self.fault(
                name,
                format!("value is not UTF-8, expected {}", variable.form),
            ),
        }
    }

    /// The value of a variable that is required or has a default. `None` means
    /// that a fault was noted.
    pub fn value<T: ConfigValue>(&mut self, name: &'static str) -> Option<T> {
        self.value_with(name, T::parse)
    }

    /// As [`RawConfig::value`], with a parser of the caller's own. The parser's
    /// error says what is wrong; the expected form comes from the table.
    pub fn value_with<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        match self.text(name) {
            Some(text) => self.parsed(name, &text, parse),
            None => {
                let form = self.variable(name).form;
                self.fault(name, format!("is required, expected {form}"));
                None
            }
        }
    }

    /// The value of a variable that may be left out. `None` means that a fault
    /// was noted, `Some(None)` that it is not set.
    pub fn optional<T: ConfigValue>(&mut self, name: &'static str) -> Option<Option<T>> {
        self.optional_with(name, T::parse)
    }

    /// As [`RawConfig::optional`], with a parser of the caller's own.
    pub fn optional_with<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Option<T>> {
        match self.text(name) {
            Some(text) => self.parsed(name, &text, parse).map(Some),
            None => Some(None),
        }
    }

    /// Whether the user set the variable.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Notes a fault that spans several variables or needs more than a parser.
    pub fn fault(&mut self, name: &str, text: String) {
        self.faults.push(Fault {
            name: name.to_owned(),
            text,
        });
    }

    /// Every variable with the value in force, for `/config`.
    #[must_use]
    pub fn effective(&self) -> serde_json::Value {
        let value = |variable: &Variable| self.text(variable.name).map(serde_json::Value::from);
        self.table
            .values()
            .map(|variable| {
                (
                    variable.name.to_owned(),
                    value(variable).unwrap_or_default(),
                )
            })
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// Ends the reading: the configuration, or all faults.
    ///
    /// # Errors
    /// All faults together.
    pub fn finish<C>(self, build: impl FnOnce() -> Option<C>) -> Result<C, ConfigError> {
        let built = if self.faults.is_empty() {
            build()
        } else {
            None
        };
        let mut faults = self.faults;
        faults.sort_by(|a, b| a.name.cmp(&b.name));
        built.ok_or(ConfigError { faults })
    }

    fn variable(&self, name: &str) -> Variable {
        *self
            .table
            .get(name)
            .expect("invariant: a program asks only for variables it declares")
    }

    fn text(&self, name: &'static str) -> Option<String> {
        match (self.values.get(name), self.variable(name).absent) {
            (Some(value), _) => Some(value.clone()),
            (None, Absent::Default(default)) => Some(default.to_owned()),
            (None, Absent::Required | Absent::Optional) => None,
        }
    }

    fn parsed<T>(
        &mut self,
        name: &'static str,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(text) {
            Ok(value) => Some(value),
            Err(wrong) => {
                let form = self.variable(name).form;
                let wrong = if wrong.is_empty() {
                    wrong
                } else {
                    format!(" ({wrong})")
                };
                self.fault(
                    name,
                    format!("`{text}` is not valid{wrong}, expected {form}"),
                );
                None
            }
        }
    }
}

/// The rows of `docs/config.md` for one table.
#[must_use]
pub fn markdown(table: &[Variable]) -> String {
    let mut rows = String::from("| variable | form | default | what for |\n|---|---|---|---|\n");
    for variable in table {
        let absent = match variable.absent {
            Absent::Required => "required".to_owned(),
            Absent::Optional => "not set".to_owned(),
            Absent::Default("") => "empty".to_owned(),
            Absent::Default(default) => format!("`{default}`"),
        };
        let form = variable.form.replace('|', "\\|");
        let row = format!(
            "| `{}` | {form} | {absent} | {} |\n",
            variable.name, variable.about
        );
        rows.push_str(&row);
    }
    rows
}

#[cfg(test)]
mod tests;
