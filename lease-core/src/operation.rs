//! The operations of a store, as errors name them.

use std::fmt;

/// The operations, as errors name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Connecting and reading the store's settings.
    Connect,
    /// `acquire`.
    Acquire,
    /// `renew`.
    Renew,
    /// `release`.
    Release,
    /// `abandon`.
    Abandon,
    /// `force_release`.
    ForceRelease,
    /// `inspect`.
    Inspect,
    /// `list`.
    List,
    /// `clean_up`.
    CleanUp,
    /// A write through a fence.
    FencedWrite,
    /// A read of a fenced or guarded register.
    Read,
    /// `seal` at a destination.
    Seal,
    /// A guarded write at a destination.
    GuardedWrite,
    /// `adopt` at a destination.
    Adopt,
    /// An idempotency record in the caller's transaction.
    Once,
    /// A version condition in the caller's transaction.
    Version,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Abandon => "abandon",
            Self::ForceRelease => "force-release",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::CleanUp => "clean-up",
            Self::FencedWrite => "fenced write",
            Self::Read => "read",
            Self::Seal => "seal",
            Self::GuardedWrite => "guarded write",
            Self::Adopt => "adopt",
            Self::Once => "idempotency record",
            Self::Version => "version condition",
        })
    }
}

impl Operation {
    /// What is known, and what to do, when nobody knows whether it took effect.
    pub(crate) fn advice_in_doubt(self) -> &'static str {
        match self {
            Self::Acquire => "whether it took effect is unknown: repeat the same attempt, or abandon it",
            Self::Abandon => {
                "whether it took effect is unknown: repeat it, or let the TTL end what the attempt may have made"
            }
            Self::Renew => "whether it took effect is unknown: the old deadline stands; renew again before it passes",
            Self::Release => "whether it took effect is unknown: release again, or let the TTL end the grant",
            Self::ForceRelease => {
                "whether it took effect is unknown: repeat the order, which can only end the grant that it names"
            }
            Self::CleanUp => "a part of it may be done, which is complete in itself: call it again",
            Self::FencedWrite | Self::GuardedWrite => {
                "whether it took effect is unknown, and it may still: read what is there before you write again"
            }
            Self::Seal => "whether it took effect is unknown: seal again before you read or write",
            Self::Adopt => {
                "whether it took effect is unknown: adopt again; a conflict that names the new authority says that it did"
            }
            Self::Once | Self::Version => {
                "whether it took effect is unknown: roll the transaction back, and run it again from its beginning"
            }
            Self::Connect => "whether the store has seen it is unknown: connect again",
            Self::Inspect | Self::List | Self::Read => {
                "whether the store has seen it is unknown, and it changes nothing: ask again"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Effect, LeaseError};
    use std::time::Duration;

    /// Only an acquire has an attempt to repeat.
    #[test]
    fn the_advice_fits_the_operation() {
        let text =
            |operation, effect| LeaseError::Timeout { operation, limit: Duration::from_secs(1), effect }.to_string();
        for (operation, advice) in [
            (Operation::Connect, "connect again"),
            (Operation::Acquire, "repeat the same attempt, or abandon it"),
            (Operation::Renew, "the old deadline stands; renew again"),
            (Operation::Release, "release again, or let the TTL end the grant"),
            (Operation::Abandon, "repeat it, or let the TTL end"),
            (Operation::ForceRelease, "repeat the order"),
            (Operation::Inspect, "ask again"),
            (Operation::List, "ask again"),
            (Operation::CleanUp, "call it again"),
            (Operation::FencedWrite, "read what is there before you write again"),
            (Operation::Read, "ask again"),
            (Operation::Seal, "seal again"),
            (Operation::GuardedWrite, "read what is there before you write again"),
            (Operation::Adopt, "a conflict that names the new authority says that it did"),
            (Operation::Once, "run it again from its beginning"),
            (Operation::Version, "run it again from its beginning"),
        ] {
            let unknown = text(operation, Effect::Unknown);
            assert!(unknown.contains(advice), "{unknown}");
            assert_eq!(unknown.contains("attempt, or"), operation == Operation::Acquire, "{unknown}");
            assert!(text(operation, Effect::None).ends_with("it had no effect"));
        }
    }
}
