//! Whether a pod is in the mesh: the node's agent writes it down, the engine shows
//! it on the Pod, as an annotation and as a condition.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::object::{Key, annotation, condition, labels, list, set, text, timestamp, uid};
use super::world::Store;

/// Annotation and condition.
pub(crate) const ENROLLED: &str = "culvert.dev/enrolled";
/// How often the agents' files are read; they are few and on a memory file system.
const POLL: Duration = Duration::from_millis(300);

/// Label of a pod, or of its namespace, that puts it into the mesh.
const LABEL: &str = "culvert.dev/mesh";

/// Whether the labels put a pod into the mesh: its own win over its namespace's.
pub(crate) fn is_wanted(pod: &Value, namespace: Option<&Value>) -> bool {
    if pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
        return false;
    }
    let own = labels(pod).get(LABEL).copied();
    let inherited = || labels(namespace?).get(LABEL).copied();
    own.or_else(inherited) == Some("enabled")
}

/// What an agent says of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Word {
    uid: String,
    enrolled: bool,
    message: String,
}

/// Merges what the agents write into the pods, for good.
pub(crate) async fn run(store: Store, directories: Vec<PathBuf>) {
    loop {
        let words = read(&directories);
        for pod in store.snapshot().of_kind("Pod") {
            let key = Key::of(pod);
            let word = words.get(&(key.namespace.clone(), key.name.clone()));
            let word = word.filter(|word| word.uid.is_empty() || word.uid == uid(pod));
            if differs(pod, word) {
                store.modify(&key, |pod| write(pod, word));
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

fn read(directories: &[PathBuf]) -> BTreeMap<(String, String), Word> {
    let files = directories
        .iter()
        .filter_map(|directory| std::fs::read_dir(directory).ok())
        .flatten();
    files
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name();
            let (namespace, name) = file.to_str()?.strip_suffix(".json")?.split_once('.')?;
            let value: Value = serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok()?;
            let word = Word {
                uid: text(&value, "/uid").unwrap_or_default().to_owned(),
                enrolled: enrolled(&value),
                message: text(&value, "/message")
                    .or_else(|| text(&value, "/reason"))
                    .unwrap_or_default()
                    .to_owned(),
            };
            Some(((namespace.to_owned(), name.to_owned()), word))
        })
        .collect()
}

/// The agent writes a plain boolean, or the annotation as it should stand.
fn enrolled(value: &Value) -> bool {
    value
        .get("enrolled")
        .and_then(Value::as_bool)
        .unwrap_or_else(|| {
            annotation(value, ENROLLED)
                .or_else(|| value.get("annotations")?.get(ENROLLED)?.as_str())
                == Some("true")
        })
}

fn differs(pod: &Value, word: Option<&Word>) -> bool {
    let wanted = word.is_some_and(|word| word.enrolled);
    let shown = annotation(pod, ENROLLED) == Some("true");
    let held = condition(pod, ENROLLED);
    shown != wanted || (word.is_some() && held != Some(if wanted { "True" } else { "False" }))
}

fn write(pod: &mut Value, word: Option<&Word>) {
    let enrolled = word.is_some_and(|word| word.enrolled);
    if enrolled {
        set(pod, &["metadata", "annotations", ENROLLED], json!("true"));
    } else if let Some(all) = pod
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        all.remove(ENROLLED);
    }
    let others = list(pod, "/status/conditions")
        .iter()
        .filter(|one| text(one, "/type") != Some(ENROLLED));
    let mut conditions: Vec<_> = others.cloned().collect();
    if let Some(word) = word {
        conditions.push(json!({
            "type": ENROLLED,
            "status": if enrolled { "True" } else { "False" },
            "reason": if enrolled { "Enrolled" } else { "NotEnrolled" },
            "message": word.message,
            "lastTransitionTime": timestamp(SystemTime::now()),
        }));
    }
    set(pod, &["status", "conditions"], Value::Array(conditions));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_own_label_wins() {
        let namespace = json!({"metadata": {"labels": {LABEL: "enabled"}}});
        let check = |pod: &Value, expect: bool| {
            assert_eq!(is_wanted(pod, Some(&namespace)), expect, "{pod}");
        };
        check(&json!({}), true);
        check(&json!({"metadata": {"labels": {LABEL: "disabled"}}}), false);
        check(&json!({"spec": {"hostNetwork": true}}), false);
        assert!(!is_wanted(&json!({}), None));
        assert!(is_wanted(
            &json!({"metadata": {"labels": {LABEL: "enabled"}}}),
            None
        ));
    }

    #[test]
    fn the_pod_shows_what_the_agent_wrote() {
        let directory = tempfile::tempdir().expect("directory");
        std::fs::write(
            directory.path().join("shop.web.json"),
            r#"{"uid": "u", "enrolled": true}"#,
        )
        .expect("written");
        let words = read(&[directory.path().to_owned()]);
        let word = words.get(&("shop".to_owned(), "web".to_owned()));
        let mut pod = json!({"kind": "Pod", "metadata": {"uid": "u"}});
        assert!(differs(&pod, word));
        write(&mut pod, word);
        assert_eq!(annotation(&pod, ENROLLED), Some("true"));
        assert_eq!(condition(&pod, ENROLLED), Some("True"));
        assert!(!differs(&pod, word));
        assert!(differs(&pod, None), "the file is gone");
        write(&mut pod, None);
        assert_eq!(
            (annotation(&pod, ENROLLED), condition(&pod, ENROLLED)),
            (None, None)
        );
    }
}
