//! Why a private server could not be started, or a fault not be made.

use crate::Kind;
use std::time::Duration;

/// Why a private server could not be started, or a fault not be made.
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

    /// Something that had to come did not come in time.
    #[error("{what}: not so within {} s; the last that was seen: {seen}", limit.as_secs())]
    NotReached {
        /// What was waited for.
        what: String,
        /// For how long.
        limit: Duration,
        /// What there was instead.
        seen: String,
    },

    /// A server or a program was asked for something and said no.
    #[error("{what}: {answer}")]
    Refused {
        /// What was asked for.
        what: String,
        /// The answer.
        answer: String,
    },

    /// This machine cannot do it, or this user may not.
    #[error("{what} is not possible here, because {because}")]
    CannotHere {
        /// What was tried.
        what: String,
        /// What is missing.
        because: String,
    },

    /// A fault was made, and what it does was not seen: nothing that is tried under it would show anything.
    #[error("{what}, and yet {seen}")]
    NotShown {
        /// The fault.
        what: String,
        /// What was seen.
        seen: String,
    },
}

impl ServerError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
