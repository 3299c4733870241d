//! From a parsed document to typed objects and faults.

use std::{path::Path, sync::Arc};

use serde_json::Value;

use crate::{
    fault::{Fault, FaultReason, Location, ObjectRef, Severity},
    kind::{Body, Kind, TypeError},
    object::Object,
    path::FieldPath,
    tree::Node,
    unknown::unknown_fields,
    validate::{self, Check},
    words,
};

/// An object of a kind that this crate does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownObject {
    /// Its name.
    pub object: ObjectRef,
    /// Where it was read.
    pub source: Location,
}

/// What was found in files.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Good objects, in the order of files and documents.
    pub objects: Vec<Object>,
    /// Errors and warnings.
    pub faults: Vec<Fault>,
    /// Objects of kinds that are not decoded; no fault.
    pub unknown: Vec<UnknownObject>,
}

impl Loaded {
    /// The faults that kept something from being loaded.
    pub fn errors(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(|fault| fault.is_error())
    }

    /// The faults of objects that were loaded all the same.
    pub fn warnings(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(|fault| !fault.is_error())
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.objects.append(&mut other.objects);
        self.faults.append(&mut other.faults);
        self.unknown.append(&mut other.unknown);
    }
}

/// The lines of one document. JSON documents are parsed for them only when a
/// fault has to be placed.
pub(crate) struct Lines<'a> {
    pub(crate) file: Arc<Path>,
    pub(crate) document: usize,
    pub(crate) lines_before: u32,
    pub(crate) text: &'a str,
    pub(crate) node: Option<&'a Node>,
}

impl Lines<'_> {
    pub(crate) fn location(&self, path: &FieldPath) -> Location {
        let line = match self.node {
            Some(node) => node.line(path),
            None => crate::tree::parse(self.text).map_or(1, |node| node.line(path)),
        };
        self.at_line(line)
    }

    pub(crate) fn at_line(&self, line: u32) -> Location {
        Location {
            file: self.file.clone(),
            line: self.lines_before.saturating_add(line),
            document: self.document,
        }
    }

    fn first(&self) -> Location {
        match self.node {
            Some(_) => self.location(&FieldPath::root()),
            None => self.at_line(1),
        }
    }
}

/// Decodes the object of a document, or the items of a `List`.
pub(crate) fn decode_document(value: Value, lines: &Lines<'_>) -> Loaded {
    let mut loaded = Loaded::default();
    if !is_list(&value) {
        Decoder::new(lines, FieldPath::root(), &mut loaded).decode(value);
        return loaded;
    }
    let items = match value {
        Value::Object(mut fields) => fields.remove("items"),
        _ => None,
    };
    match items {
        Some(Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                let prefix = FieldPath::at("items").index(index);
                Decoder::new(lines, prefix, &mut loaded).decode(item);
            }
        }
        None | Some(Value::Null) => {}
        Some(_) => Decoder::new(lines, FieldPath::root(), &mut loaded).error(
            FaultReason::Type,
            Some(FieldPath::at("items")),
            "expected a list of objects".to_owned(),
        ),
    }
    loaded
}

fn is_list(value: &Value) -> bool {
    let kind = value
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    kind == "List"
        || (value.get("items").is_some()
            && kind
                .strip_suffix("List")
                .is_some_and(|kind| !kind.is_empty()))
}

struct Decoder<'a> {
    lines: &'a Lines<'a>,
    /// Where the object stands in its document.
    prefix: FieldPath,
    object: Option<ObjectRef>,
    loaded: &'a mut Loaded,
}

impl<'a> Decoder<'a> {
    fn new(lines: &'a Lines<'a>, prefix: FieldPath, loaded: &'a mut Loaded) -> Self {
        Self {
            lines,
            prefix,
            object: None,
            loaded,
        }
    }

    fn decode(&mut self, mut value: Value) {
        let Some(kind) = self.identify(&value) else {
            return;
        };
        if !kind.is_policy() {
            quantities_as_text(&mut value);
        }
        let mut body = match Body::from_value(kind, value.clone()) {
            Ok(body) => body,
            Err(error) => return self.type_error(error),
        };
        if kind.is_namespaced() && body.meta().namespace.is_none() {
            body.meta_mut().namespace = Some("default".to_owned());
        }
        let mut usable = true;
        for unknown in unknown_fields(kind, &value, &body.to_json()) {
            let hint = unknown
                .suggestion
                .map(|known| format!("; did you mean {known}?"))
                .unwrap_or_default();
            let severity = if kind.is_policy() {
                usable = false;
                Severity::Error
            } else {
                Severity::Warning
            };
            let message = format!("{kind} has no such field here{hint}");
            self.report(
                severity,
                FaultReason::UnknownField,
                Some(unknown.path),
                message,
            );
        }
        let mut check = Check::default();
        validate::validate(&body, &mut check);
        for problem in check.problems {
            usable &= problem.severity != Severity::Error;
            self.report(
                problem.severity,
                FaultReason::Invalid,
                Some(problem.path),
                problem.message,
            );
        }
        if usable {
            let source = match self.prefix.segments() {
                [] => self.lines.first(),
                _ => self.lines.location(&self.prefix),
            };
            self.loaded.objects.push(Object { source, body });
        }
    }

