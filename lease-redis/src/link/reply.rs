//! What a server answered, whichever client carried it.

use std::fmt;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Text(String),
    List(Vec<Reply>),
}

impl Reply {
    /// The texts of a list, or the one text that it is. Nothing else has texts.
    pub(crate) fn into_texts(self) -> Vec<String> {
        match self {
            Self::Nil => Vec::new(),
            Self::Text(text) => vec![text],
            Self::List(items) => items.into_iter().flat_map(Self::into_texts).collect(),
        }
    }
}

/// What became of a request that has no answer to use.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// The server answered with an error: a definite answer.
    Server(ServerReply),
    /// The connection broke: whether the request ran is unknown.
    Broken { reason: String, source: Option<lease_core::Source> },
    /// No answer in time: whether the request ran, or still will, is unknown.
    TimedOut,
}

/// An error that the server answered with.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerReply(String);

impl ServerReply {
    /// The error from its whole text, which begins with its code.
    pub(crate) fn new(text: &str) -> Self {
        // A server that does not know a command echoes its arguments, and they can carry an owner token.
        let text = text.split(", with args beginning with").next().unwrap_or_default();
        Self(text.trim().to_owned())
    }

    /// Its first word, such as `NOSCRIPT`.
    pub(crate) fn code(&self) -> &str {
        self.0.split_ascii_whitespace().next().unwrap_or_default()
    }

    /// Whether it says that the credentials are missing or wrong.
    pub(crate) fn is_login(&self) -> bool {
        matches!(self.code(), "NOAUTH" | "WRONGPASS")
    }

    /// Whether it says `code`, as its own code or inside what a script passed on, as older servers do.
    pub(crate) fn says(&self, code: &str) -> bool {
        self.code() == code || (self.code() == "ERR" && self.0.contains(code))
    }
}

impl fmt::Display for ServerReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ServerReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for ServerReply {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoed_arguments_are_cut_off() {
        let reply = ServerReply::new("ERR unknown command 'EVALSHA', with args beginning with: 'abc' '1' 's3cret' ");
        assert_eq!(reply.to_string(), "ERR unknown command 'EVALSHA'");
        assert_eq!(reply.code(), "ERR");
    }
}
