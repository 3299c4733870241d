//! `culvert ca rotate`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use http::Method;
use serde_json::Value;

use super::certs::{authority_table, expiry};
use super::target::Target;
use crate::args::{Ca, Rotate};
use crate::engine::object::{number, text};
use crate::output::print;
use crate::state::StateDir;

/// Runs the command.
pub(crate) async fn run(args: &Ca, state: &StateDir) -> Result<ExitCode> {
    let Ca::Rotate { what, advance } = args;
    let target = Target::parse("ca", state)?;
    let wanted = match (what, advance) {
        (None, false) => None,
        (None, true) | (Some(Rotate::Root), true) => Some("root&advance=true"),
        (Some(Rotate::Root), false) => Some("root"),
        (Some(Rotate::Intermediate), _) => Some("intermediate"),
    };
    let answer = match wanted {
        None => target.admin(Method::GET, "/rotation").await?,
        Some(wanted) => {
            target
                .admin(Method::POST, &format!("/rotate?what={wanted}"))
                .await?
        }
    };
    let rotation: Value = serde_json::from_slice(&answer.body).context("answer of the CA")?;
    print(format!("{}\n", describe(&rotation)));
    print(authority_table(&rotation));
    Ok(ExitCode::SUCCESS)
}

fn describe(rotation: &Value) -> String {
    let step = text(rotation, "/step").unwrap_or_default();
    let meaning = match step {
        "steady" => "no rotation under way",
        "waiting" => "a new root is trusted and does not sign yet",
        "overlap" => "the new root signs, the old one is still trusted",
        _ => "",
    };
    let (until, left) = expiry(number(rotation, "/until_seconds"));
    let until = if until.is_empty() {
        String::new()
    } else {
        format!(" until {until} (in {left})")
    };
    format!("step: {step}: {meaning}{until}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_step_is_told_in_words() {
        assert_eq!(
            describe(&json!({"step": "steady"})),
            "step: steady: no rotation under way"
        );
        let waiting = describe(&json!({"step": "waiting", "until_seconds": 4_000_000_000_u64}));
        assert!(waiting.contains("until 2096-"), "{waiting}");
    }
}
