//! What the driver says to a worker and what it answers: one JSON object per line.

use super::asker::Seen;
use crate::soak::{Note, Orders};
use lease_core::FencingToken;
use serde::{Deserialize, Serialize};

/// One thing that a worker does. Commands are done one after the other, in the order in which they were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Command {
    /// Connects the worker's own client.
    Connect {
        /// The backend's URL. A secret: it may carry a password.
        url: String,
    },
    /// Opens a destination and keeps it as `at`.
    Open {
        /// The name that later commands use.
        at: String,
        /// The destination's URL. A secret: it may carry a password.
        url: String,
    },
    /// Acquires with the attempt kept as `lease`: the first time a new one, later the same one again, unless its answer was `Held`.
    Acquire {
        /// The name that later commands use.
        lease: String,
        /// The resource.
        resource: String,
        /// The TTL that is asked for.
        ttl_ms: u64,
    },
    /// Renews.
    Renew {
        /// Which lease.
        lease: String,
    },
    /// Releases.
    Release {
        /// Which lease.
        lease: String,
    },
    /// Looks at the lease's own deadline, without any I/O.
    Touch {
        /// Which lease.
        lease: String,
    },
    /// Seals a destination.
    Seal {
        /// Under which lease.
        lease: String,
        /// Which destination.
        at: String,
    },
    /// Reads, and keeps in memory what is to be written: what was found, followed by `add`, with the lease's token.
    Prepare {
        /// The name of the prepared write.
        slot: String,
        /// Under which lease.
        lease: String,
        /// Which destination; `None`: the register behind the backend's own fence.
        at: Option<String>,
        /// What is added to the value that was read.
        add: String,
    },
    /// Sends a prepared write.
    WritePrepared {
        /// Which one.
        slot: String,
        /// Through what.
        how: How,
    },
    /// Acquires through a keeper, which renews, and asks for permits again and again on a thread of its own.
    Watch {
        /// The name that later commands use.
        lease: String,
        /// The resource.
        resource: String,
        /// The TTL that is asked for.
        ttl_ms: u64,
        /// Whether a renewal can reach the store. Where none can, the lease ends at its first deadline.
        renews: bool,
    },
    /// Tells what the thread that asks for permits has seen of a watched lease.
    Watched {
        /// Which lease.
        lease: String,
    },
    /// Releases a watched lease through its guard, and asks for no more permits.
    ReleaseWatched {
        /// Which lease.
        lease: String,
    },
    /// Tells what the worker's clocks say.
    Clocks,
    /// Begins to work on leases at random, and notes every operation, until [`Rest`](Self::Rest).
    Soak {
        /// What to do.
        orders: Orders,
    },
    /// Ends the work at random, and answers when the last operation under way has ended.
    Rest,
    /// Blocks the worker's runtime until the driver lets it go on. Only for workers on threads; a process is stopped by a signal.
    Block,
}

/// Through what a prepared write is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The destination without any check.
    Plain,
    /// The destination's guard, with the token.
    Guarded,
    /// The destination's guard, ignoring what it says, and committing all the same.
    IgnoringRefusal,
    /// The backend's own fence.
    Native,
    /// The register behind the backend's own fence, without any check.
    PlainNative,
}

/// One line from a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Said {
    /// The answer to a command.
    Answer(Reply),
    /// What it notes by itself while it works.
    Noted(Note),
}

/// A command with its number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Counts the commands of one worker.
    pub id: u64,
    /// What to do.
    pub command: Command,
}

/// The answer to one command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// The command's number.
    pub id: u64,
    /// When the worker began with it, on the boot clock.
    pub began_ns: u64,
    /// When it was done, on the boot clock.
    pub ended_ns: u64,
    /// The process that the worker runs in.
    pub pid: u32,
    /// What came of it.
    pub answer: Answer,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// Done; there is nothing to say about it.
    Done,
    /// The lease was granted.
    Acquired {
        /// Its fencing token.
        token: Option<FencingToken>,
        /// The TTL that was granted.
        granted_ttl_ms: u64,
    },
    /// Another grant is live.
    Held,
    /// The grant was extended.
    Renewed {
        /// Its fencing token.
        token: Option<FencingToken>,
    },
    /// The grant has ended.
    Lost {
        /// Why.
        reason: String,
    },
    /// The answer to a release.
    Released {
        /// `Released`, `NotHeld` or `EndedCauseUnknown`.
        how: String,
    },
    /// What the lease says of itself.
    Touched {
        /// Whether its deadline has passed.
        past_deadline: bool,
        /// Time left.
        remaining_ms: u64,
    },
    /// The write that is in memory now.
    Prepared {
        /// Its value.
        value: String,
    },
    /// What became of a prepared write.
    Wrote {
        /// What the worker was told.
        told: Told,
        /// What the lease said of itself right before the write was sent, without any I/O.
        past_deadline: bool,
        /// When the write was sent, on the boot clock.
        sent_ns: u64,
    },
    /// What was seen of a watched lease.
    Watched {
        /// By the thread that asks for permits.
        seen: Seen,
    },
    /// What the clocks say.
    Clocks {
        /// The wall clock, since 1970.
        wall_ns: u64,
        /// The boot clock, right afterwards.
        boot_ns: u64,
    },
    /// It failed.
    Failed {
        /// How.
        error: String,
    },
}

/// What a writer was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It was written.
    Written,
    /// It was refused.
    Refused(String),
    /// Neither.
    Failed(String),
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Written => f.write_str("written"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_round_trips() {
        let request =
            Request { id: 7, command: Command::WritePrepared { slot: "s\n\"1\"".into(), how: How::IgnoringRefusal } };
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'), "one line each: {line}");
        let back: Request = serde_json::from_str(&line).unwrap();
        assert_eq!((back.id, back.command), (request.id, request.command));

        let token: FencingToken = "9223372036854775807.00000000000000aa.redis:5f3a:0".parse().unwrap();
        let answer = Answer::Acquired { token: Some(token), granted_ttl_ms: u64::MAX };
        let line = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&line).unwrap(), answer);
    }
}
