//! Reads files and directory trees within limits.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    decode::{Lines, Loaded, decode_document},
    fault::{Fault, FaultReason, Location, ObjectRef, Severity},
    path::FieldPath,
    split, tree,
};

/// Bounds on what is read.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a file. 16 MiB: ten times the largest object that etcd takes.
    pub file_bytes_max: u64,
    /// Documents of a file, so that a stray `---` flood ends.
    pub documents_max: usize,
    /// Files of a directory tree: twice the largest cluster that is planned for.
    pub files_max: usize,
    /// Nested directories, so that a loop of links ends.
    pub depth_max: usize,
    /// File names that are not objects and are left to their reader.
    pub ignored_names: Vec<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes_max: 16 << 20,
            documents_max: 20_000,
            files_max: 200_000,
            depth_max: 16,
            ignored_names: Vec::new(),
        }
    }
}

/// Reads every `.yaml`, `.yml` and `.json` file below `directory`, in the order
/// of their paths. Names that begin with a dot are left out.
pub fn load_dir(directory: &Path) -> Loaded {
    load_dir_within(directory, &Limits::default())
}

/// [`load_dir`] with limits of the caller.
pub fn load_dir_within(directory: &Path, limits: &Limits) -> Loaded {
    let mut loaded = Loaded::default();
    let (files, mut faults) = list_files(directory, limits);
    loaded.faults.append(&mut faults);
    for file in files {
        loaded.append(load_file_within(&file, limits));
    }
    drop_duplicates(&mut loaded);
    loaded
}

/// Reads one file.
pub fn load_file(file: &Path) -> Loaded {
    load_file_within(file, &Limits::default())
}

/// [`load_file`] with limits of the caller.
pub fn load_file_within(file: &Path, limits: &Limits) -> Loaded {
    let size = match fs::metadata(file) {
        Ok(metadata) => metadata.len(),
        Err(error) => return failed(file, FaultReason::Io, read_error(&error)),
    };
    if size > limits.file_bytes_max {
        let message = format!(
            "file has {size} bytes, expected at most {}",
            limits.file_bytes_max
        );
        return failed(file, FaultReason::Limit, message);
    }
    match fs::read(file) {
        Ok(bytes) => parse_within(file, &bytes, limits),
        Err(error) => failed(file, FaultReason::Io, read_error(&error)),
    }
}

/// Decodes the documents of `bytes` as if they were the content of `file`.
pub fn parse(file: &Path, bytes: &[u8]) -> Loaded {
    parse_within(file, bytes, &Limits::default())
}

/// Decodes documents that come from no file.
pub fn parse_bytes(bytes: &[u8]) -> Loaded {
    parse(Path::new("(input)"), bytes)
}

fn parse_within(file: &Path, bytes: &[u8], limits: &Limits) -> Loaded {
    let Ok(text) = std::str::from_utf8(bytes) else {
        let message = "expected UTF-8 text".to_owned();
        return failed(file, FaultReason::Syntax, message);
    };
    let path: Arc<Path> = file.into();
    if file
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return parse_json(&path, text);
    }
    let documents = split::documents(text);
    if documents.len() > limits.documents_max {
        let message = format!(
            "file has {} documents, expected at most {}",
            documents.len(),
            limits.documents_max
        );
        return failed(file, FaultReason::Limit, message);
    }
    let mut loaded = Loaded::default();
    for (index, document) in documents.into_iter().enumerate() {
        let mut lines = Lines {
            file: path.clone(),
            document: index,
            lines_before: document.lines_before,
            text: document.text,
            node: None,
        };
        match tree::parse(document.text) {
            Ok(node) => {
                lines.node = Some(&node);
                loaded.append(decode_document(node.to_value(), &lines));
            }
            Err(error) => loaded
                .faults
                .push(syntax_fault(&lines, error.line, &error.message)),
        }
    }
    drop_duplicates(&mut loaded);
    loaded
}

fn parse_json(path: &Arc<Path>, text: &str) -> Loaded {
    let lines = Lines {
        file: path.clone(),
        document: 0,
        lines_before: 0,
        text,
        node: None,
    };
    let mut loaded = match serde_json::from_str(text) {
        Ok(value) => decode_document(value, &lines),
        Err(error) => {
            let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or(&message);
            Loaded {
                faults: vec![syntax_fault(&lines, line, message)],
                ..Loaded::default()
            }
        }
    };
    drop_duplicates(&mut loaded);
    loaded
}

fn syntax_fault(lines: &Lines<'_>, line: u32, message: &str) -> Fault {
    let template = lines.text.contains("{{") && lines.text.contains("}}");
    let hint = if template {
        "; it looks like an unrendered template: render it first (helm template)"
    } else {
        ""
    };
    Fault {
        severity: Severity::Error,
        reason: FaultReason::Syntax,
        location: lines.at_line(line),
        object: guess_object(lines.text),
        field: None,
        message: format!("document is not YAML: {message}{hint}"),
    }
}

