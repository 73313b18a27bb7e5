//! A script, as servers know it.

/// A script and the hash that the server knows it by.
#[derive(Clone)]
pub(crate) struct Script {
    text: String,
    sha: String,
}

impl Script {
    pub(crate) fn new(text: String) -> Self {
        Self { sha: sha1_hex(&text), text }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Script({})", self.sha)
    }
}

#[cfg(feature = "client-redis")]
fn sha1_hex(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

#[cfg(all(feature = "client-fred", not(feature = "client-redis")))]
fn sha1_hex(text: &str) -> String {
    fred::util::sha1_hash(text)
}

/// Without any client nothing is ever sent.
#[cfg(not(any(feature = "client-fred", feature = "client-redis")))]
fn sha1_hex(_text: &str) -> String {
    String::new()
}

#[cfg(test)]
mod tests {
    #[cfg(all(feature = "client-redis", feature = "client-fred"))]
    #[test]
    fn both_clients_know_a_script_by_the_same_hash() {
        use super::sha1_hex;
        assert_eq!(fred::util::sha1_hash("return 1"), sha1_hex("return 1"));
        assert_eq!(sha1_hex("return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
