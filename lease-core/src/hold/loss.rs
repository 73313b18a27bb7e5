//! Why a guard may not begin protected work any more.

use crate::{BootInstant, LossReason, ResourceName};
use std::time::Duration;

/// A guard was lost. For good: nothing revives it; acquire anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease on {resource} was lost: {cause}; stop the work and acquire anew")]
pub struct Loss {
    pub(crate) resource: ResourceName,
    pub(crate) cause: LossCause,
    pub(crate) at: BootInstant,
}

impl Loss {
    /// The resource.
    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.resource
    }

    /// Why.
    #[must_use]
    pub fn cause(&self) -> LossCause {
        self.cause
    }

    /// When it was noticed.
    #[must_use]
    pub fn at(&self) -> BootInstant {
        self.at
    }
}

/// Why a guard was lost. Kept apart because they call for different answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LossCause {
    /// The deadline passed without any renewal being under way: the process slept, or renewal could not run.
    #[error("its deadline passed")]
    Expired,
    /// The deadline passed while the outcome of a renewal was unknown, or a renewal under way. It may have taken effect: then the store has
    /// the grant until its TTL ends, or the guard is released or dropped.
    #[error("its deadline passed while a renewal was unresolved")]
    Unresolved,
    /// The store has a newer grant.
    #[error("another grant was made")]
    Superseded,
    /// The grant was released by somebody else who had its data.
    #[error("it was released elsewhere")]
    ReleasedElsewhere,
    /// The grant was ended by force: somebody ordered it, and the log has who and why. Ask them before you acquire anew.
    #[error("it was ended by force")]
    Forced,
    /// The record of the grant is gone, and nobody said why: deleted by hand, or flushed. Look at the store, which may have lost more.
    #[error("its record is gone from the store")]
    Revoked,
    /// The store said that its time ran out.
    #[error("the store says that it expired")]
    ExpiredAtStore,
    /// The hold limit of this guard was reached. The store has the grant until its TTL ends, or the guard is released or dropped.
    #[error("its hold limit was reached")]
    HoldLimit,
    /// The work reported no progress for too long. The store has the grant until its TTL ends, or the guard is released or dropped.
    #[error("the work reported no progress")]
    NoProgress,
}

/// What [`LeaseGuard::ensure`](super::LeaseGuard::ensure) found wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnsureError {
    /// The guard is lost.
    #[error(transparent)]
    Lost(#[from] Loss),
    /// The guard is held, and less time is left than the step needs; it may be renewed meanwhile.
    #[error(
        "the lease on {resource} has {remaining:?} left, and {needed:?} are needed; wait for its renewal, or do not begin"
    )]
    TooLittle {
        /// The resource.
        resource: ResourceName,
        /// What is left.
        remaining: Duration,
        /// What was asked for.
        needed: Duration,
    },
}

impl LossCause {
    /// Whether the store itself said that the grant is over. Any other cause is this process's own clock's, and the store may still have
    /// the grant.
    pub(super) fn is_told_by_store(self) -> bool {
        match self {
            Self::Superseded | Self::ReleasedElsewhere | Self::Forced | Self::Revoked | Self::ExpiredAtStore => true,
            Self::Expired | Self::Unresolved | Self::HoldLimit | Self::NoProgress => false,
        }
    }

    /// The stable name in events and metrics.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Unresolved => "unresolved",
            Self::Superseded => "superseded",
            Self::ReleasedElsewhere => "released_elsewhere",
            Self::Forced => "forced",
            Self::Revoked => "revoked",
            Self::ExpiredAtStore => "expired_at_store",
            Self::HoldLimit => "hold_limit",
            Self::NoProgress => "no_progress",
        }
    }
}

impl From<LossReason> for LossCause {
    fn from(reason: LossReason) -> Self {
        match reason {
            LossReason::Expired => Self::ExpiredAtStore,
            LossReason::Superseded => Self::Superseded,
            LossReason::Released => Self::ReleasedElsewhere,
            LossReason::Forced => Self::Forced,
            LossReason::Gone => Self::Revoked,
        }
    }
}
