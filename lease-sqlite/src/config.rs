//! The URL of a SQLite store, taken apart.

use crate::keys;
use lease_core::{ConnectOptions, LeaseError, StoreUrl};
use std::path::{Path, PathBuf};

/// Where the database file is, and the options that every backend has.
#[derive(Clone, Debug)]
pub struct SqliteConfig {
    path: PathBuf,
    options: ConnectOptions,
}

impl SqliteConfig {
    /// The file at `path` with `options`. A relative path is taken from the present working directory, once.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when the path is empty, `:memory:` or not UTF-8, or the namespace is SQLite's own. Nothing was opened.
    pub fn new(path: impl AsRef<Path>, options: ConnectOptions) -> Result<Self, LeaseError> {
        let path = path.as_ref();
        let text = path.to_str().ok_or_else(|| invalid("the path is not UTF-8"))?;
        if text == ":memory:" {
            return Err(invalid(
                "a SQLite database in memory is private to one connection and excludes nobody; for one process use `memory:`, \
                 for several give a file as sqlite:PATH",
            ));
        }
        if text.is_empty() || text.contains('\0') {
            return Err(invalid("give the path of a file: sqlite:relative.db or sqlite:///absolute/file.db"));
        }
        keys::check_namespace(&options.namespace)?;
        // Absolute, so that a later change of the working directory does not lead to another file, and so that SQLite never reads it as
        // a `file:` URI with options of its own.
        let path = std::path::absolute(path).map_err(|e| invalid(&format!("the path cannot be made absolute: {e}")))?;
        Ok(Self { path, options })
    }

    /// Parses `sqlite:relative.db` or `sqlite:///absolute/file.db`, with the common parameters after a `?`.
    ///
    /// `%XX` stands for a byte, so `%3F` is a question mark in the file's name and `%25` a percent sign.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`StoreUrl::parse`]. Nothing was opened.
    pub fn parse(url: &str) -> Result<Self, LeaseError> {
        let parsed = StoreUrl::parse(url, &[])?;
        if parsed.url.scheme() != "sqlite" {
            return Err(LeaseError::UnknownScheme {
                scheme: parsed.url.scheme().into(),
                advice: "write it as sqlite:PATH".into(),
            });
        }
        if parsed.url.host_str().is_some_and(|host| !host.is_empty()) {
            return Err(invalid(
                "`sqlite://NAME` has NAME where a host would be; write sqlite:relative.db or sqlite:///absolute/file.db",
            ));
        }
        if parsed.url.fragment().is_some() {
            return Err(invalid("the URL has a `#`; write %23 if it belongs to the file's name"));
        }
        let path = percent_decoded(parsed.url.path())
            .ok_or_else(|| invalid("the path has a damaged %XX or is not UTF-8; write a percent sign as %25"))?;
        Self::new(path, parsed.options)
    }

    /// The absolute path of the database file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The common options.
    #[must_use]
    pub fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// The options, to change them.
    pub fn options_mut(&mut self) -> &mut ConnectOptions {
        &mut self.options
    }

    pub(crate) fn address(&self) -> String {
        format!("sqlite://{}", self.path.display())
    }
}

fn invalid(reason: &str) -> LeaseError {
    LeaseError::InvalidConfig { reason: reason.into() }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let [high, low, after @ ..] = tail else { return None };
            let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
            bytes.push(digit(*high)?.checked_mul(16)?.checked_add(digit(*low)?)?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_written() {
        let here = std::env::current_dir().unwrap();
        for (url, path) in [
            ("sqlite:a.db", here.join("a.db")),
            ("sqlite:dir/a.db?epoch=1", here.join("dir/a.db")),
            ("sqlite:/abs/a.db", "/abs/a.db".into()),
            ("sqlite:///abs/a.db", "/abs/a.db".into()),
            ("sqlite:///abs/a%20b%3Fc%25.db", "/abs/a b?c%.db".into()),
            ("sqlite:///abs/a b.db", "/abs/a b.db".into()),
            ("sqlite:///abs/ä.db", "/abs/ä.db".into()),
            ("sqlite:file:x.db", here.join("file:x.db")),
        ] {
            assert_eq!(SqliteConfig::parse(url).unwrap().path(), path, "{url}");
        }
    }

    #[test]
    fn bad_urls_say_what_to_write() {
        for (url, says) in [
            ("sqlite::memory:", "use `memory:`"),
            ("sqlite:", "give the path of a file"),
            ("sqlite://data.db", "write sqlite:relative.db"),
            ("sqlite:///a#b", "%23"),
            ("sqlite:///a%zz", "%25"),
            ("sqlite:///a%ff", "not UTF-8"),
            ("sqlite:///a%00b", "give the path"),
            ("sqlite:a.db?mode=ro", "namespace"),
            ("sqlite:a.db?namespace=sqlite_x", "reserves"),
            ("sqlite:a.db?namespace=A", "a-z"),
            ("sqlite:a.db?call_timeout_ms=0", "from 1"),
            ("redis:a.db", "sqlite:PATH"),
        ] {
            let message = SqliteConfig::parse(url).unwrap_err().to_string();
            assert!(message.contains(says), "{url}: {message}");
        }
    }
}
