//! What to run for an image: there is no container runtime, so a container's
//! program comes from its `command`, from `images.yaml` in the directory, or from
//! `--image`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::engine::object::{list, text};

/// Name of the file that says what images run.
pub(crate) const FILE: &str = "images.yaml";

/// What an image runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Image {
    /// Its entry point.
    #[serde(default)]
    pub command: Vec<String>,
    /// Its default arguments.
    #[serde(default)]
    pub args: Vec<String>,
}

/// All known images, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Images {
    known: BTreeMap<String, Image>,
}

/// `images.yaml` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "{file}:{line}: {message}; expected a map of image names to {{command: [...], args: [...]}}"
)]
pub(crate) struct ImagesError {
    file: String,
    line: u64,
    message: String,
}

impl Images {
    /// Reads `images.yaml` of a directory, which need not exist, and adds what the
    /// command line said, which wins.
    pub(crate) fn read(
        directory: &Path,
        given: &BTreeMap<String, Vec<String>>,
    ) -> Result<Self, ImagesError> {
        let path = directory.join(FILE);
        let mut images = match std::fs::read_to_string(&path) {
            Ok(content) => Self::parse(&path.display().to_string(), &content)?,
            Err(_) => Self::default(),
        };
        images.add(given);
        Ok(images)
    }

    /// Only what the command line said.
    pub(crate) fn given(given: &BTreeMap<String, Vec<String>>) -> Self {
        let mut images = Self::default();
        images.add(given);
        images
    }

    fn add(&mut self, given: &BTreeMap<String, Vec<String>>) {
        for (name, command) in given {
            let image = Image {
                command: command.clone(),
                args: Vec::new(),
            };
            self.known.insert(name.clone(), image);
        }
    }

    fn parse(file: &str, content: &str) -> Result<Self, ImagesError> {
        let known: Option<BTreeMap<String, Image>> =
            serde_saphyr::from_str(content).map_err(|error| ImagesError {
                file: file.to_owned(),
                line: error.location().map_or(1, |location| location.line()),
                message: error
                    .to_string()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            })?;
        Ok(Self {
            known: known.unwrap_or_default(),
        })
    }

    /// The image of that name; without its tag or digest when the name itself is
    /// not known.
    fn find(&self, image: &str) -> Option<&Image> {
        let untagged = image.split('@').next().unwrap_or(image);
        let untagged = match untagged.rsplit_once(':') {
            // A colon before a slash belongs to the registry's port.
            Some((name, tag)) if !tag.contains('/') => name,
            _ => untagged,
        };
        self.known.get(image).or_else(|| self.known.get(untagged))
    }

    /// Program and arguments of a container.
    ///
    /// # Errors
    /// Names the field and the ways to mend it.
    pub(crate) fn command(&self, container: &Value, field: &str) -> Result<Vec<String>, String> {
        let strings = |pointer: &str| -> Vec<String> {
            list(container, pointer)
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        let (mut command, args) = (strings("/command"), strings("/args"));
        if !command.is_empty() {
            command.extend(args);
            return Ok(command);
        }
        let image = text(container, "/image").unwrap_or_default();
        let known = self.find(image).filter(|known| !known.command.is_empty());
        let Some(known) = known else {
            return Err(format!(
                "{field}.command: not set, and it is not known what image {image:?} runs; expected \
                 a command here, or an entry `{image}: {{command: [...]}}` in {FILE}, or \
                 --image {image}=COMMAND"
            ));
        };
        command.clone_from(&known.command);
        command.extend(if args.is_empty() {
            known.args.clone()
        } else {
            args
        });
        Ok(command)
    }
}

/// One `--image NAME=COMMAND`; the command is split at spaces.
///
/// # Errors
/// When there is no name or no command.
pub(crate) fn parse_image(argument: &str) -> Result<(String, Vec<String>), String> {
    let (name, command) = argument
        .split_once('=')
        .filter(|(name, command)| !name.is_empty() && !command.trim().is_empty())
        .ok_or_else(|| format!("{argument:?}: expected NAME=COMMAND"))?;
    Ok((
        name.to_owned(),
        command.split_whitespace().map(str::to_owned).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn images() -> Images {
        let content = "nginx: {command: [nginx], args: [-g, daemon off;]}\n\
                       example.org:5000/web:2: {command: [web2]}\n";
        Images::parse("images.yaml", content).expect("good")
    }

    fn check(container: &Value, expect: Result<&[&str], &str>) {
        let found = images().command(container, "spec.containers[0]");
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
            (found, _) => panic!("{container}: {found:?}"),
        }
    }

    #[test]
    fn commands() {
        check(
            &json!({"image": "x", "command": ["a"], "args": ["b"]}),
            Ok(&["a", "b"]),
        );
        check(
            &json!({"image": "nginx:1.27"}),
            Ok(&["nginx", "-g", "daemon off;"]),
        );
        check(
            &json!({"image": "nginx", "args": ["-t"]}),
            Ok(&["nginx", "-t"]),
        );
        check(
            &json!({"image": "nginx@sha256:00"}),
            Ok(&["nginx", "-g", "daemon off;"]),
        );
        check(&json!({"image": "example.org:5000/web:2"}), Ok(&["web2"]));
        check(&json!({"image": "redis:7"}), Err("--image redis:7=COMMAND"));
        check(
            &json!({"image": "redis:7"}),
            Err("spec.containers[0].command"),
        );
    }

    #[test]
    fn a_bad_file_names_its_line() {
        let error = Images::parse("images.yaml", "nginx:\n  comand: [x]\n").expect_err("bad");
        assert!(error.to_string().starts_with("images.yaml:"), "{error}");
    }

    #[test]
    fn arguments() {
        let (name, command) = parse_image("web=python3 -m http.server").expect("good");
        assert_eq!((name.as_str(), command.len()), ("web", 3));
        assert!(parse_image("web").is_err());
        assert!(parse_image("web= ").is_err());
    }
}
