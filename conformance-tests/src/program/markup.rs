//! Text that came from outside, made harmless for HTML and XML.

/// Adds formatted text to a string, which takes everything.
macro_rules! push {
    ($out:expr, $($text:tt)*) => {{
        use std::fmt::Write as _;
        write!($out, $($text)*).unwrap_or_default();
    }};
}
pub(crate) use push;

/// The text with everything escaped that could begin markup or end an attribute, and without characters that XML forbids or that would
/// turn the direction of what follows.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if is_forbidden(c) => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out
}

fn is_forbidden(c: char) -> bool {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{061c}');
    c.is_control() || turns || matches!(c, '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Fails unless the text is one well-formed element, as far as these pages use XML: tags that match, attributes in double quotes that
    /// occur once in their tag, references that exist, no bare `<` or `&`, and no character that XML forbids. Returns the tags' names and
    /// attributes in order.
    pub(crate) fn elements(text: &str, void: &[&str]) -> Vec<(String, Vec<(String, String)>)> {
        let mut open: Vec<String> = Vec::new();
        let mut found = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('<') {
            check_text(before);
            assert!(rest.len() == text.len() || !open.is_empty() || before.trim().is_empty(), "text outside: {before}");
            let (tag, after) = after.split_once('>').expect("a tag ends");
            rest = after;
            if tag.starts_with('?') || tag.starts_with("!DOCTYPE") {
                continue;
            }
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "before {rest:.80}");
                continue;
            }
            let closed = tag.ends_with('/');
            let (name, attributes) = attributes(tag.trim_end_matches('/'));
            if !closed && !void.contains(&name.as_str()) {
                open.push(name.clone());
            }
            found.push((name, attributes));
        }
        check_text(rest);
        assert_eq!((open, rest.trim()), (Vec::new(), ""), "everything is closed");
        found
    }

    fn attributes(tag: &str) -> (String, Vec<(String, String)>) {
        let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()) && !name.is_empty(), "a tag's name: {tag:?}");
        let mut found: Vec<(String, String)> = Vec::new();
        while !rest.trim().is_empty() {
            let (key, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("an attribute with a value: {tag:?}"));
            let (value, after) = after.split_once('"').expect("the value ends");
            check_text(value);
            let key = key.trim().to_owned();
            assert!(found.iter().all(|(other, _)| *other != key), "twice in {tag:?}: {key}");
            found.push((key, value.to_owned()));
            rest = after;
        }
        (name.to_owned(), found)
    }

    fn check_text(text: &str) {
        assert!(!text.contains(is_forbidden_in_a_file), "{text:?}");
        for part in text.split('&').skip(1) {
            let name = part.split_once(';').unwrap_or_else(|| panic!("a bare & in {text:?}")).0;
            assert!(matches!(name, "amp" | "lt" | "gt" | "quot" | "#39"), "the reference {name}");
        }
    }

    fn is_forbidden_in_a_file(c: char) -> bool {
        is_forbidden(c) && c != '\n'
    }

    #[test]
    fn nothing_stays_that_could_be_markup() {
        let hostile = "<script>alert('1')</script>\"&amp;\u{0}\u{1b}[31m\u{202e}\u{ffff}";
        let text = escaped(hostile);
        assert!(!text.contains(['<', '>', '"', '\'', '\u{0}', '\u{1b}', '\u{202e}', '\u{ffff}']), "{text}");
        elements(&format!("<a b=\"{text}\">{text}</a>"), &[]);
        assert_eq!(escaped("Größe 中 | x"), "Größe 中 | x");
    }

    #[test]
    fn what_is_not_well_formed_is_found() {
        for bad in [
            "<a>",
            "<a></b>",
            "<a>&x;</a>",
            "<a>& </a>",
            "<a b=c></a>",
            "<a b=\"1\" b=\"2\"/>",
            "<a/>x",
            "<a>\u{1}</a>",
        ] {
            assert!(std::panic::catch_unwind(|| elements(bad, &[])).is_err(), "{bad}");
        }
        assert_eq!(elements("<a b=\"1\"><br>x<c/></a>", &["br"]).len(), 3);
    }
}