    /// Reads kind and name; tells of what is no object or of an unknown kind.
    fn identify(&mut self, value: &Value) -> Option<Kind> {
        let Value::Object(fields) = value else {
            let message = "expected a Kubernetes object with apiVersion and kind".to_owned();
            self.error(FaultReason::NotAnObject, None, message);
            return None;
        };
        let text = |key: &str| fields.get(key).and_then(Value::as_str);
        let meta = |key: &str| {
            let field = fields.get("metadata").and_then(|meta| meta.get(key));
            field.and_then(Value::as_str).map(str::to_owned)
        };
        for field in ["apiVersion", "kind"] {
            if text(field).is_none_or(str::is_empty) {
                let message = "required: a Kubernetes object has apiVersion and kind".to_owned();
                self.error(
                    FaultReason::NotAnObject,
                    Some(FieldPath::at(field)),
                    message,
                );
                return None;
            }
        }
        let api_version = text("apiVersion").unwrap_or_default();
        let kind_name = text("kind").unwrap_or_default();
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let kind = Kind::of(group, kind_name);
        let mut reference = ObjectRef {
            api_version: api_version.to_owned(),
            kind: kind_name.to_owned(),
            namespace: meta("namespace"),
            name: meta("name").unwrap_or_default(),
        };
        let Some(kind) = kind else {
            self.object = Some(reference.clone());
            self.unknown_kind(group, reference);
            return None;
        };
        reference.namespace = kind
            .is_namespaced()
            .then(|| reference.namespace.unwrap_or_else(|| "default".to_owned()));
        self.object = Some(reference);
        if version != kind.version() {
            let message = format!("expected {}, found {api_version}", kind.api_version());
            self.error(
                FaultReason::Version,
                Some(FieldPath::at("apiVersion")),
                message,
            );
            return None;
        }
        Some(kind)
    }

    fn unknown_kind(&mut self, group: &str, object: ObjectRef) {
        let built_in = group.is_empty() || ["apps", "batch"].contains(&group);
        let elsewhere = Kind::ALL.iter().find(|kind| kind.name() == object.kind);
        if let (true, Some(kind)) = (built_in, elsewhere) {
            let message = format!(
                "{kind} belongs to {}, found {}",
                kind.api_version(),
                object.api_version
            );
            return self.error(
                FaultReason::Version,
                Some(FieldPath::at("apiVersion")),
                message,
            );
        }
        let same_group = Kind::ALL.iter().filter(|kind| kind.group() == group);
        if let Some(close) = words::closest(&object.kind, same_group.map(|kind| kind.name())) {
            self.report(
                Severity::Warning,
                FaultReason::NotAnObject,
                Some(FieldPath::at("kind")),
                format!("unknown kind; did you mean {close}?"),
            );
        }
        let source = self.lines.location(&self.prefix);
        self.loaded.unknown.push(UnknownObject { object, source });
    }

    fn type_error(&mut self, error: TypeError) {
        let Some((field, known)) = words::unknown_field(&error.message) else {
            let message = words::plain(&error.message);
            return self.error(FaultReason::Type, Some(error.path), message);
        };
        let path = match error.path.segments().last() {
            Some(crate::path::Segment::Key(last)) if last == field => error.path.clone(),
            _ => error.path.key(field),
        };
        let message = match words::closest(field, known.iter().copied()) {
            Some(close) => format!("unknown field; did you mean {close}?"),
            None => format!("unknown field; expected one of {}", known.join(", ")),
        };
        self.error(FaultReason::UnknownField, Some(path), message);
    }

    fn error(&mut self, reason: FaultReason, field: Option<FieldPath>, message: String) {
        self.report(Severity::Error, reason, field, message);
    }

    fn report(
        &mut self,
        severity: Severity,
        reason: FaultReason,
        field: Option<FieldPath>,
        message: String,
    ) {
        let mut full = self.prefix.clone();
        for segment in field.iter().flat_map(|field| field.segments()) {
            full.push(segment.clone());
        }
        self.loaded.faults.push(Fault {
            severity,
            reason,
            location: self.lines.location(&full),
            object: self.object.clone(),
            field,
            message,
        });
    }
}

/// Kubernetes takes `cpu: 1` for the quantity `"1"`.
fn quantities_as_text(value: &mut Value) {
    const MAPS: &[&str] = &[
        "limits",
        "requests",
        "capacity",
        "allocatable",
        "hard",
        "overhead",
    ];
    const FIELDS: &[&str] = &["sizeLimit", "divisor"];
    match value {
        Value::Array(items) => items.iter_mut().for_each(quantities_as_text),
        Value::Object(fields) => {
            for (key, field) in fields {
                match field {
                    Value::Object(quantities) if MAPS.contains(&key.as_str()) => {
                        quantities.values_mut().for_each(number_as_text);
                    }
                    Value::Number(_) if FIELDS.contains(&key.as_str()) => number_as_text(field),
                    _ => quantities_as_text(field),
                }
            }
        }
        _ => {}
    }
}

fn number_as_text(value: &mut Value) {
    if let Value::Number(number) = value {
        *value = Value::String(number.to_string());
    }
}
