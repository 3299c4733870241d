//! Writes what became of objects, as files beside the objects: the body of a
//! merge patch on the status subresource. Written only when it says something
//! new, so that a watcher of the files is not woken for nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use culvert_api::policy::{AncestorStatus, CONTROLLER_NAME, PolicyCondition, PolicyStatus};
use culvert_kubeyaml::Kind;
use culvert_runtime::chain;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    compile::{Condition, ObjectStatus, StatusShape},
    metrics::DiscoveryMetrics,
    watch::ObjectKey,
};

/// A status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write status file {path}")]
pub struct StatusError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Writes statuses to a directory.
#[derive(Debug)]
pub struct StatusWriter {
    directory: PathBuf,
    metrics: DiscoveryMetrics,
    written: BTreeMap<ObjectKey, ObjectStatus>,
    cleaned: bool,
}

impl StatusWriter {
    /// Writes to `<directory>/<Kind>/<namespace>.<name>.json`.
    pub fn new(directory: PathBuf, metrics: DiscoveryMetrics) -> Self {
        Self {
            directory,
            metrics,
            written: BTreeMap::new(),
            cleaned: false,
        }
    }

    /// Makes the files say what `statuses` says. What cannot be written is
    /// logged, and tried again with the next call.
    pub fn write(&mut self, statuses: &BTreeMap<ObjectKey, ObjectStatus>, now: SystemTime) {
        for (key, status) in statuses {
            if self.written.get(key) == Some(status) {
                continue;
            }
            match self.write_one(key, status, now) {
                Ok(()) => {
                    self.written.insert(key.clone(), status.clone());
                }
                Err(error) => self.failed(&error),
            }
        }
        let gone: Vec<_> = self
            .written
            .keys()
            .filter(|key| !statuses.contains_key(key))
            .cloned()
            .collect();
        for key in gone {
            match remove(&self.path(&key)) {
                Ok(()) => {
                    self.written.remove(&key);
                }
                Err(error) => self.failed(&error),
            }
        }
        if !self.cleaned {
            self.clean(statuses);
            self.cleaned = true;
        }
    }

    fn failed(&self, error: &StatusError) {
        self.metrics.status_write_failed();
        tracing::error!(error = chain(error), "status not written");
    }

    fn path(&self, key: &ObjectKey) -> PathBuf {
        self.directory.join(key.kind.name()).join(file_name(key))
    }

    fn write_one(
        &self,
        key: &ObjectKey,
        status: &ObjectStatus,
        now: SystemTime,
    ) -> Result<(), StatusError> {
        let path = self.path(key);
        let failed = |source| StatusError {
            path: path.clone(),
            source,
        };
        let before = fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let body = body(status, before.as_ref(), now);
        if before.as_ref() == Some(&body) {
            return Ok(());
        }
        let directory = self.directory.join(key.kind.name());
        fs::create_dir_all(&directory).map_err(failed)?;
        // Hidden until it is whole.
        let temporary = directory.join(format!(".{}.tmp", file_name(key)));
        let text = format!("{body:#}\n");
        fs::write(&temporary, text).map_err(failed)?;
        fs::rename(&temporary, &path).map_err(failed)
    }

    /// Files of objects that went away while nobody looked.
    fn clean(&self, statuses: &BTreeMap<ObjectKey, ObjectStatus>) {
        for kind in Kind::ALL {
            let kept: BTreeSet<_> = statuses
                .keys()
                .filter(|key| key.kind == *kind)
                .map(file_name)
                .collect();
            let Ok(entries) = fs::read_dir(self.directory.join(kind.name())) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if !kept.contains(&name)
                    && is_status(&entry.path())
                    && let Err(error) = remove(&entry.path())
                {
                    self.failed(&error);
                }
            }
        }
    }
}

/// Whether a file is one of ours: nothing else may be lost.
fn is_status(path: &Path) -> bool {
    let content = fs::read(path).ok();
    let value = content.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let fields = value.as_ref().and_then(Value::as_object);
    fields.is_some_and(|fields| fields.len() == 1 && fields.contains_key("status"))
}

fn file_name(key: &ObjectKey) -> String {
    let namespace = if key.namespace.is_empty() {
        "_"
    } else {
        &key.namespace
    };
    format!("{namespace}.{}.json", key.name)
}

fn remove(path: &Path) -> Result<(), StatusError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StatusError {
            path: path.to_path_buf(),
            source: error,
        }),
        _ => Ok(()),
    }
}

/// The file's content. A condition that says the same as before keeps the time
/// at which it began to.
fn body(status: &ObjectStatus, before: Option<&Value>, now: SystemTime) -> Value {
    let since = before.map(transitions).unwrap_or_default();
    let conditions = |ancestor: &str, conditions: &[Condition]| -> Vec<PolicyCondition> {
        let conditions = conditions.iter();
        conditions
            .map(|condition| {
                let holds = if condition.holds { "True" } else { "False" };
                let key = (
                    ancestor.to_owned(),
                    condition.kind.to_owned(),
                    holds.to_owned(),
                );
                PolicyCondition {
                    kind: condition.kind.to_owned(),
                    status: holds.to_owned(),
                    observed_generation: status.generation,
                    last_transition_time: since.get(&key).cloned().unwrap_or_else(|| rfc3339(now)),
                    reason: condition.reason.to_owned(),
                    message: condition.message.clone(),
                }
            })
            .collect()
    };
    match &status.shape {
        StatusShape::Plain(plain) => json!({"status": {"conditions": conditions("", plain)}}),
        StatusShape::Ancestors(ancestors) => {
            let ancestors = ancestors.iter().map(|entry| {
                let name = format!("{}/{}", entry.ancestor.kind, entry.ancestor.name);
                AncestorStatus {
                    ancestor_ref: entry.ancestor.clone(),
                    controller_name: CONTROLLER_NAME.to_owned(),
                    conditions: conditions(&name, &entry.conditions),
                }
            });
            let status = PolicyStatus {
                ancestors: ancestors.collect(),
            };
            json!({"status": status})
        }
    }
}

/// Since when each condition of a file holds or does not: by ancestor, type
/// and status.
fn transitions(before: &Value) -> HashMap<(String, String, String), String> {
    let mut found = HashMap::new();
    let mut note = |ancestor: &str, conditions: &Value| {
        for condition in conditions.as_array().into_iter().flatten() {
            let text = |key: &str| condition[key].as_str().map(str::to_owned);
            if let (Some(kind), Some(status), Some(time)) =
                (text("type"), text("status"), text("lastTransitionTime"))
            {
                found.insert((ancestor.to_owned(), kind, status), time);
            }
        }
    };
    let status = &before["status"];
    note("", &status["conditions"]);
    for ancestor in status["ancestors"].as_array().into_iter().flatten() {
        let reference = &ancestor["ancestorRef"];
        let text = |key: &str| reference[key].as_str().unwrap_or_default();
        let name = format!("{}/{}", text("kind"), text("name"));
        note(&name, &ancestor["conditions"]);
    }
    found
}

fn rfc3339(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds)
        .unwrap_or(Timestamp::UNIX_EPOCH)
        .to_string()
}

#[cfg(test)]
mod tests;
