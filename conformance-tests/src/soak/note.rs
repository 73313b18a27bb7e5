//! What a worker notes of its work, one line at a time: the beginning of an operation before it is sent, and its end.

use lease_core::FencingToken;
use serde::{Deserialize, Serialize};

/// What a worker has to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Orders {
    /// The names that it works on.
    pub names: Vec<String>,
    /// The TTL that it asks for.
    pub ttl_ms: u64,
    /// The destination, as it was opened.
    pub at: String,
    /// Seeds its choices.
    pub seed: u64,
    /// Its name, unlike that of any other worker of the run.
    pub worker: String,
    /// How many things it does at once.
    pub hands: u32,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Note {
    /// The operation's number, counted by the worker.
    pub op: u64,
    /// When, on the boot clock.
    pub at_ns: u64,
    /// Its beginning or its end.
    pub part: Part,
}

/// The beginning or the end of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// It is about to be sent.
    Begins {
        /// On which resource.
        resource: String,
        /// What it is.
        does: Does,
    },
    /// It has ended. Without this line its outcome is unknown.
    Ends {
        /// With what.
        came: Came,
    },
}

/// An operation. Grants are numbered by the worker, so that no owner token leaves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Does {
    /// Acquires.
    Acquire {
        /// The attempt.
        grant: u64,
    },
    /// Renews.
    Renew {
        /// Which grant.
        grant: u64,
        /// How long it lasts after each renewal.
        granted_ttl_ns: u64,
    },
    /// Releases, or abandons the attempt.
    Ends {
        /// Which grant.
        grant: u64,
    },
    /// Seals the destination.
    Seal {
        /// With this token.
        token: FencingToken,
    },
    /// Writes at the destination.
    Write {
        /// With this token.
        token: FencingToken,
        /// What is written: unlike every other write.
        tag: String,
        /// What it was computed from: the tag that its writer had read or written before; `None` for an empty register.
        on: Option<String>,
    },
    /// Reads the destination.
    Read,
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Came {
    /// The grant was made, or found again.
    Granted {
        /// Its token.
        token: Option<FencingToken>,
        /// How long it lasts.
        granted_ttl_ns: u64,
    },
    /// The grant was extended.
    Extended {
        /// Its token.
        token: Option<FencingToken>,
    },
    /// The grant is over.
    Lost,
    /// The store said for certain that the grant is over.
    Ended,
    /// The seal or write was admitted.
    Admitted,
    /// It was refused because a larger value had been there.
    Stale,
    /// It was refused for another reason.
    Refused,
    /// The register holds this.
    Found {
        /// The tag of the write that is there; `None` for an empty register.
        tag: Option<String>,
    },
    /// Nothing, for certain.
    Nothing,
    /// Nobody knows.
    Unknown,
}

/// The text of a register: its tag, and the tag that it was computed from.
pub(crate) fn value(tag: &str, on: Option<&str>) -> String {
    format!("{tag} {}", on.unwrap_or_default())
}

/// The two tags of a register's text.
pub(crate) fn tags(value: &str) -> (&str, Option<&str>) {
    let (tag, on) = value.split_once(' ').unwrap_or((value, ""));
    (tag, (!on.is_empty()).then_some(on))
}
