//! Why a private server could not be started.

use crate::Kind;

/// Why a private server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server's program is not installed.
    #[error("`{binary}` is not installed; Debian has it in the package `{package}`")]
    MissingBinary {
        /// The program.
        binary: &'static str,
        /// The package that has it.
        package: &'static str,
    },

    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What it said.
        source: std::io::Error,
    },

    /// The server was started and did not become ready.
    #[error("{kind} did not become ready: {reason}; the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        kind: Kind,
        /// What was seen.
        reason: String,
        /// The last lines of its log.
        log: String,
    },
}

impl ServerError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
