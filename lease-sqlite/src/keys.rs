//! How names map into the file: namespaces to table names, resources to the text of a primary key.

use lease_core::{LeaseError, Namespace};

/// Refuses the one kind of namespace that cannot begin a table's name.
pub(crate) fn check_namespace(namespace: &Namespace) -> Result<(), LeaseError> {
    let name = namespace.as_str();
    if name == "sqlite" || name.starts_with("sqlite_") {
        return Err(LeaseError::InvalidConfig {
            reason: "SQLite reserves table names that begin with `sqlite_`; choose another namespace".into(),
        });
    }
    Ok(())
}

/// The first text after all that begin with `prefix`, in byte order; `None` when there is none.
///
/// UTF-8 orders by code point, so the next text is the prefix whose last character was raised. The resource's own text is the key: any
/// byte that may be in a name may be in SQLite's TEXT, and the BINARY collation compares byte by byte.
pub(crate) fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // A step of a range of `char` skips the surrogates.
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_no_name_of_it_can_follow() {
        assert_eq!(end_of_prefix(""), None);
        assert_eq!(end_of_prefix("a").as_deref(), Some("b"));
        assert_eq!(end_of_prefix("a/").as_deref(), Some("a0"));
        assert_eq!(end_of_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(end_of_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(end_of_prefix("\u{10ffff}"), None);
        for (prefix, name) in [("a", "a\u{10ffff}\u{10ffff}"), ("ä", "äz"), ("a%", "a%5")] {
            let end = end_of_prefix(prefix).unwrap();
            assert!(name >= prefix && name < end.as_str());
        }
    }
}
