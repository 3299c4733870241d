use std::fs;

use super::*;

struct Directory {
    directory: tempfile::TempDir,
    files: Files,
}

impl Directory {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            files: Files::default(),
        }
    }

    /// Writes (or removes) a file and gives the events in words.
    fn write(&mut self, name: &str, text: Option<&str>) -> Vec<String> {
        let path = self.directory.path().join(name);
        match text {
            Some(text) => {
                // A new file each time, so that the stamp differs.
                let _ = fs::remove_file(&path);
                fs::write(&path, text).unwrap();
            }
            None => fs::remove_file(&path).unwrap(),
        }
        let mut events = Vec::new();
        self.files.refresh(&path, &mut events);
        let mut words: Vec<_> = events.iter().map(words).collect();
        words.sort_unstable();
        words
    }
}

fn words(event: &Event) -> String {
    match event {
        Event::Upsert(object) => {
            let labels = object.meta().labels.clone().unwrap_or_default();
            let version = labels.get("v").cloned().unwrap_or_default();
            format!("upsert {}{version}", object.name())
        }
        Event::Broken { key, .. } => format!("broken {}", key.name),
        Event::Delete(key) => format!("delete {}", key.name),
    }
}

fn namespace(name: &str, version: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{v: '{version}'}}}}\n---\n"
    )
}

#[test]
fn changes_become_events_of_what_changed() {
    let mut dir = Directory::new();
    let two = namespace("a", "1") + &namespace("b", "1");
    assert_eq!(dir.write("x.yaml", Some(&two)), ["upsert a1", "upsert b1"]);
    assert_eq!(dir.write("x.yaml", Some(&two)), [""; 0]);
    let changed = namespace("a", "2") + &namespace("b", "1");
    assert_eq!(dir.write("x.yaml", Some(&changed)), ["upsert a2"]);
    assert_eq!(
        dir.write("x.yaml", Some(&namespace("b", "1"))),
        ["delete a"]
    );
    assert_eq!(dir.write("x.yaml", None), ["delete b"]);
    assert!(dir.files.holders.is_empty() && dir.files.files.is_empty());
}

#[test]
fn a_broken_object_is_named_and_its_neighbours_go_on() {
    let mut dir = Directory::new();
    let two = namespace("a", "1") + &namespace("b", "1");
    dir.write("x.yaml", Some(&two));
    let broken = namespace("a", "/!") + &namespace("b", "2");
    assert_eq!(
        dir.write("x.yaml", Some(&broken)),
        ["broken a", "upsert b2"]
    );
    assert!(dir.files.faults()[0].contains("Namespace a: metadata.labels.v"));
    // The same as before the break: it has to be said again.
    assert_eq!(dir.write("x.yaml", Some(&two)), ["upsert a1", "upsert b1"]);
    assert_eq!(dir.files.faults(), [""; 0]);
}

#[test]
fn what_cannot_be_named_keeps_all_of_the_file() {
    let mut dir = Directory::new();
    let two = namespace("a", "1") + &namespace("b", "1");
    dir.write("x.yaml", Some(&two));
    let broken = "apiVersion: v1\nkind: {{\n---\n".to_owned() + &namespace("b", "2");
    assert_eq!(
        dir.write("x.yaml", Some(&broken)),
        ["broken a", "upsert b2"]
    );
    assert_eq!(dir.write("x.yaml", Some("")), ["broken a", "broken b"]);
    assert!(dir.files.faults()[0].contains("delete it"));
    assert_eq!(dir.write("x.yaml", None), ["delete a", "delete b"]);
}

#[test]
fn the_first_file_with_an_object_counts() {
    let mut dir = Directory::new();
    dir.write("b.yaml", Some(&namespace("a", "b")));
    assert_eq!(
        dir.write("a.yaml", Some(&namespace("a", "a"))),
        ["upsert aa"]
    );
    assert!(dir.files.faults()[0].contains("several files"));
    assert_eq!(dir.write("b.yaml", Some(&namespace("a", "c"))), [""; 0]);
    assert_eq!(dir.write("a.yaml", None), ["upsert ac"]);
    assert_eq!(dir.files.faults(), [""; 0]);
}
