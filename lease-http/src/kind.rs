//! The kinds of problems: what each is called, and what it means to a client.

use http::StatusCode;
use lease_core::Effect;

/// Makes the enum, and the list of all that the tests go through: none can be forgotten there.
macro_rules! kinds {
    ($($(#[$docs:meta])* $kind:ident,)+) => {
        /// What a [`Problem`](crate::Problem) is about. The table in the [crate's docs](crate#the-answers) has them all.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemKind {
            $($(#[$docs])* $kind,)+
        }

        #[cfg(test)]
        const ALL: &[ProblemKind] = &[$(ProblemKind::$kind),+];
    };
}

kinds! {
    /// The request has no token.
    TokenMissing,
    /// What the header has is no token.
    TokenMalformed,
    /// The header is there more than once.
    TokenRepeated,
    /// What the request names can't be a name or a TTL.
    RequestInvalid,
    /// A newer grant has been here.
    Stale,
    /// Another grant with the same value has been here.
    Conflict,
    /// The token's authority is not the trusted one.
    UnknownAuthority,
    /// Refused for a reason that this version does not know.
    Refused,
    /// Another authority is trusted than the one to be replaced.
    AdoptConflict,
    /// The store could not be asked; nothing was written.
    StoreUnavailable,
    /// The store failed and somebody has to see to it; nothing was written.
    StoreFailed,
    /// Nobody knows whether it was written.
    EffectUnknown,
    /// A handler looked for a token that no layer required.
    TokenNotRequired,
    /// A handler answered without having given the token to a guard.
    TokenUnused,
}

/// Name, status, title, advice.
type Row = (&'static str, StatusCode, &'static str, &'static str);

impl ProblemKind {
    /// The stable name, which ends the problem's `type`.
    #[must_use]
    pub fn id(self) -> &'static str {
        self.row().0
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(self) -> StatusCode {
        self.row().1
    }

    /// What it is, in a few words that are the same each time.
    #[must_use]
    pub fn title(self) -> &'static str {
        self.row().2
    }

    /// What to do, in a word: `send-token`, `fix-request`, `stop` (this grant's work; an operator sees to a conflict), `try-again` (the same
    /// request), `read-back` (before writing again), `fix-server`.
    #[must_use]
    pub fn advice(self) -> &'static str {
        self.row().3
    }

    /// Whether anything may have been written.
    #[must_use]
    pub fn effect(self) -> Effect {
        match self {
            Self::EffectUnknown | Self::TokenUnused => Effect::Unknown,
            _ => Effect::None,
        }
    }

    fn row(self) -> Row {
        const SERVER: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;
        const FIX: &str = "fix-server";
        match self {
            Self::TokenMissing => {
                ("token-missing", StatusCode::PRECONDITION_REQUIRED, "A fencing token is required", "send-token")
            }
            Self::TokenMalformed => {
                ("token-malformed", StatusCode::BAD_REQUEST, "The fencing token is malformed", "fix-request")
            }
            Self::TokenRepeated => {
                ("token-repeated", StatusCode::BAD_REQUEST, "There is more than one fencing token", "fix-request")
            }
            Self::RequestInvalid => {
                ("request-invalid", StatusCode::BAD_REQUEST, "What the request names is invalid", "fix-request")
            }
            Self::Stale => ("stale", StatusCode::PRECONDITION_FAILED, "The fencing token is stale", "stop"),
            Self::Conflict => ("conflict", StatusCode::CONFLICT, "Two grants have the same fencing value", "stop"),
            Self::UnknownAuthority => {
                ("unknown-authority", StatusCode::CONFLICT, "The fencing token's authority is not trusted", "stop")
            }
            Self::Refused => ("refused", StatusCode::CONFLICT, "The fencing token is refused", "stop"),
            Self::AdoptConflict => ("adopt-conflict", StatusCode::CONFLICT, "Another authority is trusted", "stop"),
            Self::StoreUnavailable => {
                ("store-unavailable", StatusCode::SERVICE_UNAVAILABLE, "The store could not be asked", "try-again")
            }
            Self::StoreFailed => ("store-failed", SERVER, "The store failed", FIX),
            Self::EffectUnknown => ("effect-unknown", SERVER, "Whether it was written is unknown", "read-back"),
            Self::TokenNotRequired => ("token-not-required", SERVER, "No layer requires a fencing token here", FIX),
            Self::TokenUnused => ("token-unused", SERVER, "The fencing token reached no guard", FIX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_the_docs_is_this_one() {
        let docs = include_str!("lib.rs");
        for &kind in ALL {
            let (status, effect) = (kind.status().as_u16(), format!("{:?}", kind.effect()).to_lowercase());
            let row = format!("//! | `{}` | {status} | {effect} | `{}` |", kind.id(), kind.advice());
            assert_eq!(docs.matches(&row).count(), 1, "{row}");
        }
        assert_eq!(docs.matches("\n//! | `").count(), ALL.len(), "a row for nothing");
    }

    #[test]
    fn what_may_have_been_written_is_no_status_that_clients_repeat() {
        for &kind in ALL {
            let repeated = [408, 425, 429, 502, 503, 504].contains(&kind.status().as_u16());
            assert_eq!(repeated, kind.advice() == "try-again", "{kind:?}");
            assert!(!repeated || kind.effect() == Effect::None, "{kind:?}");
        }
    }
}
