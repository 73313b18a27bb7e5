//! What went wrong, whether it took effect, and what to do.

use crate::{Operation, ResourceName};
use std::time::Duration;

/// The underlying error of a client crate.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Everything that a backend operation can fail with.
///
/// Each variant answers three questions: [`kind`](Self::kind), [`effect`](Self::effect) (did it take effect?) and
/// [`advice`](Self::advice) (may I try again?). Messages never carry a password or an owner token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// A name, label, namespace or other text has a form that is not allowed. Refused before any I/O.
    #[error("invalid {what}: {reason}")]
    InvalidName {
        /// What was parsed.
        what: &'static str,
        /// What is wrong with it and what to give instead.
        reason: String,
    },

    /// The TTL is zero, or longer than the backend can grant. Refused before any I/O.
    #[error("invalid TTL of {ttl:?}: {reason}")]
    InvalidTtl {
        /// What was asked for.
        ttl: Duration,
        /// What is wrong with it.
        reason: String,
    },

    /// No fencing value is larger than the attempt's floor. Refused before any I/O.
    #[error(
        "no fencing value is above a floor of {floor}: the largest one here is {largest}; take the floor from the destination's mark, or start a new namespace and adopt its authority"
    )]
    InvalidFloor {
        /// The floor.
        floor: u64,
        /// The largest value; 0 when there are none.
        largest: u64,
    },

    /// The URL or an option is wrong. Refused before any I/O.
    #[error("invalid configuration: {reason}")]
    InvalidConfig {
        /// What is wrong and what to write instead.
        reason: String,
    },

    /// The URL has a parameter that nobody reads. Refused before any I/O.
    #[error("unknown URL parameter `{name}`; known here: {}", .known.join(", "))]
    UnknownParameter {
        /// The parameter.
        name: String,
        /// All that are known.
        known: Vec<&'static str>,
    },

    /// No backend is registered for the URL's scheme. Refused before any I/O.
    #[error("no backend for scheme `{scheme}`: {advice}")]
    UnknownScheme {
        /// The scheme.
        scheme: String,
        /// Which feature brings it, or which schemes there are.
        advice: String,
    },

    /// The operating system gave no random numbers. Nothing was sent.
    #[error("the operating system gave no random numbers: {reason}")]
    Entropy {
        /// What it said.
        reason: String,
    },

    /// The store cannot be reached: nothing was sent.
    #[error("cannot reach {store}: {reason}; check that it runs and that the address is right")]
    Unreachable {
        /// The store's address, without credentials.
        store: String,
        /// What the connection said.
        reason: String,
        /// The client's error.
        #[source]
        source: Option<Source>,
    },

    /// The store refused the credentials.
    #[error("{store} refused the login: {reason}; check user and password in the URL")]
    LoginRefused {
        /// The store's address, without credentials.
        store: String,
        /// What the store said.
        reason: String,
        /// The client's error.
        #[source]
        source: Option<Source>,
    },

    /// The account lacks a privilege. The operation had no effect.
    #[error("{operation} was refused for lack of a privilege: {reason}; {advice}")]
    MissingPrivilege {
        /// The operation.
        operation: Operation,
        /// What the store said.
        reason: String,
        /// The grant that is needed.
        advice: String,
        /// The client's error.
        #[source]
        source: Option<Source>,
    },

    /// The store lacks something that this backend needs (a table, a constraint, a setting).
    #[error("the store is not ready for leases: {reason}; {advice}")]
    NotSetUp {
        /// What is missing.
        reason: String,
        /// How to set it up.
        advice: String,
        /// The client's error.
        #[source]
        source: Option<Source>,
    },

    /// Something else lies where the lease's record should be. It was left alone.
    #[error("foreign data under the key of {resource}: {reason}; choose another namespace or remove it")]
    ForeignData {
        /// The resource.
        resource: ResourceName,
        /// What was found.
        reason: String,
    },

    /// The call ended by its time limit.
    #[error("{operation} had no answer within {limit:?}; {}", effect_text(*.operation, *.effect))]
    Timeout {
        /// The operation.
        operation: Operation,
        /// The limit.
        limit: Duration,
        /// Whether it took effect.
        effect: Effect,
    },

    /// The connection broke.
    #[error("the connection broke during {operation}: {reason}; {}", effect_text(*.operation, *.effect))]
    Connection {
        /// The operation.
        operation: Operation,
        /// What the client said.
        reason: String,
        /// Whether it took effect.
        effect: Effect,
        /// The client's error.
        #[source]
        source: Option<Source>,
    },

    /// The store answered with an error.
    #[error("the store refused {operation}: {reason}; {}", effect_text(*.operation, *.effect))]
    Store {
        /// The operation.
        operation: Operation,
        /// What the store said.
        reason: String,
        /// Whether it took effect.
        effect: Effect,
        /// Whether the same call can succeed later without anybody's help.
        advice: Advice,
        /// The client's error.
        #[source]
        source: Option<Source>,
    },

    /// A grant arrived after its own deadline. It is no success; it was cleaned up, or ends with its TTL.
    #[error(
        "the grant of {resource} arrived after its own deadline and was given up; use a longer TTL or a faster path"
    )]
    LateGrant {
        /// The resource.
        resource: ResourceName,
    },

    /// The store would have granted a fencing value that is not above the attempt's floor. There is no grant.
    #[error(
        "the store's fencing value for {resource} is {value}, which is not above the floor {floor}: it has gone back, or the floor is of another \
         authority; raise `epoch` in every URL, adopt the new authority at the destinations and take the floor from there; {}",
        effect_text(Operation::Acquire, *.effect)
    )]
    BelowFloor {
        /// The resource.
        resource: ResourceName,
        /// The value that the grant has had, or would have had at most.
        value: u64,
        /// The attempt's floor.
        floor: u64,
        /// Unknown when a grant was made and could not be given up.
        effect: Effect,
    },

    /// The grant was not confirmed by as many replicas as the configuration asks for. It was given up, or ends with its TTL.
    #[error(
        "{confirmed} of {wanted} replicas confirmed the grant of {resource} in time, and it was given up; \
         begin a new attempt when they are in step with the primary again"
    )]
    Unconfirmed {
        /// The resource.
        resource: ResourceName,
        /// How many confirmed it.
        confirmed: u32,
        /// How many had to.
        wanted: u32,
    },

    /// The attempt cannot make a grant any more. Nothing was sent.
    #[error("this attempt on {resource} is over: {reason}; begin a new one")]
    AttemptOver {
        /// The resource.
        resource: ResourceName,
        /// Why.
        reason: &'static str,
    },

    /// The store's fencing values have run out of range. The grant was not made.
    #[error(
        "fencing value {value} is out of range (1 to 2^63 - 1, in Redis 2^53); start a new namespace and adopt its authority"
    )]
    TokenRange {
        /// The value.
        value: u64,
    },

    /// The backend does not have this operation; it does not claim it either.
    #[error("{operation} is not available on {backend}: {reason}")]
    Unsupported {
        /// The operation.
        operation: Operation,
        /// The backend.
        backend: &'static str,
        /// Why, and what to do instead.
        reason: &'static str,
    },
}

