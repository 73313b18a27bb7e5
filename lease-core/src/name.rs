//! Names: of resources, of namespaces, of holders. Parsed once; whatever exists is valid.

use crate::LeaseError;
use std::fmt;
use std::sync::Arc;

/// The name of a protected resource, which is also the name of its lease.
///
/// Any UTF-8 of 1 to [`MAX_BYTES`](Self::MAX_BYTES) bytes without control characters. Names are compared byte by byte:
/// no case folding, no Unicode normalisation, no trimming.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(Arc<str>);

impl ResourceName {
    /// The longest name, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 512;

    /// Parses a name.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`] when it is empty, too long, or has a control character. Nothing was sent.
    pub fn parse(name: impl AsRef<str>) -> Result<Self, LeaseError> {
        let name = name.as_ref();
        let refuse = |reason: String| Err(LeaseError::InvalidName { what: "resource name", reason });
        if name.is_empty() {
            return refuse("it is empty; give 1 to 512 bytes".into());
        }
        if name.len() > Self::MAX_BYTES {
            return refuse(format!("it has {} bytes; the most is {}", name.len(), Self::MAX_BYTES));
        }
        if let Some((at, c)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return refuse(format!("it has the control character U+{:04X} at byte {at}; remove it", u32::from(c)));
        }
        Ok(Self(name.into()))
    }

    /// The name as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// An injective form of printable ASCII for stores whose keys have syntax: every byte outside
    /// `A-Z a-z 0-9 . _ ~ - /` becomes `%XX`. Encoding is byte by byte, so a prefix of a name is a prefix of its form.
    #[must_use]
    pub fn encoded(&self) -> String {
        encode(&self.0)
    }

    /// Reads a name back from [`encoded`](Self::encoded); `None` when the text is no such form.
    #[must_use]
    pub fn from_encoded(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, tail @ ..] = rest {
            if *first == b'%' {
                let [high, low, after @ ..] = tail else { return None };
                let pair = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
                rest = after;
            } else {
                bytes.push(*first);
                rest = tail;
            }
        }
        let name = Self::parse(String::from_utf8(bytes).ok()?).ok()?;
        (name.encoded() == text).then_some(name)
    }
}

/// Percent-encodes a name, or a prefix of names, byte by byte.
fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'~' | b'-' | b'/' => out.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for ResourceName {
    type Err = LeaseError;
    fn from_str(text: &str) -> Result<Self, LeaseError> {
        Self::parse(text)
    }
}

/// Keeps the records of one application apart from those of another in the same store.
///
/// 1 to 32 characters of `a-z 0-9 _`, beginning with a letter, so that it can be part of a key, a schema and a table name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Parses a namespace.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`] when it has another form. Nothing was sent.
    pub fn parse(name: impl AsRef<str>) -> Result<Self, LeaseError> {
        let name = name.as_ref();
        let fits = (1..=32).contains(&name.len())
            && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if fits {
            Ok(Self(name.into()))
        } else {
            Err(LeaseError::InvalidName {
                what: "namespace",
                reason: "give 1 to 32 characters of a-z, 0-9 and _, the first one a letter".into(),
            })
        }
    }

    /// The namespace as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("leasehold".into())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who holds a lease, for people to read. Never compared: identity is the owner token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HolderLabel(Arc<str>);

impl HolderLabel {
    /// Parses a label: at most 128 bytes without control characters.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`] otherwise. Nothing was sent.
    pub fn parse(label: impl AsRef<str>) -> Result<Self, LeaseError> {
        let label = label.as_ref();
        if label.len() <= 128 && !label.chars().any(char::is_control) {
            Ok(Self(label.into()))
        } else {
            Err(LeaseError::InvalidName {
                what: "holder label",
                reason: "give at most 128 bytes without control characters".into(),
            })
        }
    }

    /// The label as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for HolderLabel {
    fn default() -> Self {
        Self(format!("pid {}", std::process::id()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_is_injective_and_keeps_prefixes() {
        let names = ["a", "A", "a b", "a%20b", "a%b", "{a}", "a:b", "a*", "a'\"", "ä", "日本", "a/", "a//", "%"];
        let forms: std::collections::BTreeSet<_> =
            names.iter().map(|n| ResourceName::parse(n).unwrap().encoded()).collect();
        assert_eq!(forms.len(), names.len());
        for name in names {
            let name = ResourceName::parse(name).unwrap();
            assert_eq!(ResourceName::from_encoded(&name.encoded()).as_ref(), Some(&name));
            assert!(name.encoded().bytes().all(|b| b.is_ascii_graphic() && !b"{}*:'\"".contains(&b)));
        }
        assert_eq!(ResourceName::from_encoded("a b"), None, "not canonical");
        assert_eq!(ResourceName::from_encoded("%4"), None);
    }

    #[test]
    fn bounds_are_checked() {
        assert!(ResourceName::parse("").is_err());
        assert!(ResourceName::parse("x".repeat(512)).is_ok());
        assert!(ResourceName::parse("x".repeat(513)).is_err());
        for bad in ["a\0b", "a\nb", "\u{7f}", "\u{85}"] {
            assert!(ResourceName::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "A", "1a", "a-b", "a b", &"a".repeat(33)] {
            assert!(Namespace::parse(bad).is_err(), "{bad:?}");
        }
    }
}