/// Kind and name of a document that cannot be parsed, from its lines.
fn guess_object(text: &str) -> Option<ObjectRef> {
    let top = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .map(|value| value.trim().trim_matches(['"', '\'']).to_owned())
            .filter(|value| !value.is_empty() && !value.contains('{'))
    };
    let meta: Vec<_> = text
        .lines()
        .skip_while(|line| !line.starts_with("metadata:"))
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .collect();
    let depth = meta
        .first()
        .map(|line| line.len() - line.trim_start().len())?;
    let inner = |key: &str| {
        meta.iter()
            .filter(|line| line.len() - line.trim_start().len() == depth)
            .find_map(|line| line.trim_start().strip_prefix(key)?.strip_prefix(':'))
            .map(|value| value.trim().trim_matches(['"', '\'']).to_owned())
            .filter(|value| !value.is_empty() && !value.contains('{'))
    };
    let mut object = ObjectRef {
        api_version: top("apiVersion").unwrap_or_default(),
        kind: top("kind")?,
        namespace: inner("namespace"),
        name: inner("name")?,
    };
    if let Some(kind) = object.known_kind() {
        object.namespace = kind
            .is_namespaced()
            .then(|| object.namespace.unwrap_or_else(|| "default".to_owned()));
    }
    Some(object)
}

/// Keeps the first of objects with the same kind, namespace and name, and
/// reports the others with the place of the first.
pub fn drop_duplicates(loaded: &mut Loaded) {
    let mut first: HashMap<_, Location> = HashMap::new();
    let mut faults = Vec::new();
    loaded.objects.retain(|object| {
        let key = (
            object.kind(),
            object.namespace().map(str::to_owned),
            object.name().to_owned(),
        );
        let Some(earlier) = first.get(&key) else {
            first.insert(key, object.source.clone());
            return true;
        };
        faults.push(Fault {
            severity: Severity::Error,
            reason: FaultReason::Duplicate,
            location: object.source.clone(),
            object: Some(object.reference()),
            field: Some(FieldPath::at("metadata.name")),
            message: format!("the same object is already at {earlier}, which is kept"),
        });
        false
    });
    loaded.faults.append(&mut faults);
}

/// The files that [`load_dir`] reads, sorted, and directories that it cannot read.
pub fn list_files(directory: &Path, limits: &Limits) -> (Vec<PathBuf>, Vec<Fault>) {
    let mut listing = Listing {
        limits,
        files: Vec::new(),
        faults: Vec::new(),
    };
    listing.visit(directory, 0);
    listing.files.sort();
    (listing.files, listing.faults)
}

struct Listing<'a> {
    limits: &'a Limits,
    files: Vec<PathBuf>,
    faults: Vec<Fault>,
}

impl Listing<'_> {
    fn visit(&mut self, directory: &Path, depth: usize) {
        if depth > self.limits.depth_max {
            let message = format!(
                "directories are nested deeper than {} levels",
                self.limits.depth_max
            );
            return self
                .faults
                .push(fault(directory, FaultReason::Limit, message));
        }
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => {
                let message = read_error(&error);
                return self.faults.push(fault(directory, FaultReason::Io, message));
            }
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ignored = self.limits.ignored_names.iter().any(|other| *other == name);
            if name.starts_with('.') || ignored {
                continue;
            }
            let path = entry.path();
            // Follows links: mounted ConfigMaps are links.
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.visit(&path, depth + 1),
                Ok(metadata) if metadata.is_file() && is_object_file(&path) => self.add(path),
                Ok(_) => {}
                // Gone between listing and asking: an edit in progress.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let message = read_error(&error);
                    self.faults.push(fault(&path, FaultReason::Io, message));
                }
            }
        }
    }

    fn add(&mut self, path: PathBuf) {
        match self.files.len().cmp(&self.limits.files_max) {
            std::cmp::Ordering::Less => self.files.push(path),
            _ if self.faults.iter().any(|f| f.reason == FaultReason::Limit) => {}
            _ => {
                let message = format!("more than {} files", self.limits.files_max);
                self.faults.push(fault(&path, FaultReason::Limit, message));
            }
        }
    }
}

/// Whether [`load_dir`] reads a file of that name.
pub fn is_object_file(path: &Path) -> bool {
    path.extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension))
}

fn read_error(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

fn failed(file: &Path, reason: FaultReason, message: String) -> Loaded {
    Loaded {
        faults: vec![fault(file, reason, message)],
        ..Loaded::default()
    }
}

fn fault(file: &Path, reason: FaultReason, message: String) -> Fault {
    Fault {
        severity: Severity::Error,
        reason,
        location: Location {
            file: file.into(),
            line: 0,
            document: 0,
        },
        object: None,
        field: None,
        message,
    }
}
