//! Cuts a YAML stream into documents before anything is parsed, so that a
//! broken document cannot take its neighbours along.

/// The text of one document and the number of lines before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Document<'a> {
    pub(crate) text: &'a str,
    pub(crate) lines_before: u32,
}

/// Splits at lines that begin with `---` or `...`; no YAML construct can hold
/// such a line inside a document. Documents of comments and blanks are left out.
pub(crate) fn documents(text: &str) -> Vec<Document<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    let (mut start, mut start_line, mut position, mut line) = (0, 0, 0, 0u32);
    for content in text.split_inclusive('\n') {
        let (end, next) = (position, position + content.len());
        if let Some(rest) = marker(content) {
            push(&mut found, &text[start..end], start_line);
            // `--- {kind: Pod}` keeps its content: it belongs to the new document.
            start = next - rest.len();
            start_line = line;
        }
        position = next;
        line = line.saturating_add(1);
    }
    push(&mut found, &text[start..], start_line);
    found
}

fn marker(line: &str) -> Option<&str> {
    if line.starts_with('%') {
        return Some("");
    }
    let rest = line
        .strip_prefix("---")
        .or_else(|| line.strip_prefix("..."))?;
    rest.is_empty()
        .then_some(rest)
        .or_else(|| rest.starts_with([' ', '\t', '\r', '\n']).then_some(rest))
}

fn push<'a>(found: &mut Vec<Document<'a>>, text: &'a str, lines_before: u32) {
    let blank = text
        .lines()
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    if !blank {
        found.push(Document { text, lines_before });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &[(&str, u32)]) {
        let found: Vec<_> = documents(text)
            .iter()
            .map(|d| (d.text.trim(), d.lines_before))
            .collect();
        assert_eq!(found, expect, "{text:?}");
    }

    #[test]
    fn splits_and_counts_lines() {
        check("", &[]);
        check("---\n# nothing\n---\n", &[]);
        check("a: 1", &[("a: 1", 0)]);
        check("a: 1\n---\nb: 2\n", &[("a: 1", 0), ("b: 2", 1)]);
        check(
            "--- # x\na: 1\n...\n---\nb: 2",
            &[("# x\na: 1", 0), ("b: 2", 3)],
        );
        check("--- {a: 1}\n", &[("{a: 1}", 0)]);
        check(
            "%YAML 1.2\n---\na: 1\r\n---\r\nb: 2",
            &[("a: 1", 1), ("b: 2", 3)],
        );
        check("\u{feff}a: 1", &[("a: 1", 0)]);
    }

    #[test]
    fn longer_dashes_and_block_text_do_not_split() {
        check("----\n", &[("----", 0)]);
        check("a: |\n  ---\n  x\n", &[("a: |\n  ---\n  x", 0)]);
    }
}
