//! One flat JSON object, so that no JSON library is needed for it.

use std::fmt::Write as _;

/// An object whose members are written in order.
#[derive(Debug)]
pub(crate) struct Object(String);

impl Object {
    pub(crate) fn new() -> Self {
        Self("{".to_owned())
    }

    pub(crate) fn text(mut self, name: &str, value: &str) -> Self {
        self.name(name);
        self.quoted(value);
        self
    }

    pub(crate) fn number(mut self, name: &str, value: u16) -> Self {
        self.name(name);
        self.0.push_str(&value.to_string());
        self
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.quoted(name);
        self.0.push(':');
    }

    fn quoted(&mut self, text: &str) {
        self.0.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => self.0.extend(['\\', c]),
                // Writing to a string can't fail.
                c if c.is_control() => drop(write!(self.0, "\\u{:04x}", u32::from(c))),
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_reads_back_what_was_written() {
        let hard = "a\"b\\c\u{0}\u{1f}\u{7f}\u{85}\n ü 漢 🦀 \u{2028}</script>";
        let text = Object::new().number("status", 412).text("hard", hard).text(hard, "").end();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, serde_json::json!({ "status": 412, "hard": hard, hard: "" }));
        assert_eq!(Object::new().end(), "{}");
    }
}
