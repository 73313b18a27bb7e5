//! How names map into the store: a namespace is a schema, a resource is the primary key of a row.
//!
//! Names are stored as they are, in columns with the collation `C`: two names are equal when their bytes are.

use lease_core::{LeaseError, Namespace, ResourceName};

/// The tables of a lease backend.
pub(crate) const META: &str = "meta";
pub(crate) const LEASE: &str = "lease";
pub(crate) const REGISTER: &str = "register";

/// The tables of a guarded destination.
pub(crate) const TRUSTED: &str = "trusted";
pub(crate) const MARK: &str = "mark";
pub(crate) const GUARDED: &str = "guarded";

/// The quoted schema of a namespace. A namespace has no character that would need more than the quotes.
pub(crate) fn quoted_schema(namespace: &Namespace) -> String {
    format!("\"{namespace}\"")
}

/// Refuses the names that PostgreSQL keeps for itself.
pub(crate) fn check_namespace(namespace: &Namespace) -> Result<(), LeaseError> {
    let name = namespace.as_str();
    if name.starts_with("pg_") || name == "information_schema" {
        return Err(LeaseError::InvalidConfig {
            reason: format!(
                "namespace `{name}`: a namespace is a schema here, and PostgreSQL keeps this name for itself; choose another"
            ),
        });
    }
    Ok(())
}

/// The smallest text, in byte order, above every text that begins with `prefix`; where there is none, one above every name.
pub(crate) fn prefix_end(prefix: &str) -> String {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // UTF-8 orders texts as their code points do, so the next character is the next text of this length.
        if let Some(next) = next_char(last) {
            chars.push(next);
            return chars.into_iter().collect();
        }
    }
    // Longer than any name, of the last character that there is.
    String::from(char::MAX).repeat(ResourceName::MAX_BYTES)
}

fn next_char(c: char) -> Option<char> {
    match c {
        char::MAX => None,
        // Surrogates are no characters: skip them.
        '\u{D7FF}' => Some('\u{E000}'),
        c => char::from_u32(u32::from(c).saturating_add(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_end_bounds_exactly_the_prefix() {
        assert_eq!(prefix_end("ab"), "ac");
        assert_eq!(prefix_end("a\u{10FFFF}"), "b");
        assert_eq!(prefix_end("\u{D7FF}"), "\u{E000}");
        let last = "\u{10FFFF}".repeat(ResourceName::MAX_BYTES / 4);
        assert!(ResourceName::parse(&last).is_ok());
        assert!(prefix_end("\u{10FFFF}") > last && prefix_end("") > last && prefix_end(&last) > last);
        for prefix in ["a", "ä", "日", "a/", "z~"] {
            let end = prefix_end(prefix);
            assert!(format!("{prefix}\u{10FFFF}\u{10FFFF}") < end && prefix < end.as_str());
        }
    }

    #[test]
    fn reserved_schemas_are_refused() {
        assert!(check_namespace(&Namespace::parse("pg_leases").unwrap()).is_err());
        assert!(check_namespace(&Namespace::parse("information_schema").unwrap()).is_err());
        assert!(check_namespace(&Namespace::default()).is_ok());
    }
}
