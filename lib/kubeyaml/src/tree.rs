//! A document as a tree that knows on which line each value stands.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use crate::path::{FieldPath, Segment};

/// A value and its line, from 1, within the document.
#[derive(Debug)]
pub(crate) struct Node {
    line: u32,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Scalar(Value),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

/// Why a document could not be parsed.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub(crate) line: u32,
    pub(crate) message: String,
}

/// Parses one document.
pub(crate) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| SyntaxError {
        line: error.location().map_or(1, |l| clamp(l.line())),
        message: first_line(&error.without_snippet().to_string()),
    })
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().to_owned()
}

fn clamp(line: u64) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX)
}

impl Node {
    /// The line of the value at `path`, or of the deepest parent that exists.
    pub(crate) fn line(&self, path: &FieldPath) -> u32 {
        let mut node = self;
        for segment in path.segments() {
            let next = match (&node.content, segment) {
                (Content::List(items), Segment::Index(index)) => items.get(*index),
                (Content::Object(fields), Segment::Key(key)) => {
                    fields.iter().find(|(name, _)| name == key).map(|(_, n)| n)
                }
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.line
    }

    /// The same as JSON.
    pub(crate) fn to_value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Self::to_value).collect(),
            Content::Object(fields) => fields
                .iter()
                .map(|(key, node)| (key.clone(), node.to_value()))
                .collect::<Map<_, _>>()
                .into(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Content>::deserialize(deserializer)?;
        Ok(Self {
            line: clamp(spanned.referenced.line()),
            content: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        Content::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Content, E> {
        let number = Number::from_f64(value)
            .ok_or_else(|| E::custom("a number must be finite; write text in quotes"))?;
        Ok(Content::Scalar(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Content::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Content, A::Error> {
        let mut fields: Vec<(String, Node)> = Vec::new();
        while let Some(Key(key)) = object.next_key()? {
            fields.push((key, object.next_value()?));
        }
        Ok(Content::Object(fields))
    }
}

/// A field name; numbers and the like are taken as they are written.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Node::deserialize(deserializer)?.content {
            Content::Scalar(Value::String(text)) => Ok(Self(text)),
            Content::Scalar(Value::Number(number)) => Ok(Self(number.to_string())),
            Content::Scalar(Value::Bool(flag)) => Ok(Self(flag.to_string())),
            _ => Err(D::Error::custom(
                "a field name must be text (is this an unrendered template?)",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_keep_their_lines() {
        let node = parse("a: 1\nb:\n  - x: yes\n  - {y: 'on', 8080: ~}\n").unwrap();
        assert_eq!(
            node.to_value(),
            json!({"a": 1, "b": [{"x": "yes"}, {"y": "on", "8080": null}]})
        );
        assert_eq!(node.line(&FieldPath::at("a")), 1);
        assert_eq!(node.line(&FieldPath::at("b").index(0).key("x")), 3);
        assert_eq!(node.line(&FieldPath::at("b").index(1).key("8080")), 4);
        assert_eq!(node.line(&FieldPath::at("b").index(1).key("missing")), 4);
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        let node = parse("[1, -2, 1.5, true, null, '1', 2021-01-01, 1Gi, 0644, 1e3, |-\n   x\n]");
        // Block text inside flow lists is no YAML.
        assert!(node.is_err());
        let node = parse(
            "- 1\n- -2\n- 1.5\n- true\n- null\n- '1'\n- 2021-01-01\n- 1Gi\n- 1_000\n- |-\n  x\n",
        );
        assert_eq!(
            node.unwrap().to_value(),
            json!([1, -2, 1.5, true, null, "1", "2021-01-01", "1Gi", 1000, "x"])
        );
    }

    #[test]
    fn anchors_merge_and_duplicates() {
        let node = parse("a: &x {p: 1}\nb: *x\nc:\n  <<: *x\n  q: 2\n").unwrap();
        assert_eq!(
            node.to_value(),
            json!({"a": {"p": 1}, "b": {"p": 1}, "c": {"p": 1, "q": 2}})
        );
        assert!(parse("a: 1\na: 2\n").is_err());
        assert!(parse("a: {{ .Values.x }}\n").is_err());
    }

    #[test]
    fn json_is_yaml() {
        let node = parse("{\n\t\"a\": [1,\n\t\t{\"b\": \"\\u00e4\\/\"}]\n}").unwrap();
        assert_eq!(node.to_value(), json!({"a": [1, {"b": "ä/"}]}));
    }
}