/// Whether a failed operation took effect. Exhaustive on purpose: what is not known to have had none is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It had none, and never will.
    None,
    /// Nobody knows: it may have taken effect, or still will.
    Unknown,
}

fn effect_text(operation: Operation, effect: Effect) -> &'static str {
    match effect {
        Effect::None => "it had no effect",
        Effect::Unknown => operation.advice_in_doubt(),
    }
}

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// The same call may succeed later: try it again, with the same attempt where there is one.
    TryAgain,
    /// Somebody has to change something first: the input, the configuration, the store.
    Fix,
    /// This attempt is spent: begin a new one.
    BeginAnew,
}

/// The groups of errors that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input or configuration.
    Input,
    /// The store's set-up: privileges, tables, login.
    SetUp,
    /// The way to the store: unreachable, timed out, cut.
    Transport,
    /// The store refused.
    Store,
    /// The attempt is over.
    Attempt,
    /// Not available on this backend.
    Unsupported,
}

impl LeaseError {
    /// Which group it belongs to.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidName { .. }
            | Self::InvalidTtl { .. }
            | Self::InvalidFloor { .. }
            | Self::InvalidConfig { .. }
            | Self::UnknownParameter { .. }
            | Self::UnknownScheme { .. } => ErrorKind::Input,
            Self::LoginRefused { .. }
            | Self::MissingPrivilege { .. }
            | Self::NotSetUp { .. }
            | Self::ForeignData { .. } => ErrorKind::SetUp,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Connection { .. } => ErrorKind::Transport,
            Self::Store { .. }
            | Self::TokenRange { .. }
            | Self::BelowFloor { .. }
            | Self::Unconfirmed { .. }
            | Self::Entropy { .. } => ErrorKind::Store,
            Self::LateGrant { .. } | Self::AttemptOver { .. } => ErrorKind::Attempt,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }

    /// Whether the operation took effect.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Timeout { effect, .. }
            | Self::Connection { effect, .. }
            | Self::Store { effect, .. }
            | Self::BelowFloor { effect, .. } => *effect,
            // The clean-up of such a grant may itself have failed, and a replica may have the one without the other.
            Self::LateGrant { .. } | Self::Unconfirmed { .. } => Effect::Unknown,
            _ => Effect::None,
        }
    }

    /// What to do.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Store { advice, .. } => *advice,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Connection { .. } => Advice::TryAgain,
            Self::LateGrant { .. } | Self::Unconfirmed { .. } | Self::AttemptOver { .. } => Advice::BeginAnew,
            _ => Advice::Fix,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_never_a_refusal() {
        let error = LeaseError::Timeout {
            operation: Operation::Acquire,
            limit: Duration::from_secs(1),
            effect: Effect::Unknown,
        };
        assert_eq!(
            (error.kind(), error.effect(), error.advice()),
            (ErrorKind::Transport, Effect::Unknown, Advice::TryAgain)
        );
        assert!(error.to_string().contains("repeat the same attempt"));
    }
}
