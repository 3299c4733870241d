//! Field paths such as `spec.ports[0].port`.

use std::fmt;

/// One step of a [`FieldPath`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A field of an object.
    Key(String),
    /// An item of a list.
    Index(usize),
}

/// Where a value stands in its object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPath(Vec<Segment>);

impl FieldPath {
    /// The object itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// A path of plain field names joined by dots.
    pub fn at(dotted: &str) -> Self {
        Self(
            dotted
                .split('.')
                .map(|key| Segment::Key(key.to_owned()))
                .collect(),
        )
    }

    /// The path of field `key` of this value.
    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        let mut path = self.clone();
        path.push(Segment::Key(key.into()));
        path
    }

    /// The path of a field further below, names joined by dots.
    #[must_use]
    pub fn join(&self, dotted: &str) -> Self {
        let mut path = self.clone();
        path.0.extend(Self::at(dotted).0);
        path
    }

    /// The path of item `index` of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.push(Segment::Index(index));
        path
    }

    /// The steps.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    pub(crate) fn push(&mut self, segment: Segment) {
        self.0.push(segment);
    }
}

impl From<&serde_path_to_error::Path> for FieldPath {
    fn from(path: &serde_path_to_error::Path) -> Self {
        use serde_path_to_error::Segment as Theirs;
        let mut result = Self::root();
        for segment in path.iter() {
            match segment {
                Theirs::Seq { index } => result.push(Segment::Index(*index)),
                Theirs::Map { key } => result.push(Segment::Key(key.clone())),
                Theirs::Enum { .. } | Theirs::Unknown => {}
            }
        }
        result
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) if is_plain(key) => {
                    if position > 0 {
                        f.write_str(".")?;
                    }
                    f.write_str(key)?;
                }
                Segment::Key(key) => write!(f, "[{key:?}]")?,
            }
        }
        Ok(())
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-' || b == b'$')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_as_people_write_it() {
        let path = FieldPath::at("spec.ports").index(0).key("port");
        assert_eq!(path.to_string(), "spec.ports[0].port");
        let path = FieldPath::at("metadata.labels").key("a.b/c");
        assert_eq!(path.to_string(), "metadata.labels[\"a.b/c\"]");
        assert_eq!(FieldPath::root().to_string(), "");
    }
}
